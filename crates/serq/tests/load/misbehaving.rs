//! Servers that do everything wrong: each request is counted by what went wrong, and the report comes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{load, program};

/// What a server writes to whoever asks that, before it closes.
type Behaviour = fn(&mut TcpStream, &str) -> std::io::Result<()>;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn token(id: u32) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\" a\",\"token_ids\":[{id}],\"finish_reason\":null}}]}}\n\n")
}

/// A request's head and body.
fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes).ok().filter(|count| *count > 0)?;
        all.extend_from_slice(&bytes[..count]);
        let text = String::from_utf8_lossy(&all).to_lowercase();
        let Some(end) = text.find("\r\n\r\n") else { continue };
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
        if all.len() >= end + 4 + length.unwrap_or(0) {
            return Some(all);
        }
    }
}

/// Serves everybody so; answers where.
fn serve(behaviour: Behaviour) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                if let Some(request) = read_request(&mut stream) {
                    // Whoever does not listen any more is not told.
                    let _ = behaviour(&mut stream, &String::from_utf8_lossy(&request));
                    // What was not read would break the connection under the answer.
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
            });
        }
    });
    url
}

const WAYS: &[(&str, &str, Behaviour)] = &[
    ("closes at once", "cut off", |_, _| Ok(())),
    ("is no HTTP", "garbage", |stream, _| stream.write_all(b"220 mail.example.org ESMTP\r\n")),
    ("is busy", "http 503", |stream, _| {
        let body = r#"{"error": {"message": "too many"}}"#;
        write!(stream, "HTTP/1.1 503 Busy\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }),
    ("knows no such path", "http 404", |stream, _| stream.write_all(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")),
    ("sends no stream", "garbage", |stream, _| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
    }),
    ("sends events that are no JSON", "garbage", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, "data: hello\n\n")
    }),
    ("sends events of another shape", "garbage", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, "data: {\"choices\": 7}\n\n")
    }),
    ("breaks off in the stream", "cut off", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, &token(5))
    }),
    ("breaks off in a chunk", "cut off", |stream, _| {
        stream.write_all(HEAD)?;
        stream.write_all(b"ff\r\ndata: {\"cho")
    }),
    ("ends without [DONE]", "cut off", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, &token(5))?;
        stream.write_all(b"0\r\n\r\n")
    }),
    ("says an error in the stream", "stream error", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, &token(5))?;
        chunk(stream, "data: {\"error\": {\"message\": \"the instance is gone\"}}\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    }),
    ("answers nothing", "empty", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, "data: [DONE]\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    }),
    ("never goes on", "timeout", |stream, _| {
        stream.write_all(HEAD)?;
        chunk(stream, &token(5))?;
        thread::sleep(Duration::from_secs(60));
        Ok(())
    }),
    ("has a chunk that is no number", "garbage", |stream, _| {
        stream.write_all(HEAD)?;
        stream.write_all(b"zz\r\nhello\r\n")
    }),
];

#[test]
fn servers_that_misbehave_are_counted_by_kind() {
    let path = program("misbehaving", &[]);
    for (way, kind, behaviour) in WAYS {
        let report = load(&path, &serve(*behaviour), &["--model", "m", "--arrivals", "3", "--timeout", "1"]);
        let clients = &report["clients"];
        assert_eq!(clients["failed"][kind]["count"], 3, "a server that {way}: {clients}");
        assert_eq!((&clients["answered"], &report["ended"]), (&0.into(), &0.into()), "a server that {way}");
    }
}

/// Cut anywhere, slowly, with line ends of every kind, usage and all.
#[test]
fn a_stream_in_single_bytes_is_an_answer() {
    let path = program("bytes", &[]);
    let url = serve(|stream, _| {
        stream.set_nodelay(true)?;
        stream.write_all(HEAD)?;
        let text = format!(
            ": hello\r\n\r\n{}{}data: {{\"choices\":[],\r\ndata:\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":2}}}}\r\n\r\ndata: [DONE]\r\r",
            token(5),
            token(6)
        );
        for byte in text.chars() {
            chunk(stream, &byte.to_string())?;
        }
        stream.write_all(b"0\r\n\r\n")
    });
    let report = load(&path, &url, &["--model", "m", "--arrivals", "3"]);
    let clients = &report["clients"];
    assert_eq!(clients["answered"], clients["requests"]);
    assert_eq!(clients["measured"]["output_tokens"]["p99"], 2.0);
    assert_eq!(clients["measured"]["prompt_tokens"]["p50"], 9.0);
    assert_eq!(clients["prompts_off"], clients["requests"]);
}

/// A server that takes words: each is a token, and there is one before them all.
fn words(stream: &mut TcpStream, request: &str) -> std::io::Result<()> {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let tokens = 1 + body["prompt"].as_str().unwrap().split_whitespace().count();
    if head.starts_with("POST /tokenize ") {
        let page = format!("{{\"count\": {tokens}, \"max_model_len\": 4096}}");
        return write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}", page.len());
    }
    stream.write_all(HEAD)?;
    let answer = body["max_tokens"].as_u64().unwrap();
    for _ in 0..answer {
        chunk(stream, "data: {\"choices\": [{\"text\": \" word\"}]}\n\n")?;
    }
    let usage = format!("{{\"prompt_tokens\": {tokens}, \"completion_tokens\": {answer}}}");
    chunk(stream, &format!("data: {{\"choices\": [], \"usage\": {usage}}}\n\ndata: [DONE]\n\n"))?;
    stream.write_all(b"0\r\n\r\n")
}

#[test]
fn prompts_of_words_have_the_tokens_drawn_where_the_server_counts_them() {
    let report = load(
        &program("words", &[]),
        &serve(words),
        &["--model", "m", "--arrivals", "10", "--seed", "2", "--tokens-by", "text"],
    );
    let clients = &report["clients"];
    assert_eq!((&clients["answered"], clients["failed"].as_object().unwrap().len()), (&clients["requests"], 0));
    assert_eq!((&clients["prompts_off"], &clients["answers_off"]), (&0.into(), &0.into()), "{report}");
    assert!(clients["requests"].as_u64().unwrap() > 12, "sessions go on");
}
