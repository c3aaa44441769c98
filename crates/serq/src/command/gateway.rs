//! `serq gateway`: a program's route, in front of instances that run elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use serq_engine::apart::At;

use super::instance::SecretFlags;
use super::up::{ServedFlags, decisions};
use crate::failure::Failure;
use crate::output;
use crate::serving::http::Http;
use crate::serving::{Apart, Instances};

/// Serve a program whose instances run elsewhere, each as a `serq instance`
#[derive(Args)]
pub(crate) struct Gateway {
    #[command(flatten)]
    served: ServedFlags,

    #[command(flatten)]
    secret: SecretFlags,

    /// Where the instances are, one or several
    #[arg(long, value_name = "INSTANCE=ADDRESS:PORT", value_delimiter = ',', required = true, value_parser = peer)]
    peers: Vec<At>,

    /// How often a request is routed again whose instance is gone or whose KV did not arrive
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    retries: u32,

    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,

    /// At which port; 0: one that is free
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    port: u16,

    /// Write what the kernel is told and decides to a file, for `serq replay`
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
}

fn peer(text: &str) -> Result<At, String> {
    let meant = "`P[0]=127.0.0.1:7000` is meant";
    let (instance, address) = text.rsplit_once('=').ok_or(meant)?;
    let address: SocketAddr = address.parse().map_err(|_| meant)?;
    match address {
        SocketAddr::V4(_) => Ok(At { instance: instance.to_owned(), address }),
        SocketAddr::V6(_) => Err("an address of IPv4 is meant".into()),
    }
}

impl Gateway {
    pub(crate) fn execute(mut self) -> Result<(), Failure> {
        let served = self.served.served()?;
        let token = self.secret.token()?;
        for at in &mut self.peers {
            // Who has no such instance is told by who looks for it.
            at.instance = served.named(&at.instance).map_or_else(|| at.instance.clone(), |named| named.name);
        }
        let serving = self.served.engine.open()?;
        let brings = served.brings();
        let decisions = decisions(self.decisions.as_ref(), &served, false)?;
        let http = Http::listen(self.host, self.port)?;
        let instances = Instances::Apart(Apart { addresses: self.peers, token, retries: self.retries });
        let (backend, _) = serving.start(served, instances, decisions).map_err(Failure::Failed)?;
        let mut text = String::new();
        for peer in backend.peers.iter().flat_map(|peers| peers.look()) {
            text += &format!("  {:6} at {}\n", peer.instance, peer.address);
        }
        text += &format!("  model  {}\n  request: {}\n", backend.model.id, brings.join(", "));
        text += &http.invitation(&backend.model.id);
        output::print(&text)?;
        http.serve(backend);
        Ok(())
    }
}
