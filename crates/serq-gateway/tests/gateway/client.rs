//! A client that shows what goes over the wire: HTTP/1.1 on a socket.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

pub(crate) struct Client {
    pub(crate) stream: BufStream<TcpStream>,
}

/// A response's head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        Client { stream: BufStream::new(TcpStream::connect(address).await.unwrap()) }
    }

    /// One request on a connection of its own.
    pub(crate) async fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
        let mut client = Client::connect(address).await;
        client.send_json(path, body).await;
        client.response().await
    }

    pub(crate) async fn get(address: SocketAddr, path: &str) -> Response {
        let mut client = Client::connect(address).await;
        client.send("GET", path, &[], b"").await;
        client.response().await
    }

    pub(crate) async fn send_json(&mut self, path: &str, body: &Value) {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await;
    }

    pub(crate) async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !headers.iter().any(|(name, _)| *name == "content-length" || *name == "transfer-encoding") {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        self.stream.write_all(head.as_bytes()).await.unwrap();
        self.stream.write_all(body).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }

    pub(crate) async fn head(&mut self) -> Head {
        let status = self.line().await.expect("a status line");
        let status = status.split(' ').nth(1).expect("a status").parse().expect("a number");
        let mut headers = Vec::new();
        loop {
            let line = self.line().await.expect("a header");
            if line.is_empty() {
                return Head { status, headers };
            }
            let (name, value) = line.split_once(": ").expect("name and value");
            headers.push((name.to_owned(), value.to_owned()));
        }
    }

    /// The next chunk; `None` at the end, an error where the connection breaks off.
    pub(crate) async fn chunk(&mut self) -> Result<Option<String>, &'static str> {
        let length = self.line().await.ok_or("broken off")?;
        let length = usize::from_str_radix(&length, 16).map_err(|_| "no length")?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).await.map_err(|_| "broken off")?;
        bytes.truncate(length);
        Ok((length > 0).then(|| String::from_utf8(bytes).expect("events are text")))
    }

    pub(crate) async fn response(&mut self) -> Response {
        let Head { status, headers } = self.head().await;
        let header = |name: &str| headers.iter().find(|header| header.0 == name).map(|header| header.1.clone());
        let body = match header("content-length") {
            Some(length) => {
                let mut body = vec![0; length.parse().expect("a number")];
                self.stream.read_exact(&mut body).await.expect("the whole body");
                String::from_utf8(body).expect("text")
            }
            None => {
                let mut body = String::new();
                while let Some(chunk) = self.chunk().await.expect("a whole stream") {
                    body.push_str(&chunk);
                }
                body
            }
        };
        Response { status, headers, body }
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// What the events of a stream say. The last must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events = data(&self.body);
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.body);
        events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
    }
}

/// The `data` of events, comments left out.
pub(crate) fn data(body: &str) -> Vec<String> {
    let events = body.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    events.map(|event| event.strip_prefix("data: ").expect("a data line").to_owned()).collect()
}
