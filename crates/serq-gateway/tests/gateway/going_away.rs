//! Clients that go away, clients that don't read, and the server's own end.

use std::time::Duration;

use serde_json::json;
use serq_gateway::Options;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::client::{self, Client};
use crate::{Server, start, start_with};

const COMPLETIONS: &str = "/v1/completions";

async fn wait_for_metric(server: &Server, line: &str) {
    loop {
        let page = Client::get(server.address, "/metrics").await.body;
        if page.lines().any(|other| other == line) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn draining_lets_answers_end_and_takes_nothing_new() {
    let server = start().await;
    let mut idle = Client::connect(server.address).await;
    idle.send("GET", "/health", &[], b"").await;
    assert_eq!(idle.response().await.status, 200);
    let mut silent = Client::connect(server.address).await;
    let mut streaming = Client::connect(server.address).await;
    streaming.send_json(COMPLETIONS, &json!({"model": "gated", "prompt": "abc", "stream": true})).await;
    assert_eq!(streaming.head().await.status, 200);
    server.fake.wait_for_live(1).await;

    server.stop.send(()).expect("it runs");
    assert!(idle.chunk().await.is_err(), "an idle connection is closed");
    assert!(silent.chunk().await.is_err(), "and one that has said nothing yet");
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens");
    server.fake.permit(100);
    let mut text = String::new();
    while let Some(chunk) = streaming.chunk().await.expect("the stream goes on") {
        text.push_str(&chunk);
    }
    assert_eq!(client::data(&text).last().map(String::as_str), Some("[DONE]"));
    assert_eq!(server.over.await.expect("no panic"), 0);
}

#[tokio::test]
async fn what_is_under_way_at_the_end_of_the_drain_is_cut_off() {
    let server = start_with(Options { drain_time: Duration::ZERO, ..Options::default() }).await;
    let mut streaming = Client::connect(server.address).await;
    streaming.send_json(COMPLETIONS, &json!({"model": "silent", "prompt": "abc", "stream": true})).await;
    assert_eq!(streaming.head().await.status, 200);
    let mut waiting = Client::connect(server.address).await;
    waiting.send_json(COMPLETIONS, &json!({"model": "silent", "prompt": "abc"})).await;
    server.fake.wait_for_live(2).await;
    server.stop.send(()).expect("it runs");
    assert_eq!(server.over.await.expect("no panic"), 2);
    server.fake.wait_for_live(0).await;
    assert!(streaming.chunk().await.is_err());
}

#[tokio::test]
async fn clients_that_go_away_leave_nothing_running() {
    let server = start().await;
    let mut streams = Vec::new();
    for count in 1..=500_usize {
        let mut client = Client::connect(server.address).await;
        let model = if count % 2 == 0 { "silent" } else { "gated" };
        let mut body = json!({"model": model, "prompt": "abc", "n": 3, "ignore_eos": true, "max_tokens": 4000});
        body["stream"] = (count % 3 != 0).into();
        client.send_json(COMPLETIONS, &body).await;
        streams.push(client);
        if count % 50 == 0 {
            server.fake.permit(20);
            server.fake.wait_for_live(50).await;
            streams.clear();
            server.fake.wait_for_live(0).await;
        }
    }
    for model in ["silent", "gated"] {
        let line = format!(r#"serq_requests_total{{model_name="{model}",outcome="cancelled"}} 250"#);
        wait_for_metric(&server, &line).await;
        wait_for_metric(&server, &format!(r#"serq_requests_in_flight{{model_name="{model}"}} 0"#)).await;
    }
}

#[tokio::test]
async fn who_closes_the_sending_half_is_gone() {
    let server = start().await;
    let mut client = Client::connect(server.address).await;
    client.send_json(COMPLETIONS, &json!({"model": "silent", "prompt": "abc"})).await;
    server.fake.wait_for_live(1).await;
    client.stream.get_mut().shutdown().await.expect("it is open");
    server.fake.wait_for_live(0).await;
}

/// Hyper doesn't look for the end of a connection behind a request that waits its turn: the
/// comments of the stream find it.
#[tokio::test]
async fn a_client_that_sent_two_requests_is_missed_at_the_next_write() {
    let options = Options { comment_time: Duration::from_millis(5), ..Options::default() };
    let server = start_with(options).await;
    let mut client = Client::connect(server.address).await;
    client.send_json(COMPLETIONS, &json!({"model": "silent", "prompt": "abc", "stream": true})).await;
    server.fake.wait_for_live(1).await;
    client.send("GET", "/health", &[], b"").await;
    drop(client);
    server.fake.wait_for_live(0).await;
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let server = start_with(Options { connections: 1, ..Options::default() }).await;
    let mut first = Client::connect(server.address).await;
    first.send_json(COMPLETIONS, &json!({"model": "silent", "prompt": "abc"})).await;
    server.fake.wait_for_live(1).await;
    let mut second = Client::connect(server.address).await;
    second.send_json(COMPLETIONS, &json!({"model": "echo", "prompt": "abc"})).await;
    let early = tokio::time::timeout(Duration::from_millis(20), second.head()).await;
    assert!(early.is_err(), "one at a time");
    drop(first);
    assert_eq!(second.response().await.status, 200);
}

#[tokio::test]
async fn a_prompt_that_is_answered_is_let_go_before_the_others() {
    let server = start().await;
    let mut client = Client::connect(server.address).await;
    client.send_json(COMPLETIONS, &json!({"model": "gated", "prompt": ["a", "a long one"]})).await;
    server.fake.wait_for_live(2).await;
    // Two tokens and an end, while the other has as many.
    server.fake.permit(6);
    server.fake.wait_for_live(1).await;
    server.fake.permit(100);
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let options = Options { write_time: Duration::from_millis(50), ..Options::default() };
    let server = start_with(options).await;
    let mut client = Client::connect(server.address).await;
    let body = json!({"model": "endless", "prompt": "abc", "ignore_eos": true, "max_tokens": 1 << 29, "stream": true});
    client.send_json(COMPLETIONS, &body).await;
    server.fake.wait_for_live(1).await;
    server.fake.wait_for_live(0).await;
}
