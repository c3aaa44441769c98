//! The server from outside, in front of a backend without a model.

mod answers;
mod client;
mod errors;
mod fake;
mod going_away;
mod mutations;

use std::net::SocketAddr;
use std::sync::Arc;

use serq_gateway::Options;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake::Fake;

/// A server and its backend.
struct Server {
    address: SocketAddr,
    fake: Arc<Fake>,
    stop: oneshot::Sender<()>,
    /// How many connections were cut off.
    over: JoinHandle<usize>,
}

async fn start() -> Server {
    start_with(Options::default()).await
}

async fn start_with(options: Options) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let fake = Fake::new();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        // A test that ends drops the sender: that is no shutdown.
        if stopped.await.is_err() {
            std::future::pending().await
        }
    };
    let over = tokio::spawn(serq_gateway::serve(listener, fake.clone(), options, shutdown));
    Server { address, fake, stop, over }
}
