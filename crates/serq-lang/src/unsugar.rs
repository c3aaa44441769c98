//! A linked program as text again, without the sugar: plain pools and stages, one
//! session in which every entry, definition and binding is written out.
//!
//! The text is a program: linked again it is the same program, but for names with a
//! dot (`D.kv` is written `D_kv`) and places. That is also its test.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serq_ir::{self as ir, Binary, BuiltIn, Expr, StmtKind, Unary};

use crate::expression::{LAWS, POOL_FIGURES, STAGE_FIGURES};
use crate::format;
use crate::moment;

/// Prints a linked program without sugar.
pub fn unsugar(program: &ir::Program) -> String {
    let mut printer = Printer::new(program);
    printer.program();
    // The formatter knows how lines break; a text it refuses is shown as it is.
    format::format(&printer.text).unwrap_or(printer.text)
}

struct Printer<'p> {
    program: &'p ir::Program,
    text: String,
    pools: Vec<String>,
    stages: Vec<String>,
    attributes: Vec<String>,
    variables: Vec<String>,
    used: BTreeSet<String>,
}

/// How tightly an expression's outermost operator binds.
fn strength(e: &Expr) -> u8 {
    match e {
        Expr::If(..) => 1,
        Expr::Binary(op, ..) => operator(*op).1,
        Expr::Unary(..) => 7,
        Expr::Number(n) if n.0.is_sign_negative() => 7,
        _ => 9,
    }
}

fn operator(op: Binary) -> (&'static str, u8) {
    match op {
        Binary::Or => ("||", 2),
        Binary::And => ("&&", 3),
        Binary::Less => ("<", 4),
        Binary::LessEqual => ("<=", 4),
        Binary::Greater => (">", 4),
        Binary::GreaterEqual => (">=", 4),
        Binary::Equal => ("==", 4),
        Binary::NotEqual => ("!=", 4),
        Binary::Add => ("+", 5),
        Binary::Subtract => ("-", 5),
        Binary::Multiply => ("*", 6),
        Binary::Divide => ("/", 6),
        Binary::Power => ("^", 8),
    }
}

/// `(2) for 600, (8) for 300`
fn pieces(pieces: &[ir::Piece]) -> String {
    let piece = |piece: &ir::Piece| {
        let time = if piece.time.0.is_finite() { format!(" for {}", number(piece.time.0)) } else { String::new() };
        format!("({}){time}", number(piece.rate.0))
    };
    pieces.iter().map(piece).collect::<Vec<_>>().join(", ")
}

/// A number the lexer reads back to the same double.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let plain = format!("{value}");
    if plain.len() <= 17 { plain } else { format!("{value:e}") }
}

impl<'p> Printer<'p> {
    fn new(program: &'p ir::Program) -> Self {
        let mut used: BTreeSet<String> = program.constants.iter().map(|c| c.name.clone()).collect();
        used.extend(program.lists.iter().map(|list| list.name.clone()));
        let mut plain = |name: &str| {
            let mut name = name.replace('.', "_");
            while !used.insert(name.clone()) {
                name.push('_');
            }
            name
        };
        // Attributes first: their own names are what the text reads most.
        let attributes = program
            .attributes
            .iter()
            .enumerate()
            .map(|(k, a)| if k < BuiltIn::NAMES.len() { a.name.clone() } else { plain(&a.name) })
            .collect();
        let pools = program.pools.iter().map(|p| plain(&p.name)).collect();
        let stages = program.stages.iter().map(|s| plain(&s.name)).collect();
        Self { program, text: String::new(), pools, stages, attributes, variables: Vec::new(), used }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn program(&mut self) {
        let p = self.program;
        self.line(&format!("// {}, without the sugar", p.name));
        for c in &p.constants {
            self.line(&format!("let {} = {};", c.name, number(c.value.0)));
        }
        for list in &p.lists {
            let values: Vec<String> = list.values.iter().map(|value| number(value.0)).collect();
            self.line(&format!("let {} = [{}];", list.name, values.join(", ")));
        }
        self.line("");
        for k in 0..p.pools.len() {
            self.pool(k);
        }
        self.line("");
        for k in 0..p.stages.len() {
            self.stage(k);
        }
        match p.share {
            Some(ir::SharePolicy::Maxmin) => self.line("share maxmin;"),
            Some(ir::SharePolicy::Bottleneck) => self.line("share bottleneck;"),
            None => {}
        }
        self.line("");
        self.workload();
        self.line("");
        self.text.push_str("session ");
        self.block(&p.session);
        self.line("");
        for gauge in &p.gauges {
            let value = self.expr(&gauge.value, 0);
            self.line(&format!("gauge {} = {value};", gauge.name));
        }
        self.line("");
        let run = &p.run;
        let arrivals = run.arrivals.map_or(String::new(), |n| format!(" arrivals {n};"));
        self.line(&format!(
            "run {{ horizon {}; warmup {}; seed {};{arrivals} }}",
            number(run.horizon.0),
            number(run.warmup.0),
            run.seed
        ));
    }

    fn size(size: Option<u32>) -> String {
        size.map_or(String::new(), |n| format!("[{n}]"))
    }

    fn keys(&mut self, keys: &[Expr]) -> String {
        let keys: Vec<String> = keys.iter().map(|k| self.expr(k, 0)).collect();
        format!("by ({})", keys.join(", "))
    }

    fn pool(&mut self, k: usize) {
        let pool = &self.program.pools[k];
        let mut options = format!("cap {};", number(pool.cap.0));
        if let Some(block) = pool.block {
            write!(options, " block {};", number(block.0)).expect("a string takes it");
        }
        if let ir::Evict::By(keys) = &pool.evict {
            options += &format!(" evict {};", self.keys(keys));
        }
        match &pool.preempt {
            ir::Preempt::None => {}
            ir::Preempt::Lifo => options += " preempt lifo;",
            ir::Preempt::By(keys) => options += &format!(" preempt {};", self.keys(keys)),
        }
        if let ir::Order::By(keys) = &pool.order {
            options += &format!(" queue {};", self.keys(keys));
        }
        if let Some(via) = pool.via {
            options += &format!(" admit via {};", self.stages[via as usize]);
        }
        if pool.share_prefixes {
            options += if pool.found_scheduled { " share prefixes scheduled;" } else { " share prefixes;" };
        }
        if let Some(spill) = &pool.spill {
            let (to, on) = (self.pool_ref(&spill.pool), self.stage_ref(&spill.stage));
            let (work, when) = (self.expr(&spill.work, 0), self.expr(&spill.when, 0));
            options += &format!(" spill {to} via {on} ({work}) when ({when});");
        }
        let name = &self.pools[k];
        let line = format!("pool {name}{} {{ {options} }}", Self::size(pool.size));
        self.line(&line);
    }

    fn stage(&mut self, k: usize) {
        let stage = &self.program.stages[k];
        let kind = match &stage.kind {
            ir::StageKind::Fifo { servers: 1 } => "fifo".to_string(),
            ir::StageKind::Fifo { servers } => format!("fifo({servers})"),
            ir::StageKind::Delay => "delay".to_string(),
            ir::StageKind::Ps { rate } => format!("ps({})", self.expr(rate, 0)),
            ir::StageKind::Step(step) => self.step(step),
        };
        let line = format!("stage {}{} : {kind};", self.stages[k], Self::size(stage.size));
        self.line(&line);
    }

    fn step(&mut self, step: &ir::Step) -> String {
        let mut options = String::from("step {\n");
        if step.budget != Expr::Number(ir::json::Number(f64::INFINITY)) {
            options += &format!("budget {};\n", self.expr(&step.budget, 0));
        }
        if step.chunk != Expr::Number(ir::json::Number(0.0)) {
            options += &format!("chunk {};\n", self.expr(&step.chunk, 0));
        }
        options += &format!("cost {};\n", self.expr(&step.cost, 0));
        if let Some(memory) = step.memory {
            options += &format!("memory {};\n", self.pools[memory as usize]);
        }
        if let Some(asynchronous) = step.asynchronous {
            options += if asynchronous.fenced { "asynchronous 1 fenced;\n" } else { "asynchronous 1;\n" };
        }
        let only = step.serve.only.as_ref().map(|p| format!("only ({}) ", self.expr(p, 0)));
        if step.serve.exclusive_prefill {
            options += "serve exclusive prefill;\n";
        } else if !step.serve.by.is_empty() {
            options += &format!("serve {}{};\n", only.unwrap_or_default(), self.keys(&step.serve.by));
        } else if let Some(only) = only {
            options += &format!("serve {};\n", only.trim_end());
        }
        options + "}"
    }

    fn workload(&mut self) {
        let w = &self.program.workload;
        let law = match &w.arrive {
            ir::Arrive::None => "none".to_string(),
            ir::Arrive::Poisson(rate) => format!("poisson({})", number(rate.0)),
            ir::Arrive::Steps { pieces: all, repeat } => {
                format!("poisson{}{}", pieces(all), if *repeat { ", repeat" } else { "" })
            }
            ir::Arrive::Bursts { pieces: all } => format!("bursts{}", pieces(all)),
            ir::Arrive::Trace(speed) if speed.0 == 1.0 => "trace".to_string(),
            ir::Arrive::Trace(speed) => format!("trace({})", number(speed.0)),
            ir::Arrive::Renewal(gap) => format!("renewal({})", self.expr(gap, 0)),
            ir::Arrive::Closed(n) => format!("closed({n})"),
            ir::Arrive::Batch(n) => format!("batch({n})"),
        };
        self.line("workload {");
        self.line(&format!("arrive {law};"));
        if let Some(trace) = &w.trace {
            self.line(&format!("trace \"{}\"{};", trace.path, if trace.ordered { " ordered" } else { "" }));
        }
        let hidden: Vec<&str> = self
            .program
            .attributes
            .iter()
            .zip(&self.attributes)
            .filter(|(a, _)| a.hidden)
            .map(|(_, n)| n.as_str())
            .collect();
        if !hidden.is_empty() {
            let line = format!("hidden {};", hidden.join(", "));
            self.line(&line);
        }
        if let Some(ir::Prefix { group, tokens }) = &w.prefix {
            let line = format!("prefix ({}, {});", self.expr(group, 0), self.expr(tokens, 0));
            self.line(&line);
        }
        if !w.init.is_empty() {
            self.text.push_str("init ");
            self.block(&w.init);
        }
        if !w.turn.is_empty() {
            self.text.push_str("turn ");
            self.block(&w.turn);
        }
        self.line("}");
    }

    fn block(&mut self, block: &[ir::Stmt]) {
        self.line("{");
        for stmt in block {
            self.stmt(stmt);
        }
        self.line("}");
    }

    fn pool_ref(&mut self, r: &ir::PoolRef) -> String {
        let index = r.member.as_ref().map(|m| format!("[{}]", self.expr(m, 0)));
        format!("{}{}", self.pools[r.pool as usize], index.unwrap_or_default())
    }

    fn stage_ref(&mut self, r: &ir::StageRef) -> String {
        let index = r.member.as_ref().map(|m| format!("[{}]", self.expr(m, 0)));
        format!("{}{}", self.stages[r.stage as usize], index.unwrap_or_default())
    }

    fn stmt(&mut self, stmt: &ir::Stmt) {
        match &stmt.kind {
            StmtKind::Set { attribute, value } => {
                let value = self.expr(value, 0);
                let line = format!("set {} = {value};", self.attributes[*attribute as usize]);
                self.line(&line);
            }
            StmtKind::Observe { observe, value } => {
                let value = self.expr(value, 0);
                let line = format!("observe {} = {value};", self.program.observes[*observe as usize]);
                self.line(&line);
            }
            StmtKind::Turn => self.line("turn;"),
            StmtKind::End => self.line("end;"),
            StmtKind::Fail => self.line("fail;"),
            StmtKind::Hold(hold) => self.hold(hold),
            StmtKind::Grow { pool, units } => {
                let line = format!("grow {} ({});", self.pool_ref(pool), self.expr(units, 0));
                self.line(&line);
            }
            StmtKind::Load { pool, units } => {
                let line = format!("load {} ({});", self.pool_ref(pool), self.expr(units, 0));
                self.line(&line);
            }
            StmtKind::Drop { pool } => {
                let line = format!("drop {};", self.pool_ref(pool));
                self.line(&line);
            }
            StmtKind::Release { pool, after } => {
                let pool = self.pool_ref(pool);
                let line = match after {
                    Some(after) => format!("release {pool} after ({});", self.expr(after, 0)),
                    None => format!("release {pool};"),
                };
                self.line(&line);
            }
            StmtKind::Run(run) => {
                let stages: Vec<String> = run.stages.iter().map(|s| self.stage_ref(s)).collect();
                let mode = match run.mode {
                    Some(ir::Mode::Prefill) => " prefill",
                    Some(ir::Mode::Decode) => " decode",
                    None => "",
                };
                let work = self.expr(&run.work, 0);
                let growing = run.growing.as_ref().map(|p| format!(" growing {}", self.pool_ref(p)));
                write!(self.text, "run {}{mode} ({work})", stages.join(", ")).expect("a string takes it");
                if let Some(then) = &run.then {
                    self.text.push(' ');
                    self.block(&then.body);
                    let work = self.expr(&then.work, 0);
                    write!(self.text, "decode ({work})").expect("a string takes it");
                }
                let reads = run.reads.as_ref().map(|reads| {
                    let fails = reads.fails.as_ref().map(|p| format!(" fails ({})", self.expr(p, 0)));
                    format!(" from {}{}", self.pool_ref(&reads.pool), fails.unwrap_or_default())
                });
                self.line(&format!("{}{};", growing.unwrap_or_default(), reads.unwrap_or_default()));
            }
            StmtKind::Branch { test, chance, then, otherwise } => {
                let with = if *chance { "with " } else { "" };
                let test = self.expr(test, 0);
                write!(self.text, "branch {with}({test}) ").expect("a string takes it");
                self.block(then);
                if !otherwise.is_empty() {
                    self.text.push_str("else ");
                    self.block(otherwise);
                }
            }
            StmtKind::Loop { body } => {
                self.text.push_str("loop ");
                self.block(body);
            }
            StmtKind::Fork { body } => {
                self.text.push_str("fork ");
                self.block(body);
            }
            StmtKind::Join => self.line("join;"),
            StmtKind::Shielded { body } => {
                self.text.push_str("shielded ");
                self.block(body);
            }
            StmtKind::Choose { attribute, count, keys } => {
                let count = self.expr(count, 0);
                let keys = self.keys(keys);
                let line = format!("choose {} in ({count}) {keys};", self.attributes[*attribute as usize]);
                self.line(&line);
            }
        }
    }

    fn hold(&mut self, hold: &ir::Hold) {
        let mut grabs = Vec::new();
        for grab in &hold.grabs {
            let reserve = grab.reserve.as_ref().map(|e| format!(" reserve ({})", self.expr(e, 0)));
            grabs.push(format!(
                "{} ({}){}",
                self.pool_ref(&grab.pool),
                self.expr(&grab.units, 0),
                reserve.unwrap_or_default()
            ));
        }
        let reuse = hold.reuse.as_ref().map(|e| format!(" reuse ({})", self.expr(e, 0)));
        write!(self.text, "hold {}{} ", grabs.join(", "), reuse.unwrap_or_default()).expect("a string takes it");
        self.block(&hold.body);
        if hold.cache.is_some() || hold.lease.is_some() {
            // Clauses follow the brace.
            self.text.pop();
            if let Some(cache) = &hold.cache {
                let clause = format!(" cache ({})", self.expr(cache, 0));
                self.text += &clause;
            }
            if let Some(lease) = &hold.lease {
                let pool = self.pool_ref(&hold.grabs[lease.grab as usize].pool);
                let clause = format!(" lease {pool} ({})", self.expr(&lease.time, 0));
                self.text += &clause;
                if let Some(renewed) = &lease.renewed {
                    let (time, every) = (self.expr(&renewed.time, 0), self.expr(&renewed.every, 0));
                    write!(self.text, " renewed ({time}) every ({every})").expect("a string takes it");
                }
                if let Some(abandoned) = &lease.abandoned {
                    let clause = format!(" abandoned ({})", self.expr(abandoned, 0));
                    self.text += &clause;
                }
            }
            self.text += "\n";
        }
    }

    /// An expression, in parentheses where its operator binds less than `least`.
    fn expr(&mut self, e: &Expr, least: u8) -> String {
        let text = self.expr_bare(e);
        if strength(e) < least { format!("({text})") } else { text }
    }

    fn expr_bare(&mut self, e: &Expr) -> String {
        match e {
            Expr::Number(n) => number(n.0),
            Expr::Attribute(a) => self.attributes[*a as usize].clone(),
            Expr::Context(ir::Context::Member) => "self".into(),
            Expr::Context(c) => moment::CONTEXT.iter().find(|(_, k)| k == c).map_or("", |(w, _)| w).to_string(),
            Expr::Variable(k) => self.variables[self.variables.len() - 1 - *k as usize].clone(),
            Expr::Unary(op, a) => {
                let sign = match op {
                    Unary::Negate => "-",
                    Unary::Not => "!",
                };
                format!("{sign}{}", self.expr(a, 8))
            }
            Expr::Binary(Binary::Power, a, b) => format!("{} ^ {}", self.expr(a, 9), self.expr(b, 8)),
            Expr::Binary(op, a, b) => {
                let (word, level) = operator(*op);
                // Comparisons do not chain; the others group to the left.
                let left = if level == 4 { 5 } else { level };
                format!("{} {word} {}", self.expr(a, left), self.expr(b, level + 1))
            }
            Expr::If(c, a, b) => format!("{} ? {} : {}", self.expr(c, 2), self.expr(a, 1), self.expr(b, 1)),
            Expr::Call(f, arguments) => {
                let word = match f {
                    ir::Function::Min => "min",
                    ir::Function::Max => "max",
                    ir::Function::Abs => "abs",
                    ir::Function::Floor => "floor",
                    ir::Function::Ceil => "ceil",
                    ir::Function::Sqrt => "sqrt",
                    ir::Function::Exp => "exp",
                    ir::Function::Ln => "ln",
                };
                format!("{word}({})", self.list(arguments))
            }
            Expr::Pool(figure, pool) => {
                let word = POOL_FIGURES.iter().find(|(_, f)| f == figure).map_or("", |(w, _)| w);
                format!("{word}({})", self.pool_ref(pool))
            }
            Expr::Stage(figure, stage) => {
                let word = STAGE_FIGURES.iter().find(|(_, f)| f == figure).map_or("", |(w, _)| w);
                format!("{word}({})", self.stage_ref(stage))
            }
            Expr::Price(stage, h, d) => {
                format!("price({}, {}, {})", self.stage_ref(stage), self.expr(h, 0), self.expr(d, 0))
            }
            Expr::Draw(law, arguments) => {
                let word = LAWS.iter().find(|(_, l, _)| l == law).map_or("", |(w, _, _)| w);
                format!("~{word}({})", self.list(arguments))
            }
            Expr::Element(list, index) => {
                format!("{}[{}]", self.program.lists[*list as usize].name, self.expr(index, 0))
            }
            Expr::Aggregate { fold, count, body } => {
                let word = match fold {
                    ir::Fold::Min => "min",
                    ir::Fold::Max => "max",
                    ir::Fold::Sum => "sum",
                };
                let mut name = match self.variables.len() {
                    0 => "k".to_string(),
                    n => format!("k{n}"),
                };
                while self.used.contains(&name) {
                    name.push('_');
                }
                self.variables.push(name.clone());
                let body = self.expr(body, 0);
                self.variables.pop();
                format!("{word} {name} in {count} ({body})")
            }
        }
    }

    fn list(&mut self, list: &[Expr]) -> String {
        let list: Vec<String> = list.iter().map(|e| self.expr(e, 0)).collect();
        list.join(", ")
    }
}
