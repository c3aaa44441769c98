//! The promises of [`serq_transfer::transport`], one test each, for every way.
//!
//! By NIXL they are tested where it is installed.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serq_transfer::memory::Region;
use serq_transfer::transport::{Event, LinkId, Node, Options, Piece, PostId, Way, WindowId};

use crate::peer::{PATIENCE, Peer, ended, fill, nixl_is_there, node, pattern, sum, until};

const BYTES: usize = 1 << 20;

/// Dials a peer, and waits for the link.
fn link(node: &Node, peer: &Peer) -> (LinkId, u64) {
    let (link, incarnation, way) = crate::peer::link(node, peer.address);
    assert_eq!(way, peer.way);
    (link, incarnation)
}

/// A test for each way.
macro_rules! for_each_way {
    ($($name:ident),* $(,)?) => {
        mod tcp {
            $(#[test] fn $name() { super::$name(serq_transfer::transport::Way::Tcp) })*
        }
        mod shm {
            $(#[test] fn $name() { super::$name(serq_transfer::transport::Way::Shm) })*
        }
        mod nixl {
            $(#[test] fn $name() {
                if crate::peer::nixl_is_there() {
                    super::$name(serq_transfer::transport::Way::Nixl)
                }
            })*
        }
    };
}

for_each_way!(
    what_is_read_is_what_was_there,
    what_is_written_is_there,
    both_sides_read_over_one_link,
    nothing_lands_outside_of_an_open_window,
    places_that_are_not_there_are_refused_and_the_link_stands,
    messages_come_in_order_beside_bytes,
    a_killed_peer_ends_its_posts,
    a_stopped_peer_is_cut_and_nothing_lands_after,
    a_restarted_peer_is_somebody_else,
    a_link_that_is_cut_while_bytes_come_changes_nothing_after,
    as_many_pieces_as_there_may_be_land,
    too_much_at_once_is_refused,
);

/// Where NIXL is named and is not there, that is told, and links go by the next way.
#[test]
fn nixl_that_is_not_there_is_no_way() {
    let nowhere = "/nowhere";
    if std::env::var("SERQ_NIXL").is_ok_and(|folder| folder == nowhere) {
        let start = || {
            let ways = vec![Way::Nixl, Way::Shm, Way::Tcp];
            let (listen, token) = ("127.0.0.1:0".parse().unwrap(), crate::peer::token());
            let options = Options { listen, reached_at: None, token, incarnation: 1, ways };
            Node::start(options, Arc::new(Region::new(BYTES).unwrap())).unwrap()
        };
        let (node, other) = (start(), start());
        let why = until(&node, "a word about the way", |event| match event {
            Event::NotOffered { way: Way::Nixl, why } => Some(why.clone()),
            _ => None,
        });
        let expected =
            if cfg!(feature = "nixl") { "NIXL is not there: /nowhere/" } else { "this program was built without" };
        assert!(why.starts_with(expected), "{why}");
        assert_eq!(crate::peer::link(&node, other.address()).2, Way::Shm);
        return;
    }
    // NIXL is looked for once in a process.
    let this = "conformance::nixl_that_is_not_there_is_no_way";
    let mut again = Command::new(std::env::current_exe().unwrap());
    assert!(again.args(["--exact", this]).env("SERQ_NIXL", nowhere).status().unwrap().success());
}

/// Over TCP UCX has the other process answer reads: then there is no way by NIXL, and the link is TCP's own.
#[test]
fn nixl_that_needs_the_peers_help_is_no_way() {
    if !nixl_is_there() {
        return;
    }
    if std::env::var("UCX_TLS").is_ok_and(|ways| ways == "tcp") {
        let (peer, node) = (Peer::start(Way::Nixl, BYTES), node(Way::Nixl, BYTES));
        node.dial(peer.address);
        let why = until(&node, "a word about the way", |event| match event {
            Event::NotOffered { way: Way::Nixl, why } => Some(why.clone()),
            _ => None,
        });
        assert_eq!(why, "NIXL does not read the peer's memory without its help");
        until(&node, "the link", |event| matches!(event, Event::Linked { way: Way::Tcp, .. }).then_some(()));
        return;
    }
    // NIXL is loaded once in a process.
    let this = "conformance::nixl_that_needs_the_peers_help_is_no_way";
    let mut again = Command::new(std::env::current_exe().unwrap());
    assert!(again.args(["--exact", this]).env("UCX_TLS", "tcp").status().unwrap().success());
}

/// Pieces that cover every kind of place: of one byte, odd ones, the ends, and a large one.
fn pieces() -> Vec<Piece> {
    let mut pieces = vec![
        Piece { here: 0, there: 5, bytes: 1 },
        Piece { here: 1, there: 7, bytes: 4095 },
        Piece { here: 500_000, there: 600_000, bytes: 300_000 },
        Piece { here: BYTES as u64 - 3, there: 0, bytes: 3 },
        Piece { here: 9_000, there: BYTES as u64 - 5, bytes: 5 },
        Piece { here: 9_100, there: 9_100, bytes: 0 },
    ];
    // As many as are handed to the system at once, and more.
    pieces.extend((0..200).map(|nth| Piece { here: 20_000 + nth * 100, there: 400_000 - nth * 130, bytes: 90 }));
    pieces
}

fn here(pieces: &[Piece]) -> Vec<(u64, u64)> {
    pieces.iter().map(|piece| (piece.here, piece.bytes)).collect()
}

fn there(pieces: &[Piece]) -> Vec<(u64, u64)> {
    pieces.iter().map(|piece| (piece.there, piece.bytes)).collect()
}

fn what_is_read_is_what_was_there(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    peer.ask("fill 3");
    fill(node.memory(), 4);
    let (link, incarnation) = link(&node, &peer);
    assert_eq!(incarnation, 7);
    node.read(link, PostId(1), pieces());
    assert!(ended(&node, PostId(1)));
    assert_eq!(sum(node.memory(), &here(&pieces())), peer.sum(&there(&pieces())));
    // Nothing else was touched.
    let mut expected = pattern(4, 0, BYTES as u64);
    for piece in pieces() {
        let from = pattern(3, piece.there, piece.bytes);
        expected[piece.here as usize..][..piece.bytes as usize].copy_from_slice(&from);
    }
    let mut found = vec![0; BYTES];
    node.memory().read(0, &mut found).unwrap();
    assert!(found == expected, "something else was touched");
}

fn what_is_written_is_there(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    fill(node.memory(), 5);
    peer.ask(&format!("open 9 0 {BYTES}"));
    let (link, ..) = link(&node, &peer);
    node.write(link, PostId(1), WindowId(9), pieces());
    assert!(ended(&node, PostId(1)));
    assert_eq!(sum(node.memory(), &here(&pieces())), peer.sum(&there(&pieces())));
}

fn both_sides_read_over_one_link(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    peer.ask("fill 3");
    fill(node.memory(), 4);
    let (link, ..) = link(&node, &peer);
    // The link's first half goes one way and its second the other way, at once.
    let half = BYTES as u64 / 2;
    node.read(link, PostId(1), vec![Piece { here: 0, there: 0, bytes: half }]);
    assert_eq!(peer.ask(&format!("read {half} {half} {half}")), "true");
    assert!(ended(&node, PostId(1)));
    assert_eq!(sum(node.memory(), &[(0, half), (half, half)]), peer.sum(&[(0, half), (half, half)]));
}

fn nothing_lands_outside_of_an_open_window(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    peer.ask("fill 3");
    fill(node.memory(), 4);
    peer.ask("open 1 1000 1000 5000 1000");
    let before = peer.sum(&[(0, BYTES as u64)]);
    let (link, ..) = link(&node, &peer);
    let mut post = 0;
    let mut write = |window, there, bytes| {
        post += 1;
        node.write(link, PostId(post), WindowId(window), vec![Piece { here: 0, there, bytes }]);
        ended(&node, PostId(post))
    };
    // Another window, a byte too early, a byte too long, across two ranges, past the end of numbers.
    for (window, there, bytes) in
        [(2, 1000, 10), (1, 999, 10), (1, 1990, 11), (1, 1000, 5000), (1, u64::MAX - 3, 10), (1, 5000, 1001)]
    {
        assert!(!write(window, there, bytes), "window {window}: {bytes} at {there}");
    }
    assert_eq!(peer.sum(&[(0, BYTES as u64)]), before);
    assert!(write(1, 1000, 1000) && write(1, 5000, 1000));
    assert_ne!(peer.sum(&[(0, BYTES as u64)]), before);
    peer.ask("fill 3");
    peer.ask("close 1");
    assert!(!write(1, 1000, 1000));
    assert_eq!(peer.sum(&[(0, BYTES as u64)]), before);
}

fn places_that_are_not_there_are_refused_and_the_link_stands(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, 2 * BYTES));
    peer.ask("fill 3");
    peer.ask(&format!("open 1 0 {}", u64::MAX));
    let (link, ..) = link(&node, &peer);
    let wrong = [
        Piece { here: 0, there: BYTES as u64 - 1, bytes: 2 },
        Piece { here: 0, there: u64::MAX, bytes: 1 },
        Piece { here: 0, there: 1, bytes: u64::MAX },
        Piece { here: 2 * BYTES as u64, there: 0, bytes: 1 },
        Piece { here: u64::MAX, there: 0, bytes: 2 },
    ];
    for (nth, piece) in wrong.into_iter().enumerate() {
        let (read, write) = (PostId(2 * nth as u64), PostId(2 * nth as u64 + 1));
        if piece.bytes < u64::MAX {
            node.read(link, read, vec![piece]);
            assert!(!ended(&node, read), "{piece:?}");
        }
        node.write(link, write, WindowId(1), vec![piece]);
        assert!(!ended(&node, write), "{piece:?}");
    }
    node.read(link, PostId(100), pieces());
    assert!(ended(&node, PostId(100)));
    assert_eq!(sum(node.memory(), &here(&pieces())), peer.sum(&there(&pieces())));
}

fn messages_come_in_order_beside_bytes(way: Way) {
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    peer.ask("fill 3");
    let (link, ..) = link(&node, &peer);
    for nth in 0..50_u64 {
        node.read(link, PostId(nth), vec![Piece { here: 0, there: 0, bytes: BYTES as u64 }]);
    }
    for length in [0, 1, 1000, 1 << 20] {
        let said = pattern(length as u64, 0, length as u64);
        node.send(link, said.clone());
        assert_eq!(peer.ask("echo"), length.to_string());
        let heard = until(&node, "the echo", |event| match event {
            Event::Message { bytes, .. } => Some(bytes.clone()),
            Event::Ended { landed, .. } => {
                assert!(landed);
                None
            }
            _ => None,
        });
        assert!(heard == said, "a message of {length} bytes");
    }
}

fn a_killed_peer_ends_its_posts(way: Way) {
    let (mut peer, node) = (Peer::start(way, 64 * BYTES), node(way, 64 * BYTES));
    peer.ask("fill 3");
    let (link, ..) = link(&node, &peer);
    let all = vec![Piece { here: 0, there: 0, bytes: 64 * BYTES as u64 }];
    // Some have landed before, and some are under way.
    for nth in 0..40 {
        node.read(link, PostId(nth), all.clone());
    }
    assert!(ended(&node, PostId(0)));
    peer.kill();
    let mut over = 1;
    until(&node, "the end of the link", |event| match event {
        Event::Ended { .. } => {
            over += 1;
            None
        }
        Event::Lost { .. } => Some(()),
        _ => None,
    });
    assert_eq!(over, 40, "every post ends, and before its link");
    node.read(link, PostId(99), all);
    assert!(!ended(&node, PostId(99)));
}

fn a_stopped_peer_is_cut_and_nothing_lands_after(way: Way) {
    let (mut peer, node) = (Peer::start(way, 16 * BYTES), node(way, 16 * BYTES));
    peer.ask("fill 3");
    peer.ask(&format!("open 1 0 {}", 16 * BYTES));
    let (first, ..) = link(&node, &peer);
    peer.signal("-STOP");
    // A write needs the peer whatever the way.
    node.write(first, PostId(1), WindowId(1), vec![Piece { here: 0, there: 0, bytes: 16 * BYTES as u64 }]);
    if way != Way::Shm {
        node.read(first, PostId(2), vec![Piece { here: 0, there: 0, bytes: 16 * BYTES as u64 }]);
    }
    assert_eq!(node.next(Instant::now() + Duration::from_millis(50)), None, "a stopped peer answers nothing");
    let began = Instant::now();
    node.cut(first);
    fill(node.memory(), 8);
    println!("cut in {:?}", began.elapsed());
    assert!(!ended(&node, PostId(1)));
    peer.signal("-CONT");
    // It goes on, and is linked anew; what was asked before does not land here.
    let (second, incarnation) = link(&node, &peer);
    assert_eq!((second == first, incarnation), (false, 7));
    node.read(second, PostId(3), vec![Piece { here: 0, there: 5, bytes: 100 }]);
    assert!(ended(&node, PostId(3)));
    let mut expected = pattern(8, 0, 16 * BYTES as u64);
    expected[..100].copy_from_slice(&{
        let mut read = vec![0; 100];
        node.memory().read(0, &mut read).unwrap();
        read
    });
    let mut found = vec![0; 16 * BYTES];
    node.memory().read(0, &mut found).unwrap();
    assert!(found == expected, "something landed after the cut");
}

fn a_link_that_is_cut_while_bytes_come_changes_nothing_after(way: Way) {
    const BYTES: usize = 16 << 20;
    let (mut peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    peer.ask("fill 3");
    let all = vec![Piece { here: 0, there: 0, bytes: BYTES as u64 }];
    for nth in 0..20_u64 {
        fill(node.memory(), 100 + nth);
        let (first, ..) = link(&node, &peer);
        let byte = |at: u64| {
            let mut byte = [0];
            node.memory().read(at, &mut byte).unwrap();
            byte[0]
        };
        // A place with another byte there than here: when it has changed, bytes come, and more are to.
        let (here, there) = (pattern(100 + nth, 0, 1000), pattern(3, 0, 1000));
        let at = here.iter().zip(&there).position(|(here, there)| here != there).unwrap();
        for post in 0..3 {
            node.read(first, PostId(10 * nth + post), all.clone());
        }
        let by = Instant::now() + PATIENCE;
        while nth % 4 > 0 && byte(at as u64) != there[at] {
            assert!(Instant::now() < by, "nothing comes");
            std::hint::spin_loop();
        }
        node.cut(first);
        fill(node.memory(), 8);
        // Another link's bytes come after what the first one's peer had sent.
        let (second, ..) = link(&node, &peer);
        node.read(second, PostId(10 * nth + 5), vec![Piece { here: 0, there: 0, bytes: 1 << 20 }]);
        assert!(ended(&node, PostId(10 * nth + 5)));
        let mut found = vec![0; BYTES];
        node.memory().read(0, &mut found).unwrap();
        let expected = [pattern(3, 0, 1 << 20), pattern(8, 1 << 20, BYTES as u64 - (1 << 20))].concat();
        assert!(found == expected, "something landed after the cut");
        node.cut(second);
    }
}

fn as_many_pieces_as_there_may_be_land(way: Way) {
    let (mut peer, node) = (Peer::start(way, 4 * BYTES), node(way, 4 * BYTES));
    peer.ask("fill 3");
    fill(node.memory(), 4);
    let (link, ..) = link(&node, &peer);
    // Backwards here: no two lie together on both sides.
    let pieces: Vec<Piece> =
        (0..1 << 16).map(|nth| Piece { here: ((1 << 16) - 1 - nth) * 64, there: nth * 64, bytes: 60 }).collect();
    let all = [(0, 4 * BYTES as u64)];
    let moved = |to: u64, from: u64, to_from: fn(&Piece) -> (u64, u64)| {
        let expected = Region::new(4 * BYTES).unwrap();
        fill(&expected, to);
        for piece in &pieces {
            let (to, at) = to_from(piece);
            expected.write(to, &pattern(from, at, piece.bytes)).unwrap();
        }
        sum(&expected, &all)
    };
    node.read(link, PostId(1), pieces.clone());
    assert!(ended(&node, PostId(1)));
    assert_eq!(sum(node.memory(), &all), moved(4, 3, |piece| (piece.here, piece.there)));
    fill(node.memory(), 5);
    peer.ask(&format!("open 9 0 {}", 4 * BYTES));
    node.write(link, PostId(2), WindowId(9), pieces.clone());
    assert!(ended(&node, PostId(2)));
    assert_eq!(peer.sum(&all), moved(3, 5, |piece| (piece.there, piece.here)));
}

fn a_restarted_peer_is_somebody_else(way: Way) {
    let node = node(way, BYTES);
    let mut peer = Peer::start(way, BYTES);
    let address = peer.address;
    for incarnation in 8..13 {
        let (old, ..) = link(&node, &peer);
        peer.kill();
        until(&node, "the end of the link", |event| {
            matches!(event, Event::Lost { link, .. } if *link == old).then_some(())
        });
        peer = Peer::start_at(address, way, BYTES, incarnation);
        peer.ask(&format!("fill {incarnation}"));
        let (new, found) = link(&node, &peer);
        assert_eq!(found, incarnation);
        // The old link is nobody's, the new one reads the new memory.
        node.read(old, PostId(1), vec![Piece { here: 0, there: 0, bytes: 10 }]);
        assert!(!ended(&node, PostId(1)));
        node.read(new, PostId(2), pieces());
        assert!(ended(&node, PostId(2)));
        assert_eq!(sum(node.memory(), &here(&pieces())), peer.sum(&there(&pieces())));
        node.cut(new);
    }
}

fn too_much_at_once_is_refused(way: Way) {
    let (peer, node) = (Peer::start(way, BYTES), node(way, BYTES));
    let (link, ..) = link(&node, &peer);
    node.read(link, PostId(1), vec![Piece { here: 0, there: 0, bytes: 1 }; (1 << 16) + 1]);
    assert!(!ended(&node, PostId(1)));
    peer.signal("-STOP");
    // Writes wait for the peer: some of these are too many, and the others end with the link.
    for post in 10..2_000 {
        node.write(link, PostId(post), WindowId(1), vec![Piece { here: 0, there: 0, bytes: 1 }]);
    }
    let refused = (10..2_000).filter(|_| node.next(Instant::now()).is_some()).count();
    assert_eq!(refused, 1_990 - 1024);
    node.cut(link);
    let mut over = 0;
    until(&node, "the end of the link", |event| match event {
        Event::Ended { landed, .. } => {
            assert!(!landed);
            over += 1;
            None
        }
        Event::Lost { .. } => Some(()),
        _ => None,
    });
    assert_eq!(over, 1024);
    peer.signal("-CONT");
}
