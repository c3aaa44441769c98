//! One client's requests over HTTP/1.1.
//!
//! ```text
//!   connect ─▶ POST …/completions ─▶ status ─▶ events: tokens … ─▶ usage ─▶ [DONE]
//!      │              │                 │          │
//!   `connect`      `cut off`        `http 503`  `cut off`, `garbage`, `stream error`, `timeout`
//! ```
//!
//! # Invariants
//!
//! - Whatever a server does, a request ends: with an answer or with one [`Trouble`].
//! - Bytes are stamped when they are read, before they are looked at.
//! - A connection is used again only when the answer before it was read to its end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::rt::ReadBufCursor;
use hyper::{Request, Response};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::sse::EventReader;

/// A server that does not take a connection in that time is not there.
const CONNECT: Duration = Duration::from_secs(10);
/// The most bytes of a body that is no stream.
const BODY_MOST: usize = 1 << 20;

/// Where requests go.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    /// Host and port, as in the URL.
    pub(crate) authority: String,
    /// `/v1`.
    pub(crate) base: String,
}

impl Endpoint {
    /// Of `http://HOST:PORT[/v1]`.
    pub(crate) fn of(url: &str) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("http://") else {
            return Err(match url.starts_with("https://") {
                true => "it is https, and no TLS is spoken here: put a plain endpoint in between".into(),
                false => "it must be http://HOST:PORT, or http://HOST:PORT/v1".into(),
            });
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = path.trim_end_matches('/');
        let odd = |text: &str| text.contains(|c: char| c.is_whitespace() || c.is_control() || "?#@".contains(c));
        if authority.is_empty() || odd(authority) || odd(path) {
            return Err("it must be http://HOST:PORT, or http://HOST:PORT/v1".into());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        let base = if path.is_empty() { "/v1" } else { path };
        Ok(Self { authority, base: base.to_owned() })
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// In a few words, the same for all of the kind: `connect`, `http 503`.
    pub(crate) kind: String,
    /// What happened this time.
    pub(crate) message: String,
}

impl Trouble {
    fn new(kind: &str, message: impl ToString) -> Self {
        Self { kind: kind.to_owned(), message: message.to_string() }
    }
}

/// Tokens as a server counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    pub(crate) cached_tokens: Option<u64>,
}

/// What came of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// The answer's tokens, where the server says them.
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    /// When events with tokens were read, and how many had come by then.
    pub(crate) came: Vec<(Instant, u64)>,
    pub(crate) usage: Option<Usage>,
    /// What the server observed of it.
    pub(crate) observed: BTreeMap<String, f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Event {
    choices: Vec<Choice>,
    usage: Option<Usage>,
    serq: Option<BTreeMap<String, f64>>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Choice {
    text: Option<String>,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
}

/// A client with its connections.
pub(crate) struct Client {
    endpoint: Endpoint,
    /// For a whole request.
    patience: Duration,
    idle: Mutex<Vec<SendRequest<Whole>>>,
}

impl Client {
    pub(crate) fn new(endpoint: Endpoint, patience: Duration) -> Self {
        Self { endpoint, patience, idle: Mutex::default() }
    }

    /// Asks for a stream. `first` is told when its first token was read.
    pub(crate) async fn ask(&self, body: Vec<u8>, first: impl FnMut(Instant)) -> Result<Answer, Trouble> {
        let waited = || Trouble::new("timeout", format!("no end of it within {} s", self.patience.as_secs_f64()));
        timeout(self.patience, self.stream(body, first)).await.unwrap_or_else(|_| Err(waited()))
    }

    async fn stream(&self, body: Vec<u8>, mut first: impl FnMut(Instant)) -> Result<Answer, Trouble> {
        let path = format!("{}/completions", self.endpoint.base);
        let (response, sender) = self.send("POST", &path, body).await?;
        let status = response.status();
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !status.is_success() {
            let told = whole(response.into_body()).await.unwrap_or_default();
            return Err(Trouble::new(&format!("http {}", status.as_u16()), said(&told)));
        }
        if !kind.starts_with("text/event-stream") {
            return Err(Trouble::new("garbage", format!("a stream was asked for, and `{kind}` came")));
        }
        let mut answer = Answer::default();
        let mut reader = EventReader::default();
        let mut body = response.into_body();
        let mut done = false;
        let mut tokens = 0;
        while let Some(frame) = next_frame(&mut body).await {
            let now = Instant::now();
            let bytes = frame.map_err(|error| trouble_of(&error))?;
            for event in reader.read(&bytes).map_err(|_| Trouble::new("garbage", "an event has no end"))? {
                if event == b"[DONE]" {
                    done = true;
                    continue;
                }
                let came = answer.take(&event)?;
                if came > 0 {
                    if tokens == 0 {
                        first(now);
                    }
                    tokens += came;
                    answer.came.push((now, tokens));
                }
            }
        }
        if !done {
            return Err(Trouble::new("cut off", format!("the stream ended after {tokens} tokens, without [DONE]")));
        }
        if tokens == 0 {
            return Err(Trouble::new("empty", "an answer without a token"));
        }
        self.keep(sender);
        Ok(answer)
    }

    /// The body of an answer that is no stream, and its status.
    pub(crate) async fn fetch(&self, method: &str, path: &str, body: Vec<u8>) -> Result<(u16, Vec<u8>), Trouble> {
        let all = async {
            let (response, sender) = self.send(method, path, body).await?;
            let status = response.status().as_u16();
            let body = whole(response.into_body()).await?;
            self.keep(sender);
            Ok((status, body))
        };
        let waited = || Trouble::new("timeout", "no answer");
        timeout(self.patience.min(CONNECT), all).await.unwrap_or_else(|_| Err(waited()))
    }

    /// What the endpoint's models are: its page, if it has one.
    pub(crate) async fn models(&self) -> Result<(u16, Vec<u8>), Trouble> {
        self.fetch("GET", &format!("{}/models", self.endpoint.base), Vec::new()).await
    }

    fn keep(&self, sender: SendRequest<Whole>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    fn take(&self) -> Option<SendRequest<Whole>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(Response<Incoming>, SendRequest<Whole>), Trouble> {
        let body = Bytes::from(body);
        let request = || {
            Request::builder()
                .method(method)
                .uri(path)
                .header("host", &self.endpoint.authority)
                .header("content-type", "application/json")
                .header("x-serq-observe", "1")
                .body(Whole(Some(body.clone())))
                .map_err(|error| Trouble::new("connect", error))
        };
        // One that the server has closed meanwhile says so at once: nothing was asked yet.
        while let Some(mut sender) = self.take() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.send_request(request()?).await {
                Ok(response) => return Ok((response, sender)),
                Err(error) if error.is_canceled() || error.is_closed() || error.is_incomplete_message() => {}
                Err(error) => return Err(trouble_of(&error)),
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request()?).await.map_err(|error| trouble_of(&error))?;
        Ok((response, sender))
    }

    async fn connect(&self) -> Result<SendRequest<Whole>, Trouble> {
        let authority = &self.endpoint.authority;
        let lost = |error: &dyn std::fmt::Display| Trouble::new("connect", format!("{authority}: {error}"));
        let stream = timeout(CONNECT, TcpStream::connect(authority)).await;
        let stream = stream.map_err(|_| lost(&"no answer"))?.map_err(|error| lost(&error))?;
        // Small pieces go at once.
        stream.set_nodelay(true).map_err(|error| lost(&error))?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(Socket(stream)).await.map_err(|error| lost(&error))?;
        // Its end is seen by whoever reads the answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Answer {
    /// An event of the stream. Answers how many tokens came with it.
    fn take(&mut self, event: &[u8]) -> Result<u64, Trouble> {
        let Ok(Event { choices, usage, serq, error }) = serde_json::from_slice(event) else {
            return Err(Trouble::new("garbage", format!("an event is no answer's: {}", said(event))));
        };
        if error.is_some() {
            return Err(Trouble::new("stream error", said(event)));
        }
        let mut came = 0;
        for Choice { text, token_ids, finish_reason } in choices {
            let text = text.unwrap_or_default();
            // Without ids an event is a token, unless it only ends the answer.
            let without = u64::from(!text.is_empty() || finish_reason.is_none());
            came += token_ids.as_ref().map_or(without, |ids| ids.len() as u64);
            self.ids.extend(token_ids.unwrap_or_default());
            self.text += &text;
        }
        self.usage = usage.or(self.usage);
        self.observed.extend(serq.unwrap_or_default());
        Ok(came)
    }
}

/// What a server says of an error, or the beginning of whatever it says.
fn said(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let message = json.as_ref().and_then(|json| json["error"]["message"].as_str()).map(str::to_owned);
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    text.trim().to_owned()
}

fn trouble_of(error: &hyper::Error) -> Trouble {
    let source = std::error::Error::source(error);
    let cause = source.map_or_else(String::new, |cause| format!(": {cause}"));
    // A chunk's length that is none.
    let invalid = source
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .is_some_and(|cause| matches!(cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData));
    let kind = if invalid || error.is_parse() || error.is_parse_too_large() { "garbage" } else { "cut off" };
    Trouble::new(kind, format!("{error}{cause}"))
}

async fn next_frame(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await? {
            // Trailers say nothing here.
            Ok(frame) => match frame.into_data() {
                Ok(bytes) => return Some(Ok(bytes)),
                Err(_) => continue,
            },
            Err(error) => return Some(Err(error)),
        }
    }
}

async fn whole(body: Incoming) -> Result<Vec<u8>, Trouble> {
    let mut body = body;
    let mut all = Vec::new();
    while let Some(bytes) = next_frame(&mut body).await {
        all.extend_from_slice(&bytes.map_err(|error| trouble_of(&error))?);
        if all.len() > BODY_MOST {
            return Err(Trouble::new("garbage", "a body has no end"));
        }
    }
    Ok(all)
}

/// A body that is there.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A connection as hyper wants it.
struct Socket(TcpStream);

impl hyper::rt::Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // By way of a buffer of our own: to read into hyper's would be `unsafe`.
        let mut bytes = [0; 8192];
        let room = into.remaining().min(bytes.len());
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut buffer))?;
        into.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let of = |url| Endpoint::of(url).map(|e| format!("{} {}", e.authority, e.base));
        assert_eq!(of("http://127.0.0.1:8000"), Ok("127.0.0.1:8000 /v1".into()));
        assert_eq!(of("http://127.0.0.1:8000/v1/"), Ok("127.0.0.1:8000 /v1".into()));
        assert_eq!(of("http://host/a/v1"), Ok("host:80 /a/v1".into()));
        assert_eq!(of("http://[::1]:80"), Ok("[::1]:80 /v1".into()));
        for wrong in ["", "127.0.0.1:8000", "http://", "http:///v1", "https://a", "http://a b", "http://a/v1?x=1"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
