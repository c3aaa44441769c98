//! One program, many seeds, intervals, and the twin with a planted bug.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, simulate};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Independent seeds a program is run on.
pub(crate) const SEEDS: u64 = 32;

/// How often an interval may miss the value it is an interval of.
const FALSE_ALARM: f64 = 1e-4;

/// A twin is this many standard errors off, or it is no test of the figure.
const POWER: f64 = 6.0;

/// Student's t, two-sided.
pub(crate) fn student(miss: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).expect("degrees of freedom are positive").inverse_cdf(1.0 - miss / 2.0)
}

/// A program's text from `tests/sim/theory/`.
pub(crate) fn text(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/sim/theory").join(format!("{name}.sq"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compiles a program's text.
pub(crate) fn program(name: &str, text: &str, settings: &Settings) -> Program {
    let (mut sources, mut diagnostics) = load(Some(name), text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, settings);
    diagnostics.extend(more);
    program.unwrap_or_else(|| panic!("{name} does not load: {diagnostics:#?}\n{text}"))
}

/// A setting `name=value`.
type Set = (&'static str, &'static str);

/// Every service 5 % longer: what a figure must notice if nothing else is said.
pub(crate) const BUG: Set = ("bug", "1.05");

#[derive(Debug)]
struct Figure {
    name: &'static str,
    /// Where it stands in the report's JSON.
    pointer: &'static str,
    theory: f64,
    /// Settings each of which must move it.
    twins: Vec<Set>,
}

/// A program, the figures theory knows, and what must change them.
#[derive(Debug)]
pub(crate) struct Law {
    program: &'static str,
    variant: Option<&'static str>,
    sets: Vec<Set>,
    longer: f64,
    figures: Vec<Figure>,
}

/// A mean over seeds.
#[derive(Clone, Copy, Debug)]
struct Interval {
    mean: f64,
    error: f64,
    half_width: f64,
}

impl Interval {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
        let error = (variance / n).sqrt();
        Self { mean, error, half_width: student(FALSE_ALARM, n - 1.0) * error }
    }

    fn covers(&self, value: f64) -> bool {
        (self.mean - value).abs() <= self.half_width
    }

    /// Distance in standard errors.
    fn off(&self, value: f64) -> f64 {
        (self.mean - value).abs() / self.error
    }
}

impl Law {
    /// A program of `tests/sim/theory/`.
    pub(crate) fn new(program: &'static str) -> Self {
        Self { program, variant: None, sets: Vec::new(), longer: 1.0, figures: Vec::new() }
    }

    /// One of the program's variants; its figures' names in the header end with `, name`.
    pub(crate) fn variant(mut self, name: &'static str, set: &'static str, value: &'static str) -> Self {
        self.variant = Some(name);
        self.sets.push((set, value));
        self
    }

    /// Multiplies the horizon, for a variant whose figures vary more.
    pub(crate) fn longer(mut self, factor: f64) -> Self {
        self.longer = factor;
        self
    }

    /// A figure of the report and what theory says.
    pub(crate) fn figure(mut self, name: &'static str, pointer: &'static str, theory: f64) -> Self {
        self.figures.push(Figure { name, pointer, theory, twins: vec![BUG] });
        self
    }

    /// The bug that moves the last figure, instead of [`BUG`].
    pub(crate) fn twin(mut self, name: &'static str, value: &'static str) -> Self {
        self.figures.last_mut().expect("a figure comes first").twins = vec![(name, value)];
        self
    }

    /// One more bug that must move the last figure.
    pub(crate) fn and_twin(mut self, twin: Set) -> Self {
        self.figures.last_mut().expect("a figure comes first").twins.push(twin);
        self
    }

    /// Every variant has seeds of its own: with shared ones the same unlucky draws would pull
    /// all laws to one side.
    fn first_seed(&self) -> u64 {
        let name = self.program.bytes().chain(self.variant.unwrap_or("").bytes());
        1000 * name.fold(0, |hash: u64, byte| (hash * 31 + u64::from(byte)) % 1_000_003)
    }

    /// Reports of all seeds.
    fn run(&self, text: &str, twin: Option<Set>) -> Vec<Value> {
        let sets = self.sets.iter().chain(&twin).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Settings { sets: sets.collect(), ..Settings::default() };
        let mut program = program(self.program, text, &settings);
        program.run.horizon.0 *= self.longer;
        let report = |seed| {
            program.run.seed = seed;
            let outcome = simulate(&program, None, &Options::default(), &mut |_, _| true)
                .unwrap_or_else(|error| panic!("{} stops at seed {seed}: {error:?}", self.program));
            serde_json::to_value(outcome.report).expect("a report is JSON")
        };
        let first = self.first_seed();
        (first..first + SEEDS).map(report).collect()
    }

    fn interval(&self, reports: &[Value], figure: &Figure) -> Interval {
        let value = |report: &Value| {
            report
                .pointer(figure.pointer)
                .and_then(Value::as_f64)
                .unwrap_or_else(|| panic!("{} has no figure {}: {report:#}", self.program, figure.pointer))
        };
        Interval::of(&reports.iter().map(value).collect::<Vec<f64>>())
    }

    /// The number the program's header has for a figure: `//   name   words   = number`.
    fn by_hand(&self, text: &str, figure: &str) -> f64 {
        let written = self.variant.map_or(figure.to_owned(), |variant| format!("{figure}, {variant}"));
        text.lines()
            .filter_map(|line| line.strip_prefix("//   ")?.strip_prefix(&written)?.strip_prefix("  "))
            .find_map(|rest| rest.rsplit_once("= ")?.1.trim().parse().ok())
            .unwrap_or_else(|| panic!("the header of {}.sq has no line for `{written}`", self.program))
    }

    /// Runs the program and its twins; every interval covers its closed form, every twin's is off.
    pub(crate) fn check(self) {
        let text = text(self.program);
        let reports = self.run(&text, None);
        let mut twins: BTreeMap<Set, Vec<Value>> = BTreeMap::new();
        let mut wrong = Vec::new();
        for figure in &self.figures {
            let Figure { name, theory, .. } = *figure;
            let by_hand = self.by_hand(&text, name);
            if (by_hand - theory).abs() > 5.1e-5 {
                wrong.push(format!("{name}: the header says {by_hand}, the formula {theory}"));
            }
            let ours = self.interval(&reports, figure);
            let mut row = format!(
                "| {}{} | {name} | {theory:.4} | {:.4} ± {:.4} |",
                self.program,
                self.variant.map_or(String::new(), |variant| format!(", {variant}")),
                ours.mean,
                ours.half_width,
            );
            if !ours.covers(theory) {
                wrong.push(format!("{name}: theory {theory}, measured {} ± {}", ours.mean, ours.half_width));
            }
            for (at, &twin) in figure.twins.iter().enumerate() {
                let reports = twins.entry(twin).or_insert_with(|| self.run(&text, Some(twin)));
                let theirs = self.interval(reports, figure);
                let off = theirs.off(theory);
                let (set, value) = twin;
                row.push_str(&format!("{} {set} = {value}: {off:.0}", if at == 0 { "" } else { ";" }));
                if theirs.covers(theory) || off < POWER {
                    wrong.push(format!(
                        "{name}: with {set} = {value} measured {} ± {}, only {off:.1} standard errors off {theory}",
                        theirs.mean, theirs.half_width
                    ));
                }
            }
            println!("{row} |");
        }
        assert!(wrong.is_empty(), "{}:\n{}", self.program, wrong.join("\n"));
    }
}
