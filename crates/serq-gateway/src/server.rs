//! Connections: taken, counted, drained.
//!
//! ```text
//!   serving ──shutdown──▶ draining ──last answer given──▶ returns
//!                            │
//!                       drain_time over
//!                            └──▶ what is left is cut off ──▶ returns
//! ```
//!
//! Draining, nothing new is accepted, idle connections are closed, and those with an answer
//! under way are closed after it.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::backend::Backend;
use crate::connection::{Connection, TokioTimer};
use crate::service::Service;

/// Limits of a server. Those of single parameters are in `docs/gateway.md`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most bytes a request's body may have.
    pub body_bytes: usize,
    /// The most connections at a time. Others wait to be accepted.
    pub connections: usize,
    /// How long a client may take to send a request's head, counted from the end of the answer
    /// before; and how long for the body.
    pub read_time: Duration,
    /// How long a client may leave 64 KiB unread before its connection is closed and its
    /// request cancelled.
    pub write_time: Duration,
    /// A stream that has nothing to say sends a comment this often.
    pub comment_time: Duration,
    /// How long answers under way may take after the shutdown.
    pub drain_time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            body_bytes: 4 << 20,
            connections: 1024,
            read_time: Duration::from_secs(60),
            write_time: Duration::from_secs(30),
            comment_time: Duration::from_secs(10),
            drain_time: Duration::from_secs(30),
        }
    }
}

/// What hyper holds of an answer before it waits for the client, and the longest head.
const BUFFER_BYTES: usize = 64 * 1024;

/// Serves until `shutdown` is ready, then drains. Returns how many connections were cut off.
/// Dropped, it cuts off all of them.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    backend: Arc<B>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> usize {
    let service = Arc::new(Service::new(backend, options));
    let (drain, draining) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        service.metrics.connections(connections.len());
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < service.options.connections => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connect(stream, service.clone(), draining.clone()));
                }
                Err(error) => pause_after(&error).await,
            },
        }
    }
    drop(listener);
    service.drain();
    let _ = drain.send(());
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(service.options.drain_time, all).await;
    let cut = connections.len();
    connections.shutdown().await;
    cut
}

async fn connect<B: Backend>(stream: TcpStream, service: Arc<Service<B>>, mut draining: watch::Receiver<()>) {
    // Small events must not wait for an acknowledgement. Without it they are late, not lost.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer).header_read_timeout(service.options.read_time).max_buf_size(BUFFER_BYTES);
    let stream = Connection::new(stream, service.options.write_time);
    let answer = service_fn(|request| service.answer(request));
    let mut connection = pin!(http.serve_connection(stream, answer));
    // How a connection ends is the client's to know.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = draining.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A client that went away before it was accepted costs nothing; no file descriptors left is
/// waited for rather than asked about again and again.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
