//! How fast bytes move between two processes, beside a copy in memory and a plain socket.
//!
//! ```sh
//! cargo run --release -p serq-transfer --example transport_bench -- [--smoke]
//! ```
//!
//! Medians of 30 (`--smoke`: 2, and no bars), all in one run, taken in turns. The paged read is of 512 tokens of a SmolLM2: 32 blocks of 16
//! tokens, 368,640 bytes each, scattered on both sides; or, by NIXL, also the same bytes in 1,920 pieces, as layers by themselves
//! have them. Beside it, within this process: the same blocks copied by a layout's plan, and handed over by two connectors,
//! from a prefill's end to the load. NIXL is measured where `SERQ_NIXL` names it, beside a loop of its own calls.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serq_transfer::connector::local::{Hub, Local};
use serq_transfer::connector::{Heard, KvConnector, Memory, Told, address_of};
use serq_transfer::layout::{
    self, Content, Descriptor, Element, Group, Nesting, Order as Rows, TensorParallel, VERSION, join,
};
use serq_transfer::memory::{Mapping, Region};
use serq_transfer::nixl::{Agent, Begun, Target, available};
use serq_transfer::protocol::reader::{Load, Mode};
use serq_transfer::protocol::{BlockTable, Config, Otherwise, Policy, TransferId};
use serq_transfer::transport::{Event, LinkId, Node, Options, Piece, PostId, Token, Way};

const LARGE: u64 = 64 << 20;
const BLOCK: u64 = 16 * 23_040;
const BLOCKS: u64 = 32;
const ROUNDS: usize = 30;

fn memory() -> Arc<Region> {
    let memory = Arc::new(Region::new((LARGE + 4096) as usize).expect("memory"));
    // Every page is there before anything is measured.
    (0..LARGE).step_by(4096).for_each(|at| memory.write(at, &[1; 4096]).expect("a page of it"));
    memory
}

fn node(way: Way) -> Node {
    let token = Token::new("a token for a bench alone").expect("it is long");
    let options = Options {
        listen: "127.0.0.1:0".parse().expect("an address"),
        reached_at: None,
        token,
        incarnation: 1,
        ways: vec![way],
    };
    Node::start(options, memory()).expect("a node")
}

/// The ways that are there.
fn ways() -> Vec<Way> {
    let nixl = std::env::var_os("SERQ_NIXL").is_some() && available().is_ok();
    [Way::Tcp, Way::Shm].into_iter().chain(nixl.then_some(Way::Nixl)).collect()
}

fn wait<T>(node: &Node, found: impl Fn(Event) -> Option<T>) -> T {
    loop {
        let event = node.next(Instant::now() + std::time::Duration::from_secs(60)).expect("something happens");
        if let Some(found) = found(event) {
            return found;
        }
    }
}

/// The other process: a node for each way, a plain socket that sends what is asked for, and an agent of NIXL's.
fn serve() {
    let nodes: Vec<Node> = ways().into_iter().map(node).collect();
    let agent = nodes.get(2).map(|_| Agent::new(&memory(), true).expect("an agent"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("its address"));
    nodes.iter().for_each(|node| println!("{}", node.address()));
    if let Some(agent) = &agent {
        println!("{}", serde_json::to_string(agent.offer()).expect("JSON"));
    }
    let memory = vec![1_u8; LARGE as usize];
    let (mut stream, _) = listener.accept().expect("who measures");
    stream.set_nodelay(true).expect("a socket");
    let mut asked = [0; 8];
    while stream.read_exact(&mut asked).is_ok() {
        stream.write_all(&memory[..u64::from_le_bytes(asked) as usize]).expect("who asked");
    }
}

/// What is measured.
struct Case {
    name: &'static str,
    bytes: u64,
    seconds: Vec<f64>,
    run: Box<dyn Fn()>,
}

fn case(name: &'static str, bytes: u64, run: impl Fn() + 'static) -> Case {
    Case { name, bytes, seconds: Vec::new(), run: Box::new(run) }
}

/// NIXL's calls and nothing around them.
fn read_raw(agent: &mut Agent, pieces: &[Piece]) {
    match agent.begin(pieces, Target::Memory).expect("a peer") {
        Begun::Landed => {}
        Begun::UnderWay(read) => while !agent.look(read).expect("a peer") {},
        Begun::Refused => panic!("there are such bytes"),
    }
}

/// So many pieces, backwards here: no two lie together on both sides.
fn scattered(count: u64, bytes: u64) -> Vec<Piece> {
    (0..count).map(|nth| Piece { here: (count - 1 - nth) * bytes, there: (nth * 7 % count) * bytes, bytes }).collect()
}

/// An instance's blocks: those of a SmolLM2.
fn blocks() -> Memory {
    let content = Content::Heads { kv_heads: 3, head_dim: 64 };
    let group = Group {
        content,
        layers: (0..30).collect(),
        window: None,
        block_tokens: 16,
        blocks: BLOCKS as usize,
        first_byte: 0,
        nesting: Nesting::BlockMajor,
        order: Rows::Nhd,
        element: Element::Bf16,
    };
    let tensor_parallel = TensorParallel { degree: 1, rank: 0 };
    let (instance, model) = ("an instance".into(), "a SmolLM2".into());
    Memory::new(Descriptor { version: VERSION, instance, model, tensor_parallel, groups: vec![group] }, 0)
        .expect("memory")
}

/// Copies of 512 tokens within this process: by a plan alone, and by two connectors.
fn within_a_process() -> (impl Fn(), impl Fn()) {
    let memories = [blocks(), blocks()];
    let tokens = (BLOCKS * 16) as u32;
    let hub = Hub::default();
    let connectors = [1, 2].map(|nth: u16| {
        let address = SocketAddr::from(([127, 0, 0, 1], nth));
        let memory = memories[usize::from(nth) - 1].clone();
        Local::start(&hub, address, 1, Config::default(), memory, None).expect("a connector")
    });
    let numbers: Vec<u32> = (0..BLOCKS as u32).collect();
    let (source, reader) = (numbers.clone(), numbers.iter().rev().copied().collect::<Vec<_>>());
    let (from, to) = (source.clone(), reader.clone());
    let plan = move || {
        let [source, reader] = &memories;
        let both = [&source.descriptor, &reader.descriptor].map(std::slice::from_ref);
        let table = |blocks| [layout::BlockTable { first_token: 0, blocks }];
        let joined = join(both[0], both[1]).expect("they are alike");
        let plan = joined.plan(0, 0..tokens as usize, &table(&from), &table(&to)).expect("their blocks");
        for piece in plan.pieces(0, 0).expect("as they are") {
            let (to, from, bytes) = (piece.reader as u64, piece.source as u64, piece.bytes as u64);
            reader.region.copy_from(to, &source.region, from, bytes).expect("such bytes");
        }
    };
    let ids = Cell::new(0);
    let hand_over = move || {
        let [prefill, decode] = &connectors;
        ids.set(ids.get() + 1);
        let id = TransferId(ids.get());
        let table = |blocks: &[u32]| BlockTable::in_order(16, 0, tokens, blocks);
        let policy = Policy { retries: 0, otherwise: Otherwise::Error };
        let address = address_of(prefill.address()).expect("of IPv4");
        prefill.tell(Told::Expect { id });
        prefill.tell(Told::Finished { id, table: table(&source) });
        let load = Load { id, source: address, mode: Mode::Pull, concurrent: false, offer: None, policy };
        decode.tell(Told::Load(load));
        decode.tell(Told::Allocated { id, table: table(&reader) });
        let hear = |connector: &Local| connector.next(Instant::now() + std::time::Duration::from_secs(60));
        while !matches!(hear(decode).expect("it ends"), Heard::Loaded { .. }) {}
        while !matches!(hear(prefill).expect("it ends"), Heard::Free { .. }) {}
    };
    (plan, hand_over)
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("peer") {
        return serve();
    }
    let smoke = argument.as_deref() == Some("--smoke");
    let program = std::env::current_exe().expect("this program");
    let mut peer = Command::new(program).arg("peer").stdout(Stdio::piped()).spawn().expect("the other process");
    let mut lines = BufReader::new(peer.stdout.take().expect("its output")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    let address = |text: String| text.parse::<SocketAddr>().expect("an address");
    let plain = address(line());
    let linked: Vec<Arc<(Node, LinkId)>> = ways()
        .into_iter()
        .map(|way| {
            let node = node(way);
            let began = Instant::now();
            node.dial(address(line()));
            let (link, found) = wait(&node, |event| match event {
                Event::Linked { link, way: found, .. } => Some((link, found)),
                _ => None,
            });
            assert_eq!(found, way);
            println!("linked by {way:<4} {:22.3} ms", began.elapsed().as_secs_f64() * 1e3);
            Arc::new((node, link))
        })
        .collect();
    let plain = TcpStream::connect(plain).expect("the plain socket");
    plain.set_nodelay(true).expect("a socket");
    let own = Mapping::new(linked[1].0.memory().place()).expect("its own memory");
    let copy = Region::new(LARGE as usize).expect("memory");
    let buffer = RefCell::new(vec![1_u8; LARGE as usize]);

    let whole = |bytes| vec![Piece { here: 0, there: 0, bytes }];
    let posts = Rc::new(Cell::new(0));
    let read = |nth: usize, pieces: Vec<Piece>| {
        let (linked, posts) = (Arc::clone(&linked[nth]), Rc::clone(&posts));
        move || {
            let (node, link) = &*linked;
            posts.set(posts.get() + 1);
            let post = PostId(posts.get());
            node.read(*link, post, pieces.clone());
            let landed = wait(node, |event| match event {
                Event::Ended { post: of, landed } if of == post => Some(landed),
                _ => None,
            });
            assert!(landed);
        }
    };
    const PAGED: u64 = BLOCKS * BLOCK;
    let (by_plan, by_connectors) = within_a_process();
    let mut cases = vec![
        case("memcpy", LARGE, move || copy.write_from(0, &own, 0, LARGE).expect("all of it")),
        case("shm", LARGE, read(1, whole(LARGE))),
        case("plain socket", LARGE, move || {
            (&plain).write_all(&LARGE.to_le_bytes()).expect("the other process");
            (&plain).read_exact(&mut buffer.borrow_mut()).expect("the other process");
        }),
        case("tcp", LARGE, read(0, whole(LARGE))),
        case("shm, one piece", PAGED, read(1, whole(PAGED))),
        case("shm, 32 blocks", PAGED, read(1, scattered(BLOCKS, BLOCK))),
        case("tcp, one piece", PAGED, read(0, whole(PAGED))),
        case("tcp, 32 blocks", PAGED, read(0, scattered(BLOCKS, BLOCK))),
        case("plan, 32 blocks", PAGED, by_plan),
        case("local, 32 blocks", PAGED, by_connectors),
    ];
    let mut bars = vec![
        ("shm of memcpy", "memcpy", "shm", 0.8, true),
        ("tcp of a plain socket", "plain socket", "tcp", 0.8, true),
        ("32 blocks, times one piece, shm", "shm, 32 blocks", "shm, one piece", 1.3, false),
    ];
    if linked.len() > 2 {
        let mut agent = Agent::new(&memory(), true).expect("an agent");
        agent.join(&serde_json::from_str(&line()).expect("an offer")).expect("an agent's offer");
        let agent = Rc::new(RefCell::new(agent));
        for (raw, name, bytes, pieces) in [
            ("nixl alone", "nixl", LARGE, whole(LARGE)),
            ("nixl alone, 32 blocks", "nixl, 32 blocks", PAGED, scattered(BLOCKS, BLOCK)),
            ("nixl alone, 1920 pieces", "nixl, 1920 pieces", PAGED, scattered(1920, PAGED / 1920)),
        ] {
            let (agent, same) = (Rc::clone(&agent), pieces.clone());
            cases.push(case(raw, bytes, move || read_raw(&mut agent.borrow_mut(), &same)));
            cases.push(case(name, bytes, read(2, pieces)));
        }
        bars.push(("nixl of nixl alone", "nixl alone", "nixl", 0.9, true));
        bars.push(("nixl of nixl alone, 32 blocks", "nixl alone, 32 blocks", "nixl, 32 blocks", 0.9, true));
        bars.push(("nixl of nixl alone, 1920 pieces", "nixl alone, 1920 pieces", "nixl, 1920 pieces", 0.9, true));
    } else {
        println!("nixl is left out: {}", available().err().unwrap_or_else(|| "SERQ_NIXL names no folder".into()));
    }
    for _ in 0..if smoke { 2 } else { ROUNDS } {
        for case in &mut cases {
            let began = Instant::now();
            (case.run)();
            case.seconds.push(began.elapsed().as_secs_f64());
        }
    }
    let medians: Vec<(&str, f64)> = cases
        .iter_mut()
        .map(|case| {
            case.seconds.sort_by(f64::total_cmp);
            let (seconds, bytes) = (case.seconds[case.seconds.len() / 2], case.bytes as f64);
            let rate = bytes / seconds / 1e9;
            println!("{:24} {:8.1} MB {:8.3} ms {rate:6.2} GB/s", case.name, bytes / 1e6, seconds * 1e3);
            (case.name, seconds)
        })
        .collect();
    let median = |name: &str| medians.iter().find(|(of, _)| *of == name).expect("a case").1;
    let mut missed = false;
    for (name, over, under, must, at_least) in bars {
        let ratio = median(over) / median(under);
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
