//! Generated programs, in a build that checks the kernel's invariants after every fact.
//!
//! The programs are those of `cargo xtask differential` (which compares them with the
//! reference release); here nothing but our own side is needed:
//!
//! * no unit is left to nobody at the end;
//! * two runs are the same, to the last sample;
//! * the linked program, printed and read back, runs the same;
//! * all that holds when clients go away;
//! * and when engines plan ahead, with prefills that go on as decodes.

use serq_ir::{Asynchronous, Block, Mode, Program, StageKind, Stmt, StmtKind, Then};
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Steps, simulate};
use xtask::differential::generator;
use xtask::fingerprint::{Figure, differences, figures};

const PROGRAMS: u64 = 300;
/// Far from the seeds `cargo xtask differential` begins with.
const FIRST_SEED: u64 = 1_000_001;

fn link(text: &str) -> Option<Program> {
    let (mut sources, diagnostics) = load(None, text, &mut |_| Err("no files here".into()));
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    compile(&mut sources, &Settings::default()).0
}

/// Everything a run answers, or why it stopped.
fn run(program: &Program) -> String {
    let options = Options { record: true, strict: true, ..Options::default() };
    match simulate(program, None, &options, &mut |_, _| true) {
        Ok(outcome) => {
            for pool in &outcome.report.pools {
                assert_eq!(pool.left, 0.0, "{}: nobody owns {} units", pool.name, pool.left);
            }
            let report = serde_json::to_string(&outcome.report).expect("a report is JSON");
            format!("{report}\n{:?}\n{:?}", outcome.samples, outcome.gauge_points)
        }
        Err(error) => format!("{error:?}"),
    }
}

#[test]
fn generated_programs_keep_every_invariant() {
    let (mut linked, mut stopped) = (0, 0);
    for seed in FIRST_SEED..FIRST_SEED + PROGRAMS {
        let text = generator::generate(seed).text;
        // A failure names its seed: the panic's message comes above this one.
        let outcome = std::panic::catch_unwind(|| {
            let program = link(&text)?;
            let first = run(&program);
            assert_eq!(first, run(&program), "two runs differ");
            let read = serq_ir::json::read(&serq_ir::json::print(&program)).expect("a printed program reads back");
            assert_eq!(read, program, "a printed program reads back the same");
            assert_eq!(first, run(&read), "the program read back runs otherwise");
            Some(first.starts_with("RunError"))
        });
        match outcome {
            Ok(Some(stop)) => {
                linked += 1;
                stopped += u64::from(stop);
            }
            Ok(None) => {}
            Err(_) => panic!("seed {seed}:\n{text}"),
        }
    }
    assert!(linked * 10 >= PROGRAMS * 9, "{linked} of {PROGRAMS} programs link");
    assert!(stopped * 10 <= PROGRAMS, "{stopped} of {PROGRAMS} runs end in an error");
}

/// When clients go away: in eighths, as the programs' own times are, at an event's time as often as between
/// two.
fn gone(seed: u64, program: &Program) -> Vec<(f64, u64)> {
    let horizon = program.run.horizon.0;
    let time = |k: u64| ((seed * 37 + k * 11) % 97) as f64 / 8.0 * (horizon / 16.0).clamp(0.125, 1.0);
    (0..6).map(|k| (time(k), (seed + k) % 7)).collect()
}

type Ran = Result<Vec<Figure>, String>;

/// The figures of a run in which no unit is left to nobody, or why it stopped.
fn run_without(program: &Program, steps: Steps, cancellations: &[(f64, u64)]) -> Ran {
    let options = Options { record: true, steps, cancellations: cancellations.to_vec(), ..Options::default() };
    let outcome = simulate(program, None, &options, &mut |_, _| true).map_err(|error| error.message)?;
    for pool in &outcome.report.pools {
        assert_eq!(pool.left, 0.0, "{}: nobody owns {} units", pool.name, pool.left);
    }
    Ok(figures(program, &outcome))
}

/// However steps are taken the run is the same. Answers with it.
fn run_anyhow(program: &Program, cancellations: &[(f64, u64)]) -> Ran {
    let planned = run_without(program, Steps::Planned, cancellations);
    for steps in [Steps::Leaps, Steps::Singly] {
        let other = run_without(program, steps, cancellations);
        match (&planned, &other) {
            (Ok(planned), Ok(other)) => assert_eq!(differences(planned, other), Vec::<String>::new()),
            _ => assert_eq!(planned.is_err(), other.is_err(), "{steps:?}: {planned:?}, {other:?}"),
        }
    }
    planned
}

/// Runs a test on generated programs; it answers whether a run is another one than it would have been.
/// At least so many in a hundred have to be.
fn on_generated(percent: u64, test: impl Fn(u64, Program) -> bool + std::panic::RefUnwindSafe) {
    let (mut ran, mut others) = (0, 0);
    for seed in FIRST_SEED..FIRST_SEED + PROGRAMS {
        let text = generator::generate(seed).text;
        match std::panic::catch_unwind(|| link(&text).map(|program| test(seed, program))) {
            Ok(Some(other)) => {
                ran += 1;
                others += u64::from(other);
            }
            Ok(None) => {}
            Err(_) => panic!("seed {seed}:\n{text}"),
        }
    }
    assert!(others * 100 >= ran * percent, "{others} of {ran} runs are others");
}

fn differ(one: &Ran, other: &Ran) -> bool {
    matches!((one, other), (Ok(one), Ok(other)) if !differences(one, other).is_empty())
}

/// Whenever a client goes away, what its session had is somebody's or given back.
#[test]
fn clients_may_go_away_at_any_time() {
    on_generated(50, |seed, program| {
        let cut = run_anyhow(&program, &gone(seed, &program));
        differ(&cut, &run_without(&program, Steps::Planned, &[]))
    });
}

/// A prefill and the decode right behind it at one engine are one stay.
fn join_runs(block: &mut Block) {
    let mut at = 0;
    while at < block.len() {
        match &mut block[at].kind {
            StmtKind::Hold(hold) => join_runs(&mut hold.body),
            StmtKind::Branch { then, otherwise, .. } => {
                join_runs(then);
                join_runs(otherwise);
            }
            StmtKind::Loop { body } | StmtKind::Shielded { body } => join_runs(body),
            _ => {}
        }
        if let [Stmt { kind: StmtKind::Run(prefill), .. }, Stmt { kind: StmtKind::Run(decode), .. }, ..] =
            &mut block[at..]
            && (prefill.mode, decode.mode) == (Some(Mode::Prefill), Some(Mode::Decode))
            && (&prefill.stages, &prefill.growing) == (&decode.stages, &decode.growing)
        {
            prefill.then = Some(Then { body: Block::new(), work: decode.work.clone() });
            block.remove(at + 1);
        }
        at += 1;
    }
}

/// With engines that plan ahead, with and without fences, and clients that go away meanwhile.
#[test]
fn engines_may_plan_ahead() {
    on_generated(20, |seed, mut program| {
        join_runs(&mut program.session);
        let cancellations = gone(seed, &program);
        let before = run_anyhow(&program, &cancellations);
        for stage in &mut program.stages {
            if let StageKind::Step(step) = &mut stage.kind {
                step.asynchronous = Some(Asynchronous { fenced: seed % 2 == 1 });
            }
        }
        let ahead = run_anyhow(&program, &cancellations);
        run_anyhow(&program, &[]).ok();
        differ(&before, &ahead)
    });
}

#[test]
fn a_seed_always_gives_the_same_program() {
    let (one, other) = (generator::generate(7), generator::generate(7));
    assert_eq!(one.text, other.text);
    assert_eq!(one.features, other.features);
    assert_ne!(one.text, generator::generate(8).text);
}
