//! Leaps, and steps taken singly, against steps that are all planned: the same bits, program by
//! program.
//!
//! Programs are the cases, the examples, the seed's program under stress (full decoders,
//! slow steps, many pods), and random ones: those of the differential, as they are and with
//! their decodes made long, and others with much to leap over (`leaping.rs`); and all of them
//! once more with prefixes shared in every pool that can. Compared is everything a run comes to: samples and when, gauge change
//! points, every figure of the report, bit by bit.

mod leaping;

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serq_ir::json::Number;
use serq_ir::{Binary, Block, BuiltIn, Evict, Expr, Function, Mode, Prefix, Program, StmtKind};
use serq_lang::Settings;
use serq_sim::trace::{BadRows, TraceFile};
use serq_sim::{Options, Outcome, Steps, simulate};

use crate::differential::generator;
use crate::fingerprint::{differences, figures};
use crate::parallel;
use crate::program::{self, SEED_PROGRAM, root};

/// The seed's program where leaps are hard: preemptions, refused heads, a warm-up and a
/// horizon inside leaps, batches of many, many engines.
const STRESSED: [&[(&str, &str)]; 8] = [
    &[("Lambda", "1.2")],
    &[("Lambda", "1.2"), ("blocksD", "1100")],
    &[("Lambda", "3"), ("blocksD", "1100")],
    &[("omega", "0.02"), ("Lambda", "1.2")],
    &[("omega", "0.005"), ("Lambda", "1"), ("max_seqsD", "4")],
    &[("NP", "4"), ("ND", "3"), ("Lambda", "2"), ("blocksP", "1100")],
    &[("NP", "20"), ("ND", "30"), ("Lambda", "12"), ("blocksD", "1100")],
    &[("thr", "1e18"), ("Lambda", "2.5"), ("max_seqsD", "2")],
];

/// Events a random program may have; without leaps it has as many as steps.
const EVENTS_MAX: u64 = 3_000_000;

/// Compares all programs with and without leaps.
///
/// # Errors
///
/// A program whose bits differ, with the first figures that do.
pub fn identity(count: u64, seed: u64, horizon: f64) -> Result<String, String> {
    let mut programs = Vec::new();
    for path in files()? {
        let mut program = program::read(&path, &Settings::default())?;
        // Singly, a long run has many steps.
        if program.run.horizon.0 > horizon {
            (program.run.horizon, program.run.warmup) = (Number(horizon), Number(horizon / 7.0));
        }
        let trace = trace(&path, &program)?;
        programs.push((path.display().to_string(), program, trace));
    }
    for sets in STRESSED {
        let settings = Settings { horizon: Some(horizon), warmup: Some(horizon / 7.0), ..program::sets(sets) };
        programs.push((
            format!("{SEED_PROGRAM} {sets:?}"),
            program::read(&root().join(SEED_PROGRAM), &settings)?,
            None,
        ));
    }
    let named = parallel::map(&programs, |(name, program, trace)| {
        compare(name, program, trace.as_ref()).map(|compared| [compared, None])
    });
    let sharing = parallel::map(&programs, |(name, program, trace)| match shared(program) {
        Some(program) => {
            compare(&format!("{name}, prefixes shared"), &program, trace.as_ref()).map(|compared| [compared, None])
        }
        None => Ok([None, None]),
    });
    let seeds: Vec<u64> = (seed..seed + count).collect();
    let random = parallel::map(&seeds, |&seed| {
        let text = generator::generate(seed).text;
        // What the compiler refuses has nothing to leap over.
        let Ok(mut program) = program::link("generated.sq", &text, &Settings::default()) else {
            return Ok([None, None]);
        };
        let as_it_is = compare(&format!("generated program {seed}"), &program, None)?;
        lengthen_decodes(&mut program.session);
        if let Some(program) = shared(&program) {
            compare(&format!("generated program {seed} with long decodes, prefixes shared"), &program, None)?;
        }
        Ok([as_it_is, compare(&format!("generated program {seed} with long decodes"), &program, None)?])
    });
    let leaping = parallel::map(&seeds, |&seed| {
        let name = format!("leaping program {seed}");
        let program = program::link("leaping.sq", &leaping::program(seed), &Settings::default())?;
        let shared = shared(&program).map(|program| compare(&format!("{name}, prefixes shared"), &program, None));
        Ok([compare(&name, &program, None)?, shared.transpose()?.flatten()])
    });
    let mut told = String::new();
    let kinds = [
        ("cases, examples and settings", named),
        ("of them with prefixes shared", sharing),
        ("random programs", random),
        ("random programs with much to leap over", leaping),
    ];
    for (what, results) in kinds {
        let (mut runs, mut leapt, mut steps, mut stopped) = (0, 0, 0, 0);
        for result in results {
            let result: Result<[Option<Compared>; 2], String> = result;
            for compared in result?.into_iter().flatten() {
                match compared {
                    Compared::Equal { leaps, steps_leapt } => {
                        runs += 1;
                        leapt += u64::from(leaps > 0);
                        steps += steps_leapt;
                    }
                    Compared::BothStop => stopped += 1,
                }
            }
        }
        let _ = write!(told, "{runs} {what}: the same bits; {leapt} leapt, over {steps} steps");
        let _ = writeln!(told, "; {stopped} stop, with leaps and without");
    }
    Ok(told)
}

enum Compared {
    Equal { leaps: u64, steps_leapt: u64 },
    BothStop,
}

/// Every decode has sixteen times as many tokens.
fn lengthen_decodes(block: &mut Block) {
    for stmt in block {
        match &mut stmt.kind {
            StmtKind::Run(run) if run.mode == Some(Mode::Decode) => lengthen(&mut run.work),
            StmtKind::Run(run) => run.then.iter_mut().for_each(|then| lengthen(&mut then.work)),
            StmtKind::Hold(hold) => lengthen_decodes(&mut hold.body),
            StmtKind::Branch { then, otherwise, .. } => {
                lengthen_decodes(then);
                lengthen_decodes(otherwise);
            }
            StmtKind::Loop { body } | StmtKind::Shielded { body } | StmtKind::Fork { body } => lengthen_decodes(body),
            _ => {}
        }
    }
}

fn lengthen(work: &mut Expr) {
    let sixteen = || Expr::Number(Number(16.0));
    let before = std::mem::replace(work, sixteen());
    *work = Expr::Binary(Binary::Multiply, Box::new(before), Box::new(sixteen()));
}

fn files() -> Result<Vec<PathBuf>, String> {
    let mut files = program::cases('d')?;
    files.extend(program::cases('r')?);
    examples(&root().join("examples"), &mut files)?;
    Ok(files)
}

fn examples(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let path = entry.map_err(|e| e.to_string())?.path();
        if path.is_dir() {
            examples(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "sq") {
            files.push(path);
        }
    }
    Ok(())
}

/// The trace a program names, beside it.
fn trace(path: &Path, program: &Program) -> Result<Option<TraceFile>, String> {
    let Some(named) = &program.workload.trace else { return Ok(None) };
    let path = path.with_file_name(&named.path);
    let file = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let trace = TraceFile::read(BufReader::new(file), BadRows::Refuse);
    trace.map(Some).map_err(|e| format!("{}: {e}", path.display()))
}

/// The program with prefixes shared in every pool that can, if there is one; by a few groups,
/// where neither it nor a trace says which.
fn shared(program: &Program) -> Option<Program> {
    let mut program = program.clone();
    let mut can: Vec<bool> =
        program.pools.iter().map(|pool| pool.block.is_some() && pool.evict == Evict::Lru).collect();
    let spills = || program.pools.iter().enumerate().filter_map(|(at, pool)| Some((at, pool.spill.as_ref()?)));
    // What is spilled is shared on both sides, or on neither.
    for _ in 0..program.pools.len() {
        for (at, spill) in spills() {
            let into = spill.pool.pool as usize;
            let sizes = program.pools[at].block.zip(program.pools[into].block);
            let whole = sizes.is_some_and(|(block, there)| (block.0 / there.0).fract() == 0.0);
            let both = can[at] && can[into] && whole;
            (can[at], can[into]) = (both, both);
        }
    }
    let any = can.contains(&true);
    for (pool, can) in program.pools.iter_mut().zip(can) {
        pool.share_prefixes = can;
        if let Some(spill) = pool.spill.as_mut().filter(|_| can) {
            // A shared block has no age.
            spill.when = Expr::Number(Number(1.0));
        }
    }
    if program.workload.trace.is_none() && program.workload.prefix.is_none() {
        program.workload.prefix = Some(groups());
    }
    any.then_some(program)
}

/// Every third session begins like the one three before, with 1 000 tokens.
fn groups() -> Prefix {
    let number = |n: f64| Expr::Number(Number(n));
    let serial = || Expr::Attribute(BuiltIn::Serial as u32);
    let third = Expr::Binary(Binary::Divide, Box::new(serial()), Box::new(number(3.0)));
    let whole = Expr::Call(Function::Floor, vec![third]);
    let rounds = Expr::Binary(Binary::Multiply, Box::new(number(3.0)), Box::new(whole));
    let group = Expr::Binary(Binary::Subtract, Box::new(serial()), Box::new(rounds));
    Prefix { group, tokens: number(1_000.0) }
}

fn compare(name: &str, program: &Program, trace: Option<&TraceFile>) -> Result<Option<Compared>, String> {
    let planned = run(program, trace, Steps::Planned);
    match (&planned, run(program, trace, Steps::Singly)) {
        (Ok(planned), Ok(singly)) => same(name, "taken singly", program, planned, &singly)?,
        (Err(_), Err(_)) => {}
        (Ok(_), Err(stop)) => return Err(format!("{name}: with steps taken singly it stops: {stop}")),
        (Err(stop), Ok(_)) => return Err(format!("{name}: with every step planned it stops: {stop}")),
    }
    match (run(program, trace, Steps::Leaps), planned) {
        (Ok(with), Ok(without)) => {
            same(name, "leapt over", program, &without, &with)?;
            if without.report.leaps > 0 {
                return Err(format!("{name}: leaps where there are to be none"));
            }
            Ok(Some(Compared::Equal { leaps: with.report.leaps, steps_leapt: with.report.steps_leapt }))
        }
        // One of them may meet the limit on events only.
        (Err(_), Err(_)) => Ok(Some(Compared::BothStop)),
        (Ok(_), Err(stop)) if stop.contains("max-events") => Ok(None),
        (Ok(_), Err(stop)) => Err(format!("{name}: without leaps it stops: {stop}")),
        (Err(stop), Ok(_)) => Err(format!("{name}: with leaps it stops: {stop}")),
    }
}

/// Compares a run whose steps were taken in some way with the one that planned each.
fn same(name: &str, way: &str, program: &Program, planned: &Outcome, other: &Outcome) -> Result<(), String> {
    let wrong = differences(&figures(program, planned), &figures(program, other));
    if !wrong.is_empty() {
        return Err(format!("{name}: with steps {way} it differs\n{}", wrong.join("\n")));
    }
    let (expected, notes) = (&planned.report.notes, &other.report.notes);
    if expected != notes {
        return Err(format!("{name}: with steps {way} its notes differ: {notes:?}, not {expected:?}"));
    }
    Ok(())
}

fn run(program: &Program, trace: Option<&TraceFile>, steps: Steps) -> Result<Outcome, String> {
    let options = Options { record: true, steps, max_events: Some(EVENTS_MAX), ..Options::default() };
    simulate(program, trace, &options, &mut |_, _| true).map_err(|e| e.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a build with assertions the kernel checks its blocks after every fact.
    #[test]
    fn generated_programs_with_shared_prefixes_keep_the_invariants_and_the_bits() {
        let mut ran = 0;
        for seed in 1..=500 {
            let text = generator::generate(seed).text;
            let Ok(program) = program::link("generated.sq", &text, &Settings::default()) else { continue };
            let Some(program) = shared(&program) else { continue };
            if let Some(Compared::Equal { .. }) = compare(&format!("generated program {seed}"), &program, None).unwrap()
            {
                ran += 1;
            }
        }
        assert!(ran > 50, "{ran} programs ran");
    }

    #[test]
    fn programs_with_much_to_leap_over_leap_and_keep_the_bits() {
        let mut leapt = 0;
        for seed in 1..=60 {
            let program = program::link("leaping.sq", &leaping::program(seed), &Settings::default()).unwrap();
            let compared = compare(&format!("leaping program {seed}"), &program, None).unwrap();
            leapt += u32::from(matches!(compared, Some(Compared::Equal { leaps, .. }) if leaps > 0));
        }
        assert!(leapt > 50, "{leapt} programs leapt");
    }
}
