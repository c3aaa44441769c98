//! Instances behind sockets, as in processes of their own: their texts are those of instances of one process,
//! whatever becomes of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serq_engine::apart::{At, Identity, Peers, RemoteInstances, Token, TransferConfig, Way, Worker, WorkerOptions};
use serq_engine::instances::LocalInstances;
use serq_engine::kernels::{Compute, Path as Kernels};
use serq_engine::model::Model;
use serq_engine::request::Figures;
use serq_engine::weights::Checkpoint;

use super::*;

pub(super) const PAIRS: &str = "examples/local/2p2d_smollm2.sq";
pub(super) const CONCURRENT: &str = "examples/local/2p2d_concurrent_smollm2.sq";
/// A test that waits longer has failed.
const DEADLINE: Duration = Duration::from_secs(120);

/// A number no other worker of this process has.
fn incarnation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

/// An example's text.
fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// A program's text as an example would be served.
fn of_text(text: &str, sets: &[(&str, String)]) -> Served {
    compiled(&root().join(PAIRS), text, sets)
}

fn token() -> Token {
    Token::new("a token of tests, long enough").unwrap()
}

/// A deployment on loopback, its processes threads of this one.
struct Deployment {
    checkpoint: Checkpoint,
    model: Arc<Model>,
    program: String,
    sets: Vec<(&'static str, String)>,
    ways: Vec<Way>,
    workers: Vec<Option<Worker>>,
    at: Vec<At>,
    service: Service,
    peers: Peers,
    log: Log,
}

impl Deployment {
    fn start(text: &str, sets: &[(&'static str, String)], ways: &[Way]) -> Self {
        Self::start_with(text, sets, ways, Compute::F32, |_| None)
    }

    fn start_with<'p>(
        text: &str,
        sets: &[(&'static str, String)],
        ways: &[Way],
        compute: Compute,
        behind: impl Fn(usize) -> Option<[&'p Proxy; 2]>,
    ) -> Self {
        let checkpoint = Checkpoint::tiny(7);
        let model = Arc::new(Model::new(&checkpoint, Kernels::best(), compute));
        let program = of_text(text, sets);
        let identity = Identity::of(&program, &checkpoint);
        let (mut workers, mut at) = (Vec::new(), Vec::new());
        for (nth, named) in program.instances().into_iter().enumerate() {
            let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let worker = work_behind(&named.name, anywhere, behind(nth), &program, &checkpoint, &model, ways).unwrap();
            at.push(At { instance: named.name, address: worker.address() });
            workers.push(Some(worker));
        }
        let log = Log::default();
        let decisions = Decisions::new(&program, false, Box::new(log.clone()));
        let remote =
            RemoteInstances::start(&program, identity, &at, token(), incarnation(), 10, |note| eprintln!("{note}"))
                .unwrap();
        let peers = remote.peers();
        let service = Service::start(program, Box::new(remote), Some(decisions));
        let (sets, ways) = (sets.to_vec(), ways.to_vec());
        let program = text.to_owned();
        let started = Self { checkpoint, model, program, sets, ways, workers, at, service, peers, log };
        started.until("all are there", |peers| peers.look().iter().all(|look| look.gone.is_none()));
        started
    }

    fn ask<'t>(&self, texts: &'t [Text]) -> Vec<(Asked, &'t Vec<u32>)> {
        let ask = |(text, sampling, answer): &'t Text| {
            (ask_for(&self.service, text.clone(), 12, vec![sampling.clone()]), answer)
        };
        texts.iter().map(ask).collect()
    }

    fn until(&self, what: &str, is: impl Fn(&Peers) -> bool) {
        let began = Instant::now();
        while !is(&self.peers) {
            assert!(began.elapsed() < DEADLINE, "in vain: {what}: {:?}", self.peers.look());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// The same with a network around each instance: to its scheduler, and to others.
    fn start_behind(text: &str, sets: &[(&'static str, String)], proxies: &[[Proxy; 2]]) -> Self {
        Self::start_with(text, sets, &[Way::Tcp], Compute::F32, |nth| Some([&proxies[nth][0], &proxies[nth][1]]))
    }

    fn kill(&mut self, nth: usize) {
        self.workers[nth] = None;
    }

    /// Another process at its address.
    fn restart(&mut self, nth: usize) {
        let program = of_text(&self.program, &self.sets);
        let At { instance, address } = &self.at[nth];
        let began = Instant::now();
        // What the one before left may stand in the way for a moment.
        let worker = loop {
            match work(instance, *address, &program, &self.checkpoint, &self.model, &self.ways) {
                Ok(worker) => break worker,
                Err(why) => assert!(began.elapsed() < DEADLINE, "{why}"),
            }
        };
        self.workers[nth] = Some(worker);
    }

    fn clean(self) -> Replayed {
        let began = Instant::now();
        loop {
            let look = self.service.look().unwrap();
            if look.live == 0 && look.pools.iter().all(|pool| pool.used == 0.0) {
                break;
            }
            assert!(began.elapsed() < DEADLINE, "blocks are held in the end: {look:?}");
        }
        nothing_is_left(&self.service);
        drop(self.service);
        let log = self.log.0.lock().unwrap().clone();
        replay(&log[..]).unwrap_or_else(|why| panic!("{why}"))
    }
}

fn work(
    instance: &str,
    listen: SocketAddr,
    program: &Served,
    checkpoint: &Checkpoint,
    model: &Arc<Model>,
    ways: &[Way],
) -> Result<Worker, String> {
    work_behind(instance, listen, None, program, checkpoint, model, ways)
}

/// The same where its scheduler and others reach it at these addresses, through whatever is there.
fn work_behind(
    instance: &str,
    listen: SocketAddr,
    behind: Option<[&Proxy; 2]>,
    program: &Served,
    checkpoint: &Checkpoint,
    model: &Arc<Model>,
    ways: &[Way],
) -> Result<Worker, String> {
    let memory = program.instances().into_iter().find(|named| named.name == instance).unwrap().memory;
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    // A proxy has to know where it leads to before the worker has begun.
    let free = |proxy: &Proxy| {
        let listen = TcpListener::bind(anywhere).unwrap().local_addr().unwrap();
        *proxy.to.lock().unwrap() = listen;
        listen
    };
    let (listen, kv_listen) = behind.map_or((listen, anywhere), |[control, kv]| (free(control), free(kv)));
    let options = WorkerOptions {
        instance: instance.to_owned(),
        listen,
        kv_listen,
        reached_at: behind.map(|[control, _]| control.at),
        kv_reached_at: behind.map(|[_, kv]| kv.at),
        token: token(),
        incarnation: incarnation(),
        ways: ways.to_vec(),
        cores: 1,
        // Behind a network that is cut nobody waits as long as in service.
        transfer: if behind.is_some() { soon() } else { TransferConfig::default() },
    };
    let name = instance.to_owned();
    Worker::start(options, memory, &Identity::of(program, checkpoint), model, move |note| eprintln!("{name}: {note}"))
}

/// The waits of a transfer, in an order as in service.
fn soon() -> TransferConfig {
    const SECOND: u64 = 1_000_000;
    TransferConfig {
        lease_us: 2 * SECOND,
        extension_us: 2 * SECOND,
        heartbeat_us: SECOND / 2,
        resend_us: SECOND / 5,
        connect_us: SECOND,
        wait_us: 3 * SECOND,
        transfer_us: 3 * SECOND,
        confirm_us: SECOND,
        quarantine_us: 3 * SECOND,
        ..TransferConfig::default()
    }
}

/// A network that can be cut: connections through it break, or nothing comes through them any more.
struct Proxy {
    at: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    state: Arc<AtomicU64>,
}

const WHOLE: u64 = 0;
const BROKEN: u64 = 1;
const SILENT: u64 = 2;

impl Proxy {
    fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (to, state) = (Arc::new(Mutex::new(at)), Arc::new(AtomicU64::new(WHOLE)));
        let (target, now) = (Arc::clone(&to), Arc::clone(&state));
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                if now.load(Ordering::SeqCst) != WHOLE {
                    continue;
                }
                let to = *target.lock().unwrap();
                let Ok(to) = TcpStream::connect(to) else { continue };
                for (mut from, mut to) in [
                    (from.try_clone().unwrap(), to.try_clone().unwrap()),
                    (to.try_clone().unwrap(), from.try_clone().unwrap()),
                ] {
                    let now = Arc::clone(&now);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 1 << 14];
                        from.set_nodelay(true).unwrap();
                        from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                        loop {
                            match now.load(Ordering::SeqCst) {
                                WHOLE => {}
                                SILENT => {
                                    std::thread::park_timeout(Duration::from_millis(5));
                                    continue;
                                }
                                _ => break,
                            }
                            match from.read(&mut bytes) {
                                Ok(0) => break,
                                Ok(some) if to.write_all(&bytes[..some]).is_ok() => {}
                                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                                _ => break,
                            }
                        }
                        let _ = from.shutdown(std::net::Shutdown::Both);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        Self { at, to, state }
    }

    fn turn(&self, state: u64) {
        self.state.store(state, Ordering::SeqCst);
    }
}

/// An answer's tokens, and its figures.
fn to_the_end(asked: &Asked) -> (Vec<u32>, Figures) {
    let mut tokens = Vec::new();
    loop {
        match asked.events.recv().expect("it is finished") {
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { finish, figures, .. } => {
                assert!(matches!(finish, Finish::Length), "{finish:?}");
                return (tokens, figures);
            }
        }
    }
}

/// A prompt, how it is sampled, and how it goes on.
type Text = (Vec<u32>, Sampling, Vec<u32>);

/// Some prompts, that begin alike now and then, and how each goes on with nobody else there.
fn texts(program: &str, sets: &[(&str, String)], random: &mut Random, count: usize) -> Vec<Text> {
    texts_in(Compute::F32, program, sets, random, count)
}

fn texts_in(compute: Compute, program: &str, sets: &[(&str, String)], random: &mut Random, count: usize) -> Vec<Text> {
    let checkpoint = Checkpoint::tiny(7);
    let model = Arc::new(Model::new(&checkpoint, Kernels::best(), compute));
    let program = of_text(program, sets);
    let instances = LocalInstances::new(&program, &model, 1, u64::MAX).unwrap();
    let service = Service::start(program, Box::new(instances), None);
    let mut begun: Vec<Vec<u32>> = Vec::new();
    (0..count)
        .map(|nth| {
            let mut text: Vec<u32> = match begun.get(random.below(4) as usize) {
                Some(text) => text[..text.len() * 2 / 3].to_vec(),
                None => Vec::new(),
            };
            text.extend((0..1 + random.below(200)).map(|_| random.below(256) as u32));
            begun.push(text.clone());
            let temperature = if nth % 2 == 0 { 0.0 } else { 0.8 };
            let sampling = Sampling { temperature, seed: nth as u64, ..Sampling::default() };
            let asked = ask_for(&service, text.clone(), 12, vec![sampling.clone()]);
            (text, sampling, collect(&asked).0.remove(&0).unwrap())
        })
        .collect()
}

fn small(from: u32, to: u32) -> Vec<(&'static str, String)> {
    vec![
        ("bsP", from.to_string()),
        ("bsD", to.to_string()),
        ("blocksP", (3000 / from).to_string()),
        ("blocksD", (3000 / to).to_string()),
        ("thr", "10".into()),
        ("B", "64".into()),
    ]
}

/// Both ways for bytes, read and written, one leg after the other and both at once, blocks of every relation, two types: greedy
/// and drawn texts are those of one process, to the token.
#[test]
fn texts_do_not_depend_on_where_instances_are() {
    let (serial, concurrent) = (text(PAIRS), text(CONCURRENT));
    let (push, pull) = ("P push D", "D pull P");
    let programs = [serial.clone(), serial.replace(pull, push), concurrent.replace(push, pull), concurrent];
    assert!(programs.iter().zip([pull, push, pull, push]).all(|(program, moves)| program.contains(moves)));
    let sizes = [(16, 32), (32, 16), (8, 48), (1, 128)];
    for (nth, (from, to)) in sizes.into_iter().enumerate() {
        let sets = small(from, to);
        // Keys and values are singles there, and bf16 here.
        let compute = [Compute::F32, Compute::Bf16][nth % 2];
        let texts = texts_in(compute, &programs[0], &sets, &mut Random(nth as u64), 16);
        for way in [Way::Shm, Way::Tcp] {
            // Each program with each way, and with two of the sizes.
            let program = &programs[(nth + 2 * usize::from(way == Way::Tcp)) % programs.len()];
            let deployment = Deployment::start_with(program, &sets, &[way], compute, |_| None);
            let asked = deployment.ask(&texts);
            let (mut moved, mut early) = (0, 0);
            for (asked, answer) in &asked {
                let (tokens, figures) = to_the_end(asked);
                assert_eq!(tokens, **answer, "blocks of {from} to {to}, {way}");
                moved += figures.tokens_moved;
                early += figures.tokens_early;
            }
            assert!(moved > 500, "{moved} tokens went from one to another");
            // Prompts of more than a budget are computed in chunks, which go while the next is computed.
            assert_eq!(early > 0, program.contains("fork"), "{early} tokens went early");
            let counted = |name: &str| -> u64 {
                let looks = deployment.peers.look();
                let counts = looks.iter().flat_map(|look| &look.counts);
                counts.filter(|(of, ..)| *of == name).map(|(.., count)| count).sum()
            };
            deployment.until("loads are counted", |_| counted("serq_kv_loads_total") > 0);
            // One that began early is given up when what it reads is preempted.
            if !program.contains("fork") {
                assert_eq!(counted("serq_kv_loads_failed_total"), 0);
            }
            deployment.clean();
        }
    }
}

/// Instances end at any moment, and others come to their addresses: no request is lost, and no text differs.
#[test]
fn an_instance_that_ends_costs_no_text() {
    let sets = small(16, 32);
    let mut random = Random(5);
    let texts = texts(&text(PAIRS), &sets, &mut random, 60);
    let mut deployment = Deployment::start(&text(CONCURRENT), &sets, &[Way::Shm, Way::Tcp]);
    let mut retries = 0;
    for (round, texts) in texts.chunks(10).enumerate() {
        let asked = deployment.ask(texts);
        let first = asked[random.below(10) as usize].0.events.recv();
        assert!(first.is_ok());
        let nth = round % 4;
        deployment.kill(nth);
        deployment.restart(nth);
        for (asked, answer) in &asked {
            let (tokens, figures) = to_the_end(asked);
            retries += figures.retries;
            // The event that was waited for is missing at the front of one.
            assert!(answer.ends_with(&tokens) && tokens.len() + 1 >= answer.len(), "{tokens:?} of {answer:?}");
        }
        deployment.until("all are there again", |peers| peers.look().iter().all(|look| look.gone.is_none()));
    }
    let log = String::from_utf8(deployment.log.0.lock().unwrap().clone()).unwrap();
    let failed = log.matches("\"read_failed\"").count();
    assert!(retries > 0 || failed > 0, "somebody was where an instance ended");
    let replayed = deployment.clean();
    println!(
        "{failed} copies failed, {retries} requests were routed again, {} decisions are the same",
        replayed.decisions
    );
}

/// The source ends while its KV is on its way, over a network that says nothing: the decoder computes the prompt, and
/// nobody is routed again.
#[test]
fn a_source_that_ends_in_the_middle_of_a_copy_costs_a_prefill_where_the_program_says_so() {
    let sets = small(16, 32);
    let program = text(PAIRS).replace("to kv (prompt - 1 - have);", "to kv (prompt - 1 - have) else recompute;");
    assert_ne!(program, text(PAIRS));
    let texts = texts(&text(PAIRS), &sets, &mut Random(21), 40);
    let long: Vec<Text> = texts.into_iter().filter(|(prompt, ..)| prompt.len() > 60).take(6).collect();
    let proxies = [(); 4].map(|()| [Proxy::new(), Proxy::new()]);
    let mut deployment = Deployment::start_behind(&program, &sets, &proxies);
    // Prefillers first: their KV does not get out.
    proxies[..2].iter().for_each(|[_, kv]| kv.turn(SILENT));
    let asked = deployment.ask(&long);
    deployment.until("copies are asked for", |_| {
        let log = String::from_utf8(deployment.log.0.lock().unwrap().clone()).unwrap();
        log.matches("\"flow\"").count() >= long.len()
    });
    deployment.kill(0);
    deployment.kill(1);
    let mut retries = 0;
    for (asked, answer) in &asked {
        let (tokens, figures) = to_the_end(asked);
        assert_eq!(tokens, **answer);
        retries += figures.retries;
    }
    assert_eq!(retries, 0, "what was being copied is computed where it was to go");
    let log = String::from_utf8(deployment.log.0.lock().unwrap().clone()).unwrap();
    let failed = log.matches("\"read_failed\"").count();
    println!("{failed} copies of {} requests were under way", long.len());
    assert!(failed > 0);
    deployment.clean();
}

/// Clients go away at any moment, also while their KV is on its way.
#[test]
fn what_clients_leave_is_given_back() {
    let sets = small(16, 32);
    let deployment = Deployment::start(&text(CONCURRENT), &sets, &[Way::Tcp]);
    let mut random = Random(11);
    for _ in 0..20 {
        let asked: Vec<Asked> = (0..15)
            .map(|_| {
                let text = (0..20 + random.below(150)).map(|_| random.below(256) as u32).collect();
                ask(&deployment.service, text, 8, 1)
            })
            .collect();
        for mut asked in asked {
            for _ in 0..random.below(4) {
                if let Event::Finished { .. } = asked.events.recv().unwrap() {
                    break;
                }
            }
            asked.submitted = None;
        }
    }
    deployment.clean();
}

/// Who computes otherwise, or does not know the token, is told so and never used.
#[test]
fn who_does_not_belong_is_turned_away() {
    let sets = small(16, 32);
    let program = served(PAIR, &sets);
    let checkpoint = Checkpoint::tiny(7);
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let model = |seed, compute| {
        let checkpoint = Checkpoint::tiny(seed);
        let model = Arc::new(Model::new(&checkpoint, Kernels::Portable, compute));
        (checkpoint, model)
    };
    let right = model(7, Compute::F32);
    let other_program = served(PAIR, &small(16, 16));
    let (other_model, other_compute) = (model(8, Compute::F32), model(7, Compute::Bf16));
    let cases = [
        (&other_program, &right, token(), "another program"),
        (&program, &other_model, token(), "another model"),
        (&program, &other_compute, token(), "bf16"),
        (&program, &right, Token::new("another token, long enough").unwrap(), "token"),
    ];
    for (of, (checkpoint_of, model_of), secret, sentence) in cases {
        let first = work("P", anywhere, &program, &checkpoint, &right.1, &[Way::Tcp]).unwrap();
        let options = WorkerOptions {
            instance: "D".into(),
            listen: anywhere,
            kv_listen: anywhere,
            reached_at: None,
            kv_reached_at: None,
            token: secret,
            incarnation: incarnation(),
            ways: vec![Way::Tcp],
            cores: 1,
            transfer: TransferConfig::default(),
        };
        let memory = program.instances()[1].memory;
        let second = Worker::start(options, memory, &Identity::of(of, checkpoint_of), model_of, |_| ()).unwrap();
        let at = [("P", first.address()), ("D", second.address())]
            .map(|(instance, address)| At { instance: instance.into(), address });
        let identity = Identity::of(&program, &checkpoint);
        let remote = RemoteInstances::start(&program, identity, &at, token(), incarnation(), 0, |_| ()).unwrap();
        let peers = remote.peers();
        let served = served(PAIR, &sets);
        let service = Service::start(served, Box::new(remote), None);
        let began = Instant::now();
        while !peers.look().iter().any(|look| look.gone.as_ref().is_some_and(|why| why.contains(sentence))) {
            assert!(began.elapsed() < DEADLINE, "{:?}", peers.look());
        }
        let asked = ask(&service, vec![1; 40], 3, 1);
        let finish = loop {
            if let Event::Finished { finish, .. } = asked.events.recv().unwrap() {
                break finish;
            }
        };
        assert!(matches!(finish, Finish::Unavailable(_)), "{sentence}: {finish:?}");
    }
}

/// An instance that is to end serves those who are there, and nobody else; then it is dismissed.
#[test]
fn an_instance_that_drains_loses_nobody() {
    let sets = small(16, 32);
    let mut random = Random(3);
    let texts = texts(&text(PAIRS), &sets, &mut random, 20);
    let deployment = Deployment::start(&text(PAIRS), &sets, &[Way::Shm]);
    let before = deployment.ask(&texts[..10]);
    before[0].0.events.recv().unwrap();
    let drained = [1, 2];
    for nth in drained {
        deployment.workers[nth].as_ref().unwrap().drain();
    }
    deployment.until("they drain", |peers| drained.iter().all(|&nth| peers.look()[nth].draining));
    let after = deployment.ask(&texts[10..]);
    for (asked, answer) in before[1..].iter().chain(&after) {
        assert_eq!(collect(asked).0[&0], **answer);
    }
    collect(&before[0].0);
    let began = Instant::now();
    while !drained.iter().all(|&nth| deployment.workers[nth].as_ref().unwrap().is_dismissed()) {
        assert!(began.elapsed() < DEADLINE, "they are dismissed");
    }
    deployment.clean();
}

/// Networks between instances, and between them and their scheduler, break, fall silent and heal: no text differs.
#[test]
fn a_network_that_is_cut_and_heals_costs_no_text() {
    let sets = small(16, 32);
    let mut random = Random(17);
    let texts = texts(&text(PAIRS), &sets, &mut random, 48);
    let proxies: Vec<[Proxy; 2]> = (0..4).map(|_| [Proxy::new(), Proxy::new()]).collect();
    let deployment = Deployment::start_behind(&text(PAIRS), &sets, &proxies);
    // Of which instance which network, and what becomes of it.
    let cuts = [(0, 1, BROKEN), (3, 0, BROKEN), (1, 1, BROKEN), (2, 0, SILENT)];
    for (texts, (nth, which, state)) in texts.chunks(12).zip(cuts) {
        let asked = deployment.ask(texts);
        proxies[nth][which].turn(state);
        if (which, state) != (1, BROKEN) {
            deployment.until("it is gone", |peers| peers.look()[nth].gone.is_some());
        }
        for (asked, answer) in &asked[..6] {
            assert_eq!(collect(asked).0[&0], **answer);
        }
        proxies[nth][which].turn(WHOLE);
        for (asked, answer) in &asked[6..] {
            assert_eq!(collect(asked).0[&0], **answer);
        }
        deployment.until("all are there again", |peers| peers.look().iter().all(|look| look.gone.is_none()));
    }
    deployment.clean();
}
