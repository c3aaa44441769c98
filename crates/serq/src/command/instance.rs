//! `serq instance`: one instance of a program, in this process.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serq_engine::apart::{Identity, Token, TransferConfig, Way, Worker, WorkerOptions};

use super::up::ServedFlags;
use crate::failure::Failure;
use crate::output;
use crate::serving::http::interrupted;
use crate::serving::{incarnation, memory_free};

/// Where what all processes of a deployment know is to be found.
pub(crate) const TOKEN_VARIABLE: &str = "SERQ_TOKEN";
/// What its line says before the address.
pub(crate) const LISTENING: &str = "listening ";

/// Run one instance of a program, for a `serq gateway` elsewhere
#[derive(Args)]
pub(crate) struct Instance {
    #[command(flatten)]
    served: ServedFlags,

    /// Which instance: `P[0]`
    #[arg(long, value_name = "INSTANCE")]
    queue: String,

    #[command(flatten)]
    secret: SecretFlags,

    /// Where the gateway reaches it; at port 0 at one that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Where other instances reach it for KV [default: a free port of the same address]
    #[arg(long, value_name = "ADDRESS:PORT")]
    kv_listen: Option<SocketAddr>,

    /// Where the gateway reaches it, if not where it listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    reached_at: Option<SocketAddr>,

    /// Where other instances reach it for KV, if not where it listens
    #[arg(long, value_name = "ADDRESS:PORT")]
    kv_reached_at: Option<SocketAddr>,

    #[command(flatten)]
    transport: TransportFlags,

    /// After a termination, serve those who are there for at most so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    drain: f64,

    /// End when standard input does
    #[arg(long, hide = true)]
    while_read: bool,
}

/// How KV goes.
#[derive(Args, Clone)]
pub(crate) struct TransportFlags {
    /// How KV may come and go, the best first: `shm` within a host, `nixl` where SERQ_NIXL names its library, `tcp`
    /// anywhere [default: shm,tcp]
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    transport: Vec<WayFlag>,
}

impl TransportFlags {
    /// As a command line has them.
    pub(crate) fn argument(&self) -> Option<String> {
        let ways: Vec<String> = self.transport.iter().map(WayFlag::to_string).collect();
        (!ways.is_empty()).then(|| format!("--transport={}", ways.join(",")))
    }

    pub(crate) fn ways(&self) -> Vec<Way> {
        match &self.transport[..] {
            [] => vec![Way::Shm, Way::Tcp],
            ways => ways.iter().map(|way| way.0).collect(),
        }
    }
}

/// What all processes of a deployment know.
#[derive(Args)]
pub(crate) struct SecretFlags {
    /// A file with the secret that all processes of the deployment know, of at least 16 bytes
    /// [default: the variable SERQ_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<std::path::PathBuf>,
}

impl SecretFlags {
    pub(crate) fn token(&self) -> Result<Token, Failure> {
        let secret = match &self.token_file {
            Some(file) => std::fs::read(file).map_err(|error| output::cannot("read", file, &error))?,
            None => match std::env::var(TOKEN_VARIABLE) {
                Ok(secret) => secret.into_bytes(),
                Err(_) => {
                    let message = format!(
                        "--token-file or the variable {TOKEN_VARIABLE} is needed: who does not know it is turned away"
                    );
                    return Err(Failure::Usage(message));
                }
            },
        };
        Token::new(secret.trim_ascii_end()).map_err(Failure::Failed)
    }
}

/// A [`Way`] as a flag has it.
#[derive(Clone, Copy, Debug)]
struct WayFlag(Way);

impl std::fmt::Display for WayFlag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for WayFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ways = [Way::Shm, Way::Nixl, Way::Tcp];
        let found = ways.into_iter().find(|way| way.to_string() == text);
        found.map(Self).ok_or_else(|| "`shm`, `nixl` or `tcp` is meant".into())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=1e9).contains(seconds) && seconds.is_sign_positive());
    seconds.ok_or_else(|| "a number of seconds from 0 is meant".into())
}

impl Instance {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        self.check_addresses()?;
        let served = self.served.served()?;
        let token = self.secret.token()?;
        let Some(named) = served.named(&self.queue) else {
            let names: Vec<String> = served.instances().into_iter().map(|instance| instance.name).collect();
            let (file, queue) = (&self.served.file, &self.queue);
            return Err(Failure::Failed(format!("{file} has no instance {queue}; it has {}", names.join(", "))));
        };
        let serving = self.served.engine.open()?;
        let identity = Identity::of(&served, &serving.checkpoint);
        let packed = serving.pack().map_err(Failure::Failed)?;
        let (blocks, block) = (named.memory.blocks, named.memory.block);
        let bytes = blocks * packed.model.kv_layout(block).block_bytes();
        if bytes as u64 > memory_free() {
            let (name, mb, free) = (&named.name, bytes as f64 / 1e6, memory_free() as f64 / 1e6);
            return Err(Failure::Failed(format!(
                "the blocks of {name} take {mb:.0} MB and {free:.0} MB are to be had: a smaller `cap` is meant"
            )));
        }
        let options = WorkerOptions {
            instance: named.name.clone(),
            listen: self.listen,
            kv_listen: self.kv_listen.unwrap_or(SocketAddr::new(self.listen.ip(), 0)),
            reached_at: self.reached_at,
            kv_reached_at: self.kv_reached_at,
            token,
            incarnation: incarnation(),
            ways: self.transport.ways(),
            cores: packed.cores,
            transfer: TransferConfig::default(),
        };
        let name = named.name.clone();
        let note = move |note: &str| output::tell(&format!("{name}: {note}"));
        let worker = Worker::start(options, named.memory, &identity, &packed.model, note).map_err(Failure::Failed)?;
        let (model, s) = (&packed.model, if packed.cores == 1 { "" } else { "s" });
        output::print(&format!(
            "  {:6} ready   block {block}   {blocks} blocks = {} tokens, {:.0} MB   {} thread{s}\n  model  {}, {}, {} kernels\n  {LISTENING}{} for its gateway, {} for KV\n",
            named.name,
            blocks * block,
            bytes as f64 / 1e6,
            packed.cores,
            self.served.engine.model,
            format!("{:?}", model.compute()).to_lowercase(),
            model.path(),
            worker.address(),
            worker.kv_address(),
        ))?;
        if self.while_read {
            thread::spawn(|| {
                // Its parent writes nothing: the end of this is the parent's.
                let _ = std::io::stdin().read(&mut [0]);
                std::process::exit(0);
            });
        }
        self.until_dismissed(&worker)
    }

    fn check_addresses(&self) -> Result<(), Failure> {
        let listens = [("--listen", Some(self.listen)), ("--kv-listen", self.kv_listen)];
        let reached = [("--reached-at", self.reached_at), ("--kv-reached-at", self.kv_reached_at)];
        for (flag, address) in listens.into_iter().chain(reached) {
            if let Some(address) = address.filter(|address| !address.is_ipv4()) {
                return Err(Failure::Usage(format!("{flag} {address}: an address of IPv4 is meant")));
            }
        }
        for (flag, address) in reached {
            if let Some(address) = address.filter(|at| at.port() == 0 || at.ip().is_unspecified()) {
                return Err(Failure::Usage(format!("{flag} {address}: others cannot reach it there")));
            }
        }
        let anywhere = self.kv_listen.unwrap_or(self.listen).ip().is_unspecified();
        match (anywhere, self.kv_reached_at) {
            (true, None) => {
                let message =
                    "it listens for KV at every address of the host: --kv-reached-at says which one others take";
                Err(Failure::Usage(message.into()))
            }
            _ => Ok(()),
        }
    }

    /// The first termination drains, the second ends it.
    fn until_dismissed(&self, worker: &Worker) -> Result<(), Failure> {
        let signals = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&signals);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("signals cannot be heard: {error}")))?;
        thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    interrupted().await;
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        });
        let mut deadline = None;
        loop {
            thread::sleep(Duration::from_millis(20));
            let signals = signals.load(Ordering::SeqCst);
            if signals > 0 && deadline.is_none() {
                worker.drain();
                deadline = Some(Instant::now() + Duration::try_from_secs_f64(self.drain).unwrap_or_default());
                output::tell(&format!("{}: takes no new work, and ends when it has none", self.queue));
            }
            if worker.is_dismissed() || signals > 1 {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                output::tell(&format!("{}: ends with work left after {} s", self.queue, self.drain));
                return Ok(());
            }
        }
    }
}
