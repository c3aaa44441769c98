//! Where two stories of one scenario part, and what either says there.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::scenario::Scenario;
use crate::{EVENTS, Step, Story};

/// What a comparison came to.
pub struct Verdict {
    /// Steps of engines that were compared.
    pub compared: u64,
    /// The first difference, in words; `None`: there is none.
    pub difference: Option<String>,
}

/// An engine's steps, what is not told filled in.
struct Steps<'s> {
    story: &'s Story,
    free: BTreeMap<String, u64>,
}

impl<'s> Steps<'s> {
    fn new(story: &'s Story, scenario: &Scenario) -> Self {
        let sides = [('P', scenario.prefillers.as_ref()), ('D', Some(&scenario.decoders))];
        let free = sides
            .into_iter()
            .filter_map(|(letter, side)| Some((letter, side?)))
            .flat_map(|(letter, side)| (0..side.count).map(move |member| (format!("{letter}{member}"), side.blocks)));
        Self { story, free: free.collect() }
    }

    /// The engine's step, of which nothing may be told: then it does nothing and has what it had.
    fn step(&mut self, step: u64, engine: &str) -> Step {
        let told = self.story.steps.get(&step).and_then(|engines| engines.get(engine));
        let free = self.free.get_mut(engine).expect("all engines are there");
        match told {
            Some((told, left)) => {
                *free = *left;
                told.clone()
            }
            None => Step { free: *free, ..Step::default() },
        }
    }
}

/// Compares what the kernel did with what the schedulers did.
pub fn compare(scenario: &Scenario, schedulers: &Story, kernel: &Story) -> Verdict {
    let last = |story: &Story| story.steps.keys().next_back().copied().unwrap_or(0);
    let end = last(schedulers).max(last(kernel));
    let (mut theirs, mut ours) = (Steps::new(schedulers, scenario), Steps::new(kernel, scenario));
    let engines: Vec<String> = ours.free.keys().cloned().collect();
    let mut compared = 0;
    for step in 0..=end {
        let mut parted = Vec::new();
        for engine in &engines {
            let (theirs, ours) = (theirs.step(step, engine), ours.step(step, engine));
            compared += 1;
            if theirs != ours {
                parted.push((engine, theirs, ours));
            }
        }
        if !parted.is_empty() {
            let mut text = format!("first difference in step {step}\n");
            for (engine, theirs, ours) in parted {
                for (at, (side, did, story)) in
                    [("vLLM", theirs, schedulers), ("kernel", ours, kernel)].into_iter().enumerate()
                {
                    let name = if at == 0 { engine } else { "" };
                    let _ = writeln!(text, "  {name:3} {side:7} {}", words(&did));
                    let _ = writeln!(text, "              {}", state(scenario, story, engine, step));
                }
            }
            text += &events_near(schedulers, kernel, step);
            return Verdict { compared, difference: Some(text) };
        }
    }
    let mut text = String::new();
    for (theirs, ours) in schedulers.requests.iter().zip(&kernel.requests) {
        for event in EVENTS {
            let (theirs, ours) = (theirs.events.get(event), ours.events.get(event));
            if theirs != ours {
                let _ = writeln!(text, "  {event}: vLLM {}, kernel {}", step_word(theirs), step_word(ours));
            }
        }
        if theirs.preempted != ours.preempted {
            let _ = writeln!(text, "  preempted: vLLM {:?}, kernel {:?}", theirs.preempted, ours.preempted);
        }
        if !text.is_empty() {
            return Verdict {
                compared,
                difference: Some(format!("every step is the same; {} differs\n{text}", ours.name)),
            };
        }
    }
    Verdict { compared, difference: None }
}

fn step_word(step: Option<&u64>) -> String {
    step.map_or_else(|| "never".into(), |step| format!("step {step}"))
}

/// `r0 64, r3 1; preempts r4; blocks free: 3`
fn words(step: &Step) -> String {
    let scheduled: Vec<String> = step.scheduled.iter().map(|(name, tokens)| format!("{name} {tokens}")).collect();
    let scheduled = if scheduled.is_empty() { "nobody".into() } else { scheduled.join(", ") };
    let preempted =
        if step.preempted.is_empty() { String::new() } else { format!("; preempts {}", step.preempted.join(", ")) };
    format!("{scheduled}{preempted}; blocks free: {}", step.free)
}

/// Who is where on an engine once a step is scheduled: `running r0 r2; parked r1`.
fn state(scenario: &Scenario, story: &Story, engine: &str, step: u64) -> String {
    // By what a request came to last.
    let (stages, of): (&[(&str, &str)], _) = match engine.split_at(1) {
        ("P", number) => (
            &[
                ("prefill arrive", "waiting"),
                ("prefill admit", "running"),
                ("prefill finish", "leased"),
                ("prefill free", ""),
            ],
            number,
        ),
        (_, number) => (
            &[
                ("decode arrive", "waiting"),
                ("park", "parked"),
                ("promote", "running"),
                ("admit", "running"),
                ("finish", ""),
            ],
            number,
        ),
    };
    let is_prefill = engine.starts_with('P');
    let mut by_state: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (asked, request) in scenario.requests.iter().zip(&story.requests) {
        let number = if is_prefill { asked.prefiller } else { Some(asked.decoder) };
        if number.map(|number| number.to_string()).as_deref() != Some(of) {
            continue;
        }
        // What a step's output brings is there from the next one on.
        let came = |event: &str| {
            let ends = matches!(event, "prefill finish" | "prefill free" | "finish");
            request.events.get(event).is_some_and(|&at| if ends { at < step } else { at <= step })
        };
        let preempted = request.preempted.iter().filter(|&&at| at <= step).max();
        let now = stages.iter().rev().find(|(event, _)| came(event)).map_or("", |(_, state)| state);
        let scheduled = |at: u64| {
            story
                .steps
                .get(&at)
                .and_then(|engines| engines.get(engine))
                .is_some_and(|(step, _)| step.scheduled.contains_key(&request.name))
        };
        let back = preempted.is_none_or(|&at| (at..=step).any(scheduled));
        let now = if now == "running" && !is_prefill && !back { "preempted" } else { now };
        if !now.is_empty() {
            by_state.entry(now).or_default().push(&request.name);
        }
    }
    let words: Vec<String> = by_state.iter().map(|(state, names)| format!("{state} {}", names.join(" "))).collect();
    if words.is_empty() { "nobody is there".into() } else { words.join("; ") }
}

/// What befell requests in the step before and in this one, where the two do not agree.
fn events_near(schedulers: &Story, kernel: &Story, step: u64) -> String {
    let mut text = String::new();
    for (request, ours) in schedulers.requests.iter().zip(&kernel.requests) {
        for event in EVENTS {
            let (theirs, ours) = (request.events.get(event), ours.events.get(event));
            let near = [theirs, ours].into_iter().flatten().any(|at| *at <= step + 1);
            if theirs != ours && near {
                let name = &request.name;
                let _ = writeln!(text, "  {name} {event}: vLLM {}, kernel {}", step_word(theirs), step_word(ours));
            }
        }
    }
    text
}
