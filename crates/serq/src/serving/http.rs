//! The server's socket, and how long it serves.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serq_gateway::Options;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::EngineBackend;
use crate::failure::Failure;
use crate::output;

/// A socket that listens, and whatever runs its connections.
pub(crate) struct Http {
    runtime: Runtime,
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Http {
    /// Listens; at port 0 at one that is free.
    pub(crate) fn listen(host: IpAddr, port: u16) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| Failure::Failed(format!("the server cannot start: {error}")))?;
        let listening = runtime.block_on(TcpListener::bind((host, port)));
        let listener =
            listening.map_err(|error| Failure::Failed(format!("cannot listen at {host}:{port}: {error}")))?;
        let address = listener.local_addr().map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(Self { runtime, listener, address })
    }

    /// What a person needs to ask it something.
    pub(crate) fn invitation(&self, model: &str) -> String {
        let address = self.address;
        format!(
            "  serving http://{address}/v1\n\n  curl http://{address}/v1/chat/completions -H 'content-type: application/json' \\\n    \
             -d '{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}], \"max_tokens\": 32}}'\n"
        )
    }

    /// Serves until Ctrl-C or a termination.
    pub(crate) fn serve(self, backend: EngineBackend) {
        let serving = serq_gateway::serve(self.listener, Arc::new(backend), Options::default(), interrupted());
        let cut = self.runtime.block_on(serving);
        if cut > 0 {
            output::tell(&format!("{cut} connections were cut off"));
        }
    }
}

/// Ctrl-C, or a termination.
pub(crate) async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    // Without it the server goes on until it is killed.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
