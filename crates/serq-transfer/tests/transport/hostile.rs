//! Who may say what to a node's port: only who knows the token, and only what is within the rules.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use serq_transfer::memory::Region;
use serq_transfer::nixl::Agent;
use serq_transfer::transport::{Event, LinkId, Node, Options, Piece, PostId, Token, Way, WindowId};
use sha2::Sha256;

use crate::peer::{PATIENCE, ended, fill, link, nixl_is_there, node, pattern, until};

const BYTES: usize = 1 << 16;

fn turned_away(node: &Node) -> String {
    until(node, "a word about who was turned away", |event| match event {
        Event::TurnedAway { why, .. } => Some(why.clone()),
        Event::Linked { .. } => panic!("it was let in"),
        _ => None,
    })
}

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads until the node ends the connection.
fn is_ended(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // It may be reset, as not all that was said was heard.
    let _ = stream.read_to_end(&mut rest);
}

/// Still answers who knows the token.
fn still_serves(node: &Node) {
    let other = crate::peer::node(Way::Tcp, BYTES);
    link(&other, node.address());
}

#[test]
fn who_knows_another_token_is_turned_away_and_told_of_once() {
    let node = node(Way::Tcp, BYTES);
    let memory = Arc::new(Region::new(BYTES).unwrap());
    let options = Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        reached_at: None,
        token: Token::new("a token that is another one").unwrap(),
        incarnation: 1,
        ways: vec![Way::Tcp],
    };
    let stranger = Node::start(options, memory).unwrap();
    for _ in 0..3 {
        stranger.dial(node.address());
        let why = until(&stranger, "a refusal", |event| match event {
            Event::NotLinked { why, .. } => Some(why.clone()),
            _ => None,
        });
        assert_eq!(why, "it turned the greeting away: is the token the same?");
    }
    assert_eq!(turned_away(&node), "it does not know the token");
    assert_eq!(node.next(Instant::now() + Duration::from_millis(20)), None, "once for a host and a reason");
    still_serves(&node);
}

#[test]
fn who_is_reached_elsewhere_is_not_linked_here() {
    let memory = || Arc::new(Region::new(BYTES).unwrap());
    let anywhere = Options {
        listen: "0.0.0.0:0".parse().unwrap(),
        reached_at: None,
        token: crate::peer::token(),
        incarnation: 1,
        ways: vec![Way::Tcp],
    };
    let node = Node::start(anywhere.clone(), memory()).unwrap();
    let port = node.address().port();
    let other = crate::peer::node(Way::Tcp, BYTES);
    let here = SocketAddr::from(([127, 0, 0, 1], port));
    other.dial(here);
    let why = until(&other, "a refusal", |event| match event {
        Event::NotLinked { why, .. } => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why, format!("it says that it is reached at 0.0.0.0:{port}"));
    drop(node);
    let known = Options { listen: SocketAddr::from(([0, 0, 0, 0], port)), reached_at: Some(here), ..anywhere };
    let node = Node::start(known, memory()).unwrap();
    assert_eq!(node.address(), here);
    link(&other, here);
}

#[test]
fn a_short_token_is_refused() {
    assert_eq!(Token::new("secret").unwrap_err(), "a token of 6 bytes can be guessed: at least 16 are meant");
}

/// What a dialler says, proven with a token, for a listener's nonce.
fn greeting(token: &str, theirs: &[u8], purpose: u8, pair: u64, listens: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(listens) = listens else { panic!("an address of four bytes") };
    let mut said = vec![purpose];
    said.extend_from_slice(&pair.to_le_bytes());
    said.extend_from_slice(&listens.ip().to_ipv6_mapped().octets());
    said.extend_from_slice(&listens.port().to_le_bytes());
    said.extend_from_slice(&5_u64.to_le_bytes());
    said.extend_from_slice(&[1; 32]);
    let mut proof = Hmac::<Sha256>::new_from_slice(token.as_bytes()).unwrap();
    for part in [&b"dialler"[..], theirs, &said] {
        proof.update(part);
    }
    said.extend_from_slice(&proof.finalize().into_bytes());
    said
}

/// Greets as somebody who knows the token.
fn greeted(node: &Node, purpose: u8, pair: u64) -> TcpStream {
    let mut stream = connect(node);
    let mut hello = [0; 40];
    stream.read_exact(&mut hello).unwrap();
    let said = greeting("a token that both of them know", &hello[8..], purpose, pair, "127.0.0.1:9".parse().unwrap());
    stream.write_all(&said).unwrap();
    let mut proof = [0; 26 + 32];
    stream.read_exact(&mut proof).unwrap();
    stream
}

/// A link of somebody who knows the token, to break the rules with.
fn insider(node: &Node, pair: u64) -> (TcpStream, TcpStream) {
    let (mut messages, bytes) = (greeted(node, 1, pair), greeted(node, 2, pair));
    say(&mut messages, offer(&["tcp"]).to_string().as_bytes());
    heard(&mut messages);
    say(&mut messages, b"\"tcp\"");
    until(node, "the link", |event| matches!(event, Event::Linked { .. }).then_some(()));
    (messages, bytes)
}

/// What an insider says of itself.
fn offer(ways: &[&str]) -> serde_json::Value {
    let place = serde_json::to_value(Region::new(16).unwrap().place()).unwrap();
    serde_json::json!({"ways": ways, "place": place})
}

fn heard(stream: &mut TcpStream) -> serde_json::Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut message).unwrap();
    serde_json::from_slice(&message).unwrap()
}

fn say(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(&[&(message.len() as u32).to_le_bytes(), message].concat()).unwrap();
}

fn lost(node: &Node) -> String {
    until(node, "the end of the link", |event| match event {
        Event::Lost { why, .. } => Some(why.clone()),
        _ => None,
    })
}

#[test]
fn what_was_overheard_proves_nothing_later() {
    let node = node(Way::Tcp, BYTES);
    let mut first = connect(&node);
    let mut hello = [0; 40];
    first.read_exact(&mut hello).unwrap();
    let said = greeting("a token that both of them know", &hello[8..], 1, 1, "127.0.0.1:9".parse().unwrap());
    first.write_all(&said).unwrap();
    first.read_exact(&mut [0; 58]).unwrap();
    // The same words once more.
    let mut second = connect(&node);
    second.read_exact(&mut hello).unwrap();
    second.write_all(&said).unwrap();
    is_ended(second);
    assert_eq!(turned_away(&node), "it does not know the token");
}

#[test]
fn garbage_and_silence_are_turned_away() {
    let node = node(Way::Tcp, BYTES);
    let mut garbage = connect(&node);
    garbage.write_all(&[0xff; 4096]).unwrap();
    is_ended(garbage);
    assert_eq!(turned_away(&node), "it does not know the token");
    // It speaks HTTP.
    let mut browser = connect(&node);
    browser.write_all(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200)).as_bytes()).unwrap();
    is_ended(browser);
    // It says a part and waits: after five seconds it is turned away.
    let mut slow = connect(&node);
    slow.write_all(&[1; 10]).unwrap();
    is_ended(slow);
    assert_eq!(turned_away(&node), "it took too long to say who it is");
    still_serves(&node);
}

#[test]
fn many_half_open_connections_do_not_keep_others_out_for_ever() {
    let node = node(Way::Tcp, BYTES);
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(&node)).collect();
    assert_eq!(turned_away(&node), "too many others are being greeted");
    silent.into_iter().for_each(is_ended);
    still_serves(&node);
}

#[test]
fn two_connections_of_different_diallers_make_no_link() {
    let node = node(Way::Tcp, BYTES);
    // A pair's number is secret as nobody overhears it; if it is guessed, both must be for messages and for bytes.
    let first = greeted(&node, 1, 77);
    let second = greeted(&node, 1, 77);
    is_ended(second);
    is_ended(first);
    assert_eq!(turned_away(&node), "its two connections do not belong together");
}

#[test]
fn an_insider_that_breaks_the_rules_loses_its_link_and_nothing_else_happens() {
    let node = node(Way::Tcp, BYTES);
    fill(node.memory(), 1);
    let mut before = vec![0; BYTES];
    node.memory().read(0, &mut before).unwrap();
    let header = |kind: u8, post: u64, window: u64, pieces: u32| {
        [&[kind][..], &post.to_le_bytes(), &window.to_le_bytes(), &pieces.to_le_bytes()].concat()
    };
    let cases: [(&str, Vec<u8>); 7] = [
        ("it sent something that is nothing", header(99, 0, 0, 0)),
        ("it asked for too many pieces at once", header(0, 0, 0, u32::MAX)),
        ("it sent bytes nobody asked for", [header(1, 5, 0, 0), vec![7; 100]].concat()),
        ("it answered a read nobody asked for", header(2, 5, 0, 0)),
        ("it wants bytes fetched that are not mapped", [header(4, 5, 1, 1), vec![0; 24]].concat()),
        ("it answered a write nobody asked for", header(5, 5, 1, 0)),
        ("it went away", header(3, 5, 1, 1)[..10].to_vec()),
    ];
    for (pair, (why, said)) in cases.into_iter().enumerate() {
        let (messages, mut bytes) = insider(&node, pair as u64);
        bytes.write_all(&said).unwrap();
        if why == "it went away" {
            drop(bytes);
        } else {
            is_ended(bytes);
        }
        assert_eq!(lost(&node), why);
        drop(messages);
    }
    let (mut messages, bytes) = insider(&node, 50);
    messages.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(lost(&node), "it sent a message that is too long");
    is_ended(bytes);
    let mut after = vec![0; BYTES];
    node.memory().read(0, &mut after).unwrap();
    assert!(before == after);
    still_serves(&node);
}

#[test]
fn a_write_is_not_answered_with_bytes() {
    let node = node(Way::Tcp, BYTES);
    fill(node.memory(), 1);
    let (_messages, mut bytes) = insider(&node, 1);
    // What is written to the insider is not what it may write.
    node.write(LinkId(0), PostId(5), WindowId(1), vec![Piece { here: 0, there: 0, bytes: 1000 }]);
    bytes.read_exact(&mut [0; 21 + 16 + 1000]).unwrap();
    let head = [&[1_u8][..], &5_u64.to_le_bytes(), &0_u64.to_le_bytes(), &0_u32.to_le_bytes()].concat();
    bytes.write_all(&[&head[..], &[9; 1000]].concat()).unwrap();
    assert_eq!(lost(&node), "it sent bytes nobody asked for");
    let mut after = vec![0; 1000];
    node.memory().read(0, &mut after).unwrap();
    assert!(after == pattern(1, 0, 1000));
}

#[test]
fn who_writes_and_never_listens_takes_no_memory() {
    let node = node(Way::Tcp, BYTES);
    let (_messages, mut bytes) = insider(&node, 1);
    let write = [&[3_u8][..], &5_u64.to_le_bytes(), &0_u64.to_le_bytes(), &0_u32.to_le_bytes()].concat();
    let many = write.repeat(10_000);
    // Two million answers are more than the system keeps for somebody who takes none.
    (0..200).take_while(|_| bytes.write_all(&many).is_ok()).for_each(drop);
    assert_eq!(lost(&node), "it asked for more at once than it may");
}

#[test]
fn who_says_more_than_is_heard_waits() {
    let node = node(Way::Tcp, BYTES);
    let (mut messages, _bytes) = insider(&node, 1);
    messages.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let message = [&(1_u32 << 20).to_le_bytes()[..], &vec![7; 1 << 20]].concat();
    // Nobody takes them: 16 MiB wait here, and what the system's buffers hold.
    let said = (0..400).take_while(|_| messages.write_all(&message).is_ok()).count();
    assert!((16..100).contains(&said), "{said} MiB were taken");
    let heard = (0..16).filter(|_| matches!(node.next(Instant::now() + PATIENCE), Some(Event::Message { .. }))).count();
    assert_eq!(heard, 16);
}

#[test]
fn who_asks_and_never_listens_takes_no_memory() {
    let node = node(Way::Tcp, BYTES);
    let (_messages, mut bytes) = insider(&node, 1);
    // Reads of everything, whose answers nobody takes: more than may wait.
    let read = |post: u64| {
        let head = [&[0_u8][..], &post.to_le_bytes(), &0_u64.to_le_bytes(), &1_u32.to_le_bytes()].concat();
        [&head[..], &0_u64.to_le_bytes(), &(BYTES as u64).to_le_bytes()].concat()
    };
    for post in 0..10_000 {
        if bytes.write_all(&read(post)).is_err() {
            break;
        }
    }
    assert_eq!(lost(&node), "it asked for more at once than it may");
}

/// Agents that say of themselves what is not so: the link goes by TCP, and why is told.
#[test]
fn an_insider_whose_agents_are_none_is_linked_by_tcp() {
    if !nixl_is_there() {
        return;
    }
    let node = node(Way::Nixl, BYTES);
    let agent = |metadata: &str| serde_json::json!({"metadata": metadata, "address": 4096, "bytes": u64::MAX});
    let garbage = "NIXL makes nothing of what the peer says of its agent";
    for (pair, metadata) in ["", "zz", "00", &"ab".repeat(1000)].into_iter().enumerate() {
        let (mut messages, _bytes) = (greeted(&node, 1, pair as u64), greeted(&node, 2, pair as u64));
        let mut offer = offer(&["nixl"]);
        offer["agents"] = serde_json::json!({"links": agent(metadata), "trials": agent(metadata), "mark": 1});
        say(&mut messages, offer.to_string().as_bytes());
        let answer = heard(&mut messages);
        assert_eq!((&answer["ways"], &answer["agents"]), (&serde_json::json!([]), &serde_json::Value::Null));
        // It insists.
        say(&mut messages, b"\"nixl\"");
        if pair == 0 {
            let why = until(&node, "a word about the way", |event| match event {
                Event::NotOffered { way: Way::Nixl, why } => Some(why.clone()),
                _ => None,
            });
            assert_eq!(why, garbage);
        }
        until(&node, "the link", |event| matches!(event, Event::Linked { way: Way::Tcp, .. }).then_some(()));
    }
}

/// An agent that says it has more memory than it has: NIXL refuses the read, and the link is over.
#[test]
fn an_insider_that_lies_about_its_memory_is_not_read() {
    if !nixl_is_there() {
        return;
    }
    let node = node(Way::Nixl, BYTES);
    fill(node.memory(), 1);
    let (mut messages, _bytes) = (greeted(&node, 1, 1), greeted(&node, 2, 1));
    let mark = Region::new(8).unwrap();
    mark.write(0, &7_u64.to_le_bytes()).unwrap();
    let mut links = Agent::new(&Arc::new(Region::new(BYTES).unwrap()), true).unwrap();
    let mut trials = Agent::new(&Arc::new(mark), true).unwrap();
    let mut says = serde_json::json!({"links": links.offer(), "trials": trials.offer(), "mark": 7});
    says["links"]["bytes"] = (1_u64 << 40).into();
    let mut offer = offer(&["nixl"]);
    offer["agents"] = says;
    say(&mut messages, offer.to_string().as_bytes());
    let theirs = heard(&mut messages);
    let joined =
        |agent: &mut Agent, name: &str| agent.join(&serde_json::from_value(theirs["agents"][name].clone()).unwrap());
    joined(&mut links, "links").unwrap();
    joined(&mut trials, "trials").unwrap();
    // It reads nothing itself: only what the node finds out of it counts.
    for _ in 0..3 {
        say(&mut messages, b"true");
        assert_eq!(heard(&mut messages), true);
    }
    say(&mut messages, b"\"nixl\"");
    let link = until(&node, "the link", |event| match event {
        Event::Linked { link, way: Way::Nixl, .. } => Some(*link),
        _ => None,
    });
    node.read(link, PostId(1), vec![Piece { here: 0, there: 0, bytes: 100 }]);
    assert!(ended(&node, PostId(1)));
    node.read(link, PostId(2), vec![Piece { here: 100, there: (1 << 40) - 100, bytes: 100 }]);
    assert!(!ended(&node, PostId(2)));
    assert_eq!(lost(&node), "its memory cannot be read any more");
    let mut after = vec![0; BYTES];
    node.memory().read(0, &mut after).unwrap();
    assert!(after == [vec![0; 100], pattern(1, 100, BYTES as u64 - 100)].concat());
}
