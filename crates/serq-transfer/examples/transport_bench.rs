//! How fast bytes move between two processes, beside a copy in memory and a plain socket.
//!
//! ```sh
//! cargo run --release -p serq-transfer --example transport_bench -- [--smoke]
//! ```
//!
//! Medians of 30 (`--smoke`: 2, and no bars), all in one run, taken in turns. The paged read is of 512 tokens of a SmolLM2: 32 blocks of 16
//! tokens, 368,640 bytes each, scattered on both sides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serq_transfer::memory::{Mapping, Region};
use serq_transfer::transport::{Event, LinkId, Node, Options, Piece, PostId, Token, Way};

const LARGE: u64 = 64 << 20;
const BLOCK: u64 = 16 * 23_040;
const BLOCKS: u64 = 32;
const ROUNDS: usize = 30;

fn node(way: Way) -> Node {
    let memory = Arc::new(Region::new((LARGE + 4096) as usize).expect("memory"));
    // Every page is there before anything is measured.
    (0..LARGE).step_by(4096).for_each(|at| memory.write(at, &[1; 4096]).expect("a page of it"));
    let token = Token::new("a token for a bench alone").expect("it is long");
    let options = Options {
        listen: "127.0.0.1:0".parse().expect("an address"),
        reached_at: None,
        token,
        incarnation: 1,
        ways: vec![way],
    };
    Node::start(options, memory).expect("a node")
}

fn wait<T>(node: &Node, found: impl Fn(Event) -> Option<T>) -> T {
    loop {
        let event = node.next(Instant::now() + std::time::Duration::from_secs(60)).expect("something happens");
        if let Some(found) = found(event) {
            return found;
        }
    }
}

/// The other process: a node for each way, and a plain socket that sends what is asked for.
fn serve() {
    let nodes = [node(Way::Tcp), node(Way::Shm)];
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let plain = listener.local_addr().expect("its address");
    println!("{} {} {plain}", nodes[0].address(), nodes[1].address());
    let memory = vec![1_u8; LARGE as usize];
    let (mut stream, _) = listener.accept().expect("who measures");
    stream.set_nodelay(true).expect("a socket");
    let mut asked = [0; 8];
    while stream.read_exact(&mut asked).is_ok() {
        stream.write_all(&memory[..u64::from_le_bytes(asked) as usize]).expect("who asked");
    }
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("peer") {
        return serve();
    }
    let smoke = argument.as_deref() == Some("--smoke");
    let program = std::env::current_exe().expect("this program");
    let mut peer = Command::new(program).arg("peer").stdout(Stdio::piped()).spawn().expect("the other process");
    let mut line = String::new();
    BufReader::new(peer.stdout.take().expect("its output")).read_line(&mut line).expect("its addresses");
    let addresses: Vec<SocketAddr> = line.split_whitespace().map(|word| word.parse().expect("an address")).collect();
    let linked: Vec<(Node, LinkId)> = [Way::Tcp, Way::Shm]
        .into_iter()
        .zip(&addresses)
        .map(|(way, address)| {
            let node = node(way);
            node.dial(*address);
            let link = wait(&node, |event| match event {
                Event::Linked { link, way: found, .. } => Some((link, found)),
                _ => None,
            });
            assert_eq!(link.1, way);
            (node, link.0)
        })
        .collect();
    let mut plain = TcpStream::connect(addresses[2]).expect("the plain socket");
    plain.set_nodelay(true).expect("a socket");
    let own = Mapping::new(linked[1].0.memory().place()).expect("its own memory");
    let copy = Region::new(LARGE as usize).expect("memory");
    let mut buffer = vec![1_u8; LARGE as usize];

    let whole = |bytes| vec![Piece { here: 0, there: 0, bytes }];
    // Backwards here: no two blocks lie together on both sides.
    let paged: Vec<Piece> = (0..BLOCKS)
        .map(|nth| Piece { here: (BLOCKS - 1 - nth) * BLOCK, there: (nth * 7 % BLOCKS) * BLOCK, bytes: BLOCK })
        .collect();
    let mut posts = 0;
    let mut read = |(node, link): &(Node, LinkId), pieces: Vec<Piece>| {
        posts += 1;
        let post = PostId(posts);
        node.read(*link, post, pieces);
        let landed = wait(node, |event| match event {
            Event::Ended { post: of, landed } if of == post => Some(landed),
            _ => None,
        });
        assert!(landed);
    };
    let names = [
        "memcpy",
        "shm",
        "plain socket",
        "tcp",
        "shm, one piece",
        "shm, 32 blocks",
        "tcp, one piece",
        "tcp, 32 blocks",
    ];
    let mut seconds = vec![Vec::new(); names.len()];
    for _ in 0..if smoke { 2 } else { ROUNDS } {
        for (nth, seconds) in seconds.iter_mut().enumerate() {
            let began = Instant::now();
            match nth {
                0 => copy.write_from(0, &own, 0, LARGE).expect("all of it"),
                1 => read(&linked[1], whole(LARGE)),
                2 => {
                    plain.write_all(&LARGE.to_le_bytes()).expect("the other process");
                    plain.read_exact(&mut buffer).expect("the other process");
                }
                3 => read(&linked[0], whole(LARGE)),
                4 => read(&linked[1], whole(BLOCKS * BLOCK)),
                5 => read(&linked[1], paged.clone()),
                6 => read(&linked[0], whole(BLOCKS * BLOCK)),
                _ => read(&linked[0], paged.clone()),
            }
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    let median = |seconds: &mut Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    };
    let medians: Vec<f64> = seconds.iter_mut().map(median).collect();
    for (nth, (name, seconds)) in names.iter().zip(&medians).enumerate() {
        let bytes = if nth < 4 { LARGE } else { BLOCKS * BLOCK } as f64;
        println!("{name:16} {:8.1} MB {:8.3} ms {:6.2} GB/s", bytes / 1e6, seconds * 1e3, bytes / seconds / 1e9);
    }
    let bars = [
        ("shm of memcpy", medians[0] / medians[1], 0.8, true),
        ("tcp of a plain socket", medians[2] / medians[3], 0.8, true),
        ("32 blocks, times one piece, shm", medians[5] / medians[4], 1.3, false),
    ];
    let mut missed = false;
    for (name, ratio, must, at_least) in bars {
        let met = if at_least { ratio >= must } else { ratio <= must };
        missed |= !met;
        println!(
            "{name:32} {ratio:.2} ({} {must}){}",
            if at_least { "at least" } else { "at most" },
            if met { "" } else { "  MISSED" }
        );
    }
    let _ = peer.kill();
    let _ = peer.wait();
    if missed && !smoke {
        std::process::exit(1);
    }
}
