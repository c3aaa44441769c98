//! Random scenarios through vLLM's schedulers and through the kernel, until they part.
//!
//! A scenario is a variant of `tests/oracle/prefill_decode.sq` or `colocated.sq`, a function of its seed. It
//! is drawn to be tight: pools a few blocks larger than the largest request, few seats, small
//! budgets, prompts around block boundaries, groups that share beginnings of every length. What
//! such runs are to meet is counted, so that a generator that has become tame is seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serq_ir::Program;
use serq_lang::Settings;
use serq_oracle::{Recorded, Refused, Scenario, Source, Story, compare, simulate};
use serq_sim::{Options, Steps};

use crate::differential::generator::Rng;
use crate::fingerprint::{differences, figures};
use crate::program::{link, root};

/// How many, which, and where the answers come from.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Requests, in all scenarios together, at least.
    #[arg(long, default_value_t = 2_000)]
    pub requests: u64,
    /// Seed of the first scenario; the others follow.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The Python that has vLLM's schedulers.
    #[arg(long, default_value = "target/oracle-venv/bin/python")]
    pub python: PathBuf,
    /// Takes the answers from this file, without Python.
    #[arg(long, conflicts_with = "record")]
    pub recorded: Option<PathBuf>,
    /// Writes the answers to this file.
    #[arg(long)]
    pub record: Option<PathBuf>,
}

fn within(dice: &mut Rng, least: i64, most: i64) -> i64 {
    least + dice.between(0, (most - least) as u64) as i64
}

/// The text of a scenario.
pub fn text(seed: u64) -> String {
    let mut dice = Rng::new(seed);
    let split = dice.chance(67);
    // Many at once on few engines, with room, slow reads and prompts of both kinds.
    let crowd = dice.chance(50);
    let block = dice.one_of(&[16, 16, 16, 32, 128]);
    let count = within(&mut dice, 4, 16);
    let longest = dice.one_of(&[40, 100, 300]) * block / 16;
    let mut lists: Vec<(&str, Vec<i64>)> =
        ["arrives", "prompts", "answers", "groups", "shared"].map(|name| (name, Vec::new())).into();
    let mut now = 0;
    let mut largest = 0;
    for _ in 0..count {
        now += if crowd { dice.one_of(&[0, 0, 0, 1]) } else { dice.one_of(&[0, 0, 0, 1, 1, 2, 5, 12]) };
        let around = dice.one_of(&[-1, 0, 1]);
        let prompt = match dice.chance(50) {
            true => within(&mut dice, 2, longest),
            false => (block * within(&mut dice, 1, longest / block + 1) + around).max(2),
        };
        let answer = match within(&mut dice, 0, 3) {
            0 => 1,
            1 => 2,
            2 if crowd => within(&mut dice, 1, 8),
            _ => within(&mut dice, 8, 60),
        };
        let shared = match within(&mut dice, 0, 3) {
            0 => 0,
            1 => prompt,
            2 => (block * within(&mut dice, 1, 4) + around).min(prompt),
            _ => within(&mut dice, 0, prompt),
        };
        largest = largest.max((prompt + answer + block - 1) / block);
        for (list, value) in lists.iter_mut().zip([now, prompt, answer, within(&mut dice, 1, 2), shared]) {
            list.1.push(value);
        }
    }
    let mut text = format!("vary \"{}.sq\";\n", if split { "prefill_decode" } else { "colocated" });
    let side = |text: &mut String, dice: &mut Rng, letter: char| {
        let engines = if crowd { 1 } else { dice.one_of(&[1, 1, 2, 3]) };
        let spare = match within(dice, 0, 4) {
            0 => 0,
            1 => 1,
            2 if !crowd => 2,
            _ if crowd => within(dice, 2 * largest, 6 * largest),
            3 => within(dice, 0, 2 * largest),
            _ => within(dice, 0, 6 * largest),
        };
        let seats = dice.one_of(if crowd { &[1, 2, 3, 4, 16] } else { &[1, 2, 3, 16, 16] });
        let budget = match within(dice, 0, if letter == 'P' { 2 } else { 4 }) {
            0 => within(dice, 8, longest + 16),
            1 => within(dice, block, 3 * block),
            _ => 8192,
        };
        let chunk =
            if dice.chance(if crowd { 50 } else { 33 }) { within(dice, 1, longest).to_string() } else { "inf".into() };
        let _ = write!(
            text,
            "let N{letter} = {engines};\nlet blocks{letter} = {};\nlet bs{letter} = {block};\nlet max_seqs{letter} = {seats};\nlet B{letter} = {};\nlet chunk{letter} = {chunk};\n",
            largest + spare,
            budget.max(seats)
        );
        engines
    };
    let decoders = side(&mut text, &mut dice, 'D');
    lists.push(("to_D", (0..count).map(|_| within(&mut dice, 0, decoders - 1)).collect()));
    if split {
        let prefillers = side(&mut text, &mut dice, 'P');
        let to = |dice: &mut Rng| {
            if dice.chance(if crowd { 50 } else { 25 }) { -1 } else { within(dice, 0, prefillers - 1) }
        };
        lists.push(("to_P", (0..count).map(|_| to(&mut dice)).collect()));
        let k = if crowd { within(&mut dice, 2, 9) } else { dice.one_of(&[0, 0, 1, 2, 5]) };
        let _ = writeln!(text, "let k = {k};");
        let _ = writeln!(text, "let m = {};", dice.one_of(&[0, 0, 1, 3]));
        let _ = writeln!(text, "let pushed = {};", dice.one_of(&[0, 0, 1]));
    }
    if dice.chance(75) {
        let arrives = lists[0].1.clone();
        let leaves = |arrives: &i64| match dice.chance(40) {
            true => (arrives + dice.one_of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30])).to_string(),
            false => "inf".into(),
        };
        let aborts: Vec<String> = arrives.iter().map(leaves).collect();
        let _ = writeln!(text, "let aborts = [{}];", aborts.join(", "));
    }
    for (name, values) in &lists {
        let _ = writeln!(text, "let {name} = {values:?};");
    }
    let _ = writeln!(text, "let pipelined = {};", u8::from(dice.chance(50)));
    if split && dice.chance(50) {
        let slower: Vec<i64> = (0..count).map(|_| dice.one_of(&[0, 0, 1, 2, 3, 8])).collect();
        let _ = writeln!(text, "let slower = {slower:?};");
    }
    text
}

/// How often what is to be met was met.
#[derive(Debug, Default)]
struct Met {
    preempted: u64,
    preempted_twice: u64,
    evicted: u64,
    /// Requests parked while three others were.
    parked_many: u64,
    /// Chunks of local prompts beside a parked request.
    chunked_beside_remote: u64,
    hits: u64,
    /// Scenarios with asynchronous scheduling.
    asynchronous: u64,
    /// By where a request was when its client went away.
    aborted: BTreeMap<&'static str, u64>,
}

/// Where a request was before a step: what it had come to, and what would have been next.
const STATES: [(&str, &[&str], &[&str]); 6] = [
    ("waiting for a prefiller", &["prefill arrive"], &["prefill admit"]),
    ("on a prefiller", &["prefill admit"], &["prefill finish"]),
    ("waiting for a decoder", &["decode arrive"], &["park", "admit"]),
    ("parked", &["park"], &["read done"]),
    ("read", &["read done"], &["promote"]),
    ("decoding", &["admit"], &["finish"]),
];

impl Met {
    fn add(&mut self, scenario: &Scenario, story: &Story) {
        self.asynchronous += u64::from(scenario.mode == "async");
        let event = |request: usize, name: &str| story.requests[request].events.get(name).copied();
        for at in 0..scenario.requests.len() {
            self.preempted += u64::from(!story.requests[at].preempted.is_empty());
            self.preempted_twice += u64::from(story.requests[at].preempted.len() > 1);
        }
        for (asked, request) in scenario.requests.iter().zip(&story.requests) {
            let Some(aborted) = asked.aborted else { continue };
            let met = |events: &[&str], arrives: bool| {
                events
                    .iter()
                    .filter_map(|event| request.events.get(event))
                    .any(|&step| if arrives { step <= aborted } else { step < aborted })
            };
            let arrives = |events: &[&str]| events[0].ends_with("arrive");
            let state = STATES.iter().find(|(_, came, next)| met(came, arrives(came)) && !met(next, false));
            if let Some((state, ..)) = state {
                *self.aborted.entry(state).or_default() += 1;
            }
        }
        for decoder in 0..scenario.decoders.count {
            let here: Vec<usize> =
                (0..scenario.requests.len()).filter(|&at| scenario.requests[at].decoder == decoder).collect();
            let parked = |at: usize, step: u64| {
                event(at, "park").is_some_and(|park| park <= step)
                    && event(at, "promote").is_none_or(|promote| step < promote)
            };
            let engine = format!("D{decoder}");
            let parked_by = |step: u64| here.iter().filter(|&&at| parked(at, step)).count();
            let many = here.iter().filter(|&&at| event(at, "park").is_some_and(|park| parked_by(park) > 3));
            self.parked_many += many.count() as u64;
            for (step, engines) in &story.steps {
                let Some((done, _)) = engines.get(&engine) else { continue };
                let chunked = here.iter().filter(|&&at| {
                    let asked = &scenario.requests[at];
                    let prefills = event(at, "first token").is_none_or(|first| *step < first);
                    asked.prefiller.is_none() && prefills && done.scheduled.contains_key(&asked.name)
                });
                self.chunked_beside_remote += if parked_by(*step) > 0 { chunked.count() as u64 } else { 0 };
            }
            self.count_hits(scenario, story, &here, &engine);
        }
    }

    /// Hits on a decoder, and those there would have been if nothing had been evicted since.
    fn count_hits(&mut self, scenario: &Scenario, story: &Story, here: &[usize], engine: &str) {
        let block = scenario.decoders.block;
        for &at in here {
            let asked = &scenario.requests[at];
            let events = &story.requests[at].events;
            let (Some(admit), Some(first)) = (events.get("admit"), events.get("first token")) else { continue };
            if asked.prefiller.is_some() || story.requests[at].preempted.iter().any(|step| step <= first) {
                continue;
            }
            let steps = story.steps.range(admit..=first);
            let computed: u64 =
                steps.filter_map(|(_, engines)| engines.get(engine)?.0.scheduled.get(&asked.name)).sum();
            let prompt: u64 = asked.prompt.iter().map(|(_, tokens)| tokens).sum();
            let hit = prompt.saturating_sub(computed);
            self.hits += u64::from(hit > 0);
            let group = |asked: &serq_oracle::Asked| match &asked.prompt[0] {
                (name, tokens) if name.starts_with('g') => Some((name.clone(), *tokens)),
                _ => None,
            };
            let Some((name, tokens)) = group(asked) else { continue };
            let before = here
                .iter()
                .filter(|&&other| story.requests[other].events.get("finish").is_some_and(|finish| finish < admit));
            let shared = before.filter_map(|&other| group(&scenario.requests[other])).filter(|(of, _)| *of == name);
            let most = shared.map(|(_, theirs)| theirs.min(tokens)).max().unwrap_or(0);
            self.evicted += u64::from(hit < most.min(prompt - 1) / block * block);
        }
    }
}

/// Runs scenarios until there are enough requests, or two stories part.
///
/// # Errors
///
/// The first difference, with the scenario; or that there is no oracle.
pub fn oracle(arguments: &Arguments) -> Result<String, String> {
    let refuse = |Refused(why): Refused| why;
    let script = root().join("tools/oracle/schedulers.py");
    let mut source = Source::open(arguments.recorded.as_deref(), &arguments.python, &script).map_err(refuse)?;
    let mut written = Vec::new();
    let (mut met, mut requests, mut scenarios, mut compared) = (Met::default(), 0, 0, 0);
    while requests < arguments.requests {
        let seed = arguments.seed + scenarios;
        let text = text(seed);
        let program = linked(seed, &text)?;
        let scenario = Scenario::of(&program).map_err(refuse)?;
        let answer = source.answer(&scenario).map_err(refuse)?;
        let kernel = simulate(&program, &scenario).map_err(|error| format!("{error:?}\n{text}"))?;
        let story = answer.story(&scenario);
        let verdict = compare(&scenario, &story, &kernel);
        if let Some(difference) = verdict.difference {
            return Err(format!("scenario {seed}: {difference}\n{text}"));
        }
        same_bits(&program, &scenario).map_err(|difference| format!("scenario {seed}: {difference}\n{text}"))?;
        met.add(&scenario, &story);
        requests += scenario.requests.len() as u64;
        compared += verdict.compared;
        scenarios += 1;
        if arguments.record.is_some() {
            written.push(Recorded { scenario, answer });
        }
    }
    if let Some(path) = &arguments.record {
        Recorded::write(&written, path).map_err(refuse)?;
    }
    let Met { preempted, preempted_twice, evicted, parked_many, chunked_beside_remote, hits, asynchronous, aborted } =
        met;
    let aborted: Vec<String> = aborted.iter().map(|(state, count)| format!("{count} {state}")).collect();
    Ok(format!(
        "{scenarios} random scenarios ({asynchronous} asynchronous), {requests} requests, {compared} steps of engines: the same as vLLM 0.32.0's schedulers\n\
         met: {preempted} preempted on a decoder, {preempted_twice} of them more than once; {hits} hits, {evicted} that eviction cost; {parked_many} parked beside three or more; {chunked_beside_remote} chunks of local prompts beside a parked request\n\
         clients gone while their request was: {}",
        aborted.join(", ")
    ))
}

/// However steps are taken, with clients going away meanwhile: the same run.
fn same_bits(program: &Program, scenario: &Scenario) -> Result<(), String> {
    let run = |steps: Steps| {
        let options = Options { record: true, steps, cancellations: scenario.cancellations(), ..Options::default() };
        let outcome = serq_sim::simulate(program, None, &options, &mut |_, _| true).map_err(|e| format!("{e:?}"))?;
        Ok::<_, String>(figures(program, &outcome))
    };
    let planned = run(Steps::Planned)?;
    for steps in [Steps::Leaps, Steps::Singly] {
        if let Some(difference) = differences(&planned, &run(steps)?).first() {
            return Err(format!("{steps:?} is not {:?}: {difference}", Steps::Planned));
        }
    }
    Ok(())
}

fn linked(seed: u64, text: &str) -> Result<Program, String> {
    let path = root().join(Path::new("tests/oracle")).join(format!("random_{seed}.sq"));
    link(&path.to_string_lossy(), text, &Settings::default())
}
