//! A program's instances in processes of their own on this host, started again when they end.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serq_engine::apart::{At, Token};
use serq_engine::instances::threads;
use serq_engine::served::Named;

use super::Apart;
use crate::command::instance::{LISTENING, TOKEN_VARIABLE};
use crate::command::up::EngineFlags;
use crate::failure::Failure;
use crate::output;

/// From the end of a process to its next start, at first and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// A process that ran that long ended for a reason of its own.
const LASTED: Duration = Duration::from_secs(30);

/// The processes. Dropped, they end.
pub(crate) struct Processes {
    token: String,
    one: Vec<One>,
}

/// One of them.
struct One {
    at: At,
    process: u32,
    over: Arc<AtomicBool>,
    watching: Option<JoinHandle<()>>,
}

impl Processes {
    /// Starts one for each instance. `program` is its file and settings, as a command line has them.
    pub(crate) fn start(
        named: &[Named],
        program: &[String],
        engine: &EngineFlags,
        cores: usize,
    ) -> Result<Self, Failure> {
        let token = Token::drawn_text();
        let groups = threads(named.len(), cores);
        let commands = named.iter().enumerate().map(|(nth, instance)| {
            let engine = EngineFlags { threads: Some(groups[nth % groups.len()] as u16), ..engine.clone() };
            let mut arguments = vec!["instance".to_owned()];
            arguments.extend(program.iter().cloned());
            arguments.extend(engine.arguments());
            arguments.extend(["--queue".into(), instance.name.clone(), "--while-read".into()]);
            arguments
        });
        // They pack their weights beside each other.
        let mut children = Vec::new();
        for arguments in commands {
            let child = spawn(&arguments, &token, None).map_err(Failure::Failed)?;
            children.push((arguments, child));
        }
        let mut one = Vec::new();
        let mut failed = None;
        for (instance, (arguments, mut child)) in named.iter().zip(children) {
            match (&failed, listening(&mut child)) {
                (None, Some(address)) => {
                    let at = At { instance: instance.name.clone(), address };
                    one.push(One::watch(at, child, arguments, token.clone()));
                }
                (failure, _) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    if failure.is_none() {
                        failed = Some(format!("the process of {} did not start", instance.name));
                    }
                }
            }
        }
        let started = Self { token, one };
        failed.map_or(Ok(started), |why| Err(Failure::Failed(why)))
    }

    /// As their scheduler finds them.
    pub(crate) fn apart(&self, retries: u32) -> Apart {
        let token = Token::new(self.token.clone()).expect("a drawn token is long");
        Apart { addresses: self.one.iter().map(|one| one.at.clone()).collect(), token, retries }
    }

    /// Where the nth is.
    pub(crate) fn describe(&self, nth: usize) -> String {
        let One { at, process, .. } = &self.one[nth];
        format!("process {process} at {}", at.address)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.one.iter().for_each(|one| one.over.store(true, Ordering::SeqCst));
        for one in &mut self.one {
            if let Some(watching) = one.watching.take() {
                let _ = watching.join();
            }
        }
    }
}

impl One {
    fn watch(at: At, mut child: Child, arguments: Vec<String>, token: String) -> Self {
        let (process, over) = (child.id(), Arc::new(AtomicBool::new(false)));
        let (stop, place) = (Arc::clone(&over), at.clone());
        let watching = thread::spawn(move || {
            let (mut began, mut wait) = (Instant::now(), AGAIN.0);
            while !stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(20));
                let Ok(Some(status)) = child.try_wait() else { continue };
                if began.elapsed() > LASTED {
                    wait = AGAIN.0;
                }
                let again = Instant::now() + wait;
                while Instant::now() < again && !stop.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(20));
                }
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                (began, wait) = (Instant::now(), (wait * 2).min(AGAIN.1));
                match spawn(&arguments, &token, Some(place.address)) {
                    Ok(again) => {
                        child = again;
                        let (instance, process) = (&place.instance, child.id());
                        output::tell(&format!(
                            "{instance}: its process ended ({status}); process {process} follows it"
                        ));
                    }
                    Err(why) => output::tell(&why),
                }
            }
            let _ = child.kill();
            let _ = child.wait();
        });
        Self { at, process, over, watching: Some(watching) }
    }
}

/// Starts an instance's process, which ends when this one does: it reads from it. Where it listens is on its
/// standard output, unless that is known.
fn spawn(arguments: &[String], token: &str, listen: Option<SocketAddr>) -> Result<Child, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(arguments).env(TOKEN_VARIABLE, token).stdin(Stdio::piped());
    match listen {
        Some(address) => command.arg(format!("--listen={address}")).stdout(Stdio::null()),
        None => command.stdout(Stdio::piped()),
    };
    // Ctrl-C is for this process, which ends them.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().map_err(|error| format!("cannot start an instance's process: {error}"))
}

/// Where a process says that it listens; `None`: it ended.
fn listening(child: &mut Child) -> Option<SocketAddr> {
    let lines = BufReader::new(child.stdout.take()?).lines().map_while(Result::ok);
    lines.filter_map(|line| line.trim().strip_prefix(LISTENING)?.split_whitespace().next()?.parse().ok()).next()
}
