//! The server in front of a backend without a model, to try clients on:
//!
//! ```console
//! $ cargo run -p serq-gateway --example echo -- 127.0.0.1:8000
//! http://127.0.0.1:8000
//! ```
//!
//! What it answers is in `tests/gateway/fake.rs`. It ends with its standard input.

#[path = "../tests/gateway/fake.rs"]
mod fake;

use std::io::Write as _;

use serq_gateway::Options;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    let input_ends = async {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    };
    let cut = serq_gateway::serve(listener, fake::Fake::new(), Options::default(), input_ends).await;
    writeln!(std::io::stdout(), "{cut} connections cut off")
}
