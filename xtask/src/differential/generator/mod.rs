//! Random valid programs, the same for the same seed everywhere.
//!
//! A program is deterministic (no draw) and its constants are multiples of 1/8, so that
//! sums of them are exact and two implementations can be compared number by number.
//! Two kinds of program take turns:
//!
//! * *free*: random declarations and a random statement list over them (`statements.rs`);
//! * *shaped*: engines as people write them, with random sizes, so that preemption,
//!   leases, back-pressure and reuse happen often (`shapes.rs`).
//!
//! Every grammar alternative used is counted in [`Generated::features`]. What a program
//! made happen is counted by whoever runs it.
//!
//! # Invariants
//!
//! - A statement, declaration or clause stands on a line of its own, and a block's lines
//!   are between the line that ends in `{` and the one that begins with `}`: a program
//!   shrinks by lines.
//! - Nothing depends on hash order, time or the machine.

mod shapes;
mod statements;

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A program and what it is made of.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Its text.
    pub text: String,
    /// How often each grammar alternative occurs in it.
    pub features: BTreeMap<&'static str, u32>,
}

/// The program of a seed.
pub fn generate(seed: u64) -> Generated {
    let mut writer = Writer::new(seed);
    match writer.rng.below(10) {
        0..=4 => statements::free(&mut writer),
        5 | 6 => shapes::engine(&mut writer),
        7 => shapes::parked(&mut writer),
        8 => shapes::hand_over(&mut writer),
        _ => shapes::flows(&mut writer),
    }
    Generated { text: writer.text, features: writer.features }
}

/// xorshift64*, seeded through a mixer so that neighbouring seeds differ.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From `low` to `high`, both possible.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// In (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() + 1) as f64 / (1_u64 << 48) as f64
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Clone>(&mut self, options: &[T]) -> T {
        options[self.below(options.len() as u64) as usize].clone()
    }
}

/// A program being written.
struct Writer {
    rng: Rng,
    /// For what was added later: a program without it is the one that its seed always had.
    later: Rng,
    /// For what was added after that: legs and pushes.
    legs: Rng,
    text: String,
    depth: usize,
    features: BTreeMap<&'static str, u32>,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            later: Rng::new(!seed),
            legs: Rng::new(seed.rotate_left(32) ^ 0x1E65),
            text: String::new(),
            depth: 0,
            features: BTreeMap::new(),
        }
    }

    /// Counts a grammar alternative.
    fn used(&mut self, feature: &'static str) {
        *self.features.entry(feature).or_default() += 1;
    }

    fn line(&mut self, text: impl AsRef<str>) {
        let text = text.as_ref();
        if text.starts_with('}') {
            self.depth -= 1;
        }
        let _ = writeln!(self.text, "{:indent$}{text}", "", indent = 2 * self.depth);
        if text.ends_with('{') {
            self.depth += 1;
        }
    }

    /// One of several alternatives, counted under its name.
    fn pick<T: Clone>(&mut self, options: &[(&'static str, T)]) -> T {
        let (name, value) = options[self.rng.below(options.len() as u64) as usize].clone();
        self.used(name);
        value
    }

    fn one_of<T: Clone>(&mut self, options: &[T]) -> T {
        self.rng.one_of(options)
    }

    /// A multiple of 1/8 in [low, high], more often a whole number.
    fn amount(&mut self, low: f64, high: f64) -> f64 {
        let grain = self.one_of(&[1.0, 1.0, 2.0, 4.0, 8.0]);
        let steps = ((high - low) * grain) as u64;
        low + self.rng.between(0, steps) as f64 / grain
    }

    fn serve_rule(&mut self) -> String {
        let rule = self.pick(&[
            ("serve default", ""),
            ("serve default", ""),
            ("serve admission", "serve admission;"),
            ("serve by", "serve by (remaining);"),
            ("serve by", "serve by (-admission);"),
            ("serve by", "serve by (decoding ? 1 : 0, remaining);"),
            ("serve decode first", "serve decode first;"),
            ("serve exclusive prefill", "serve exclusive prefill;"),
            ("serve only", "serve only (remaining > 2 || decoding == 0);"),
            ("serve only by", "serve only (decoding || decoders < 2) by (-remaining);"),
            ("serve only decode first", "serve only (residents < 4 || admission > 2) decode first;"),
        ]);
        rule.to_owned()
    }

    fn cost(&mut self) -> String {
        self.pick(&[
            ("cost constant", "1"),
            ("cost constant", "0.5"),
            ("cost tokens", "tokens"),
            ("cost tokens", "0.5 + tokens * 0.125"),
            ("cost prefilled", "0.25 + prefilled * 0.25 + decoders * 0.125"),
            ("cost kv", "0.5 + kv_decode * 0.0625 + kv_prefill * 0.03125"),
            ("cost residents", "0.25 + residents * 0.25"),
            ("cost attention", "1 + attention * 0.015625"),
        ])
        .to_owned()
    }

    fn budget(&mut self) -> String {
        match self.rng.below(8) {
            0 => {
                self.used("budget inf");
                "inf".to_owned()
            }
            1 => {
                self.used("budget variable");
                "4 + residents * 2 - decoders".to_owned()
            }
            2 => {
                self.used("budget fractional");
                format!("{}", self.amount(2.0, 12.0) + 0.5)
            }
            _ => {
                self.used("budget whole");
                format!("{}", self.rng.between(2, 20))
            }
        }
    }

    /// `step { … }` for a stage declaration or a queue's `serve`.
    fn step(&mut self, memory: Option<&str>) {
        if self.rng.chance(85) {
            let budget = self.budget();
            self.line(format!("budget {budget};"));
        } else {
            self.used("budget default");
        }
        let cost = self.cost();
        self.line(format!("cost {cost};"));
        if self.rng.chance(30) {
            let chunk = self.pick(&[("chunk", "3"), ("chunk", "2.5"), ("chunk variable", "decoders > 0 ? 2 : 4")]);
            self.line(format!("chunk {chunk};"));
        }
        if let Some(memory) = memory {
            self.used("memory");
            self.line(format!("memory {memory};"));
        }
        let rule = self.serve_rule();
        if !rule.is_empty() {
            self.line(rule);
        }
    }

    fn preempt(&mut self) -> &'static str {
        self.pick(&[
            ("preempt none", "preempt none;"),
            ("preempt lifo", "preempt lifo;"),
            ("preempt lifo", "preempt lifo;"),
            ("preempt by", "preempt by (-position);"),
            ("preempt by", "preempt by (decoding, admission);"),
            ("preempt by", "preempt by (0);"),
        ])
    }

    fn evict(&mut self) -> &'static str {
        self.pick(&[
            ("evict default", ""),
            ("evict lru", "evict lru;"),
            ("evict by size", "evict by (-size);"),
            ("evict by age", "evict by (-age, size);"),
            ("evict by last", "evict by (-last);"),
            ("evict by waiting", "evict by (waiting, -size);"),
            ("evict by attribute", "evict by (x0);"),
        ])
    }

    fn queue_order(&mut self) -> &'static str {
        self.pick(&[
            ("queue default", ""),
            ("queue default", ""),
            ("queue fifo", "queue fifo;"),
            ("queue by attribute", "queue by (x0);"),
            ("queue by waited", "queue by (-waited);"),
            ("queue by attribute", "queue by (x1, -serial);"),
            ("queue by computed", "queue by (-computed, x0);"),
        ])
    }

    /// Arrivals of a few sessions. Answers how many there are at once, 0 for unknown.
    fn arrivals(&mut self, sessions: u64) {
        let law = match self.rng.below(6) {
            0..=2 => {
                self.used("arrive batch");
                format!("arrive batch({sessions});")
            }
            3 | 4 => {
                self.used("arrive renewal");
                let gap = self.one_of(&["0.5", "1", "1.25", "2", "3.5"]);
                format!("arrive renewal({gap});")
            }
            _ => {
                self.used("arrive closed");
                format!("arrive closed({sessions});")
            }
        };
        self.line(law);
    }

    /// `init` with the sizes every program has: x0 … x2, whole or in eighths.
    fn sizes(&mut self) {
        self.line("init {");
        for name in ["x0", "x1", "x2"] {
            let value = match self.rng.below(5) {
                0 => format!("{}", self.amount(1.0, 8.0)),
                1 => format!("{} + serial * {}", self.amount(0.5, 5.0), self.amount(0.0, 2.0)),
                2 => format!("serial == 1 ? {} : {}", self.amount(1.0, 8.0), self.amount(1.0, 8.0)),
                3 => format!("max({} - serial * 0.5, 1)", self.amount(2.0, 8.0)),
                _ => format!("{} + (serial - floor(serial / 3) * 3) * 2", self.amount(0.5, 4.0)),
            };
            self.line(format!("set {name} = {value};"));
        }
        self.line("}");
    }

    fn run_block(&mut self, horizon: &str) {
        self.line("run {");
        self.line(format!("horizon {horizon};"));
        if self.rng.chance(25) {
            self.used("warmup");
            let warmup = self.one_of(&["2", "3.5", "8"]);
            self.line(format!("warmup {warmup};"));
        }
        self.line("}");
    }
}
