//! Generated programs, in a build that checks the kernel's invariants after every fact.
//!
//! The programs are those of `cargo xtask differential` (which compares them with the
//! reference release); here nothing but our own side is needed:
//!
//! * no unit is left to nobody at the end;
//! * two runs are the same, to the last sample;
//! * the linked program, printed and read back, runs the same;
//! * all that holds when clients go away.

use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Steps, simulate};
use xtask::differential::generator;
use xtask::fingerprint::{differences, figures};

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

/// Whenever a client goes away, what its session had is somebody's or given back, and however
/// steps are taken the run is the same.
#[test]
fn clients_may_go_away_at_any_time() {
    let (mut ran, mut shortened) = (0, 0);
    for seed in FIRST_SEED..FIRST_SEED + PROGRAMS {
        let text = generator::generate(seed).text;
        let outcome = std::panic::catch_unwind(|| {
            let program = link(&text)?;
            let horizon = program.run.horizon.0;
            // In eighths, as the programs' own times are: at an event's time as often as between two.
            let time = |k: u64| ((seed * 37 + k * 11) % 97) as f64 / 8.0 * (horizon / 16.0).clamp(0.125, 1.0);
            let cancellations: Vec<(f64, u64)> = (0..6).map(|k| (time(k), (seed + k) % 7)).collect();
            let run = |steps: Steps, cancellations: Vec<(f64, u64)>| {
                let options = Options { record: true, steps, cancellations, ..Options::default() };
                simulate(&program, None, &options, &mut |_, _| true).map(|outcome| {
                    outcome.report.pools.iter().for_each(|pool| {
                        assert_eq!(pool.left, 0.0, "{}: nobody owns {} units", pool.name, pool.left);
                    });
                    (outcome.report.ended, figures(&program, &outcome))
                })
            };
            let planned = run(Steps::Planned, cancellations.clone()).map_err(|e| e.message);
            for steps in [Steps::Leaps, Steps::Singly] {
                let other = run(steps, cancellations.clone()).map_err(|e| e.message);
                match (&planned, &other) {
                    (Ok((_, planned)), Ok((_, other))) => assert_eq!(differences(planned, other), Vec::<String>::new()),
                    _ => assert_eq!(planned.is_err(), other.is_err(), "{steps:?}: {planned:?}, {other:?}"),
                }
            }
            let uncut = run(Steps::Planned, Vec::new());
            Some(matches!((planned, uncut), (Ok((_, a)), Ok((_, b))) if !differences(&a, &b).is_empty()))
        });
        match outcome {
            Ok(Some(differs)) => {
                ran += 1;
                shortened += u64::from(differs);
            }
            Ok(None) => {}
            Err(_) => panic!("seed {seed}:\n{text}"),
        }
    }
    assert!(shortened * 2 >= ran, "{shortened} of {ran} runs are others without their clients");
}

#[test]
fn a_seed_always_gives_the_same_program() {
    let (one, other) = (generator::generate(7), generator::generate(7));
    assert_eq!(one.text, other.text);
    assert_eq!(one.features, other.features);
    assert_ne!(one.text, generator::generate(8).text);
}
