//! Free programs: random declarations and a random statement list over them.
//!
//! The list is valid by construction where that is cheap: what is open, leased and
//! loaded is followed statically, headers read sizes and figures only, and an index is
//! never set inside a hold that reads it. The rest (an amount beyond a cap, a wait for
//! ever, a deadlock) is left to happen.

use super::Writer;

#[derive(Clone, Debug)]
struct Pool {
    name: &'static str,
    /// Members of a family; `None` for a scalar.
    size: Option<u64>,
    cap: f64,
    block: Option<f64>,
    preempts: bool,
    /// Served by a step stage.
    via: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Link,
    Step,
}

#[derive(Clone, Debug)]
struct Stage {
    name: &'static str,
    size: Option<u64>,
    kind: Kind,
}

/// A hold the list is inside of.
#[derive(Clone, Debug)]
struct Open {
    pool: usize,
    /// As written, index included.
    reference: String,
    /// Loads may still go this far; 0 when that can't be known.
    room: f64,
    released: bool,
    /// Its hold has a `cache` clause.
    caches: bool,
}

impl Open {
    /// Its index reads nothing, or it has none.
    fn constant(&self) -> bool {
        self.reference.split_once('[').is_none_or(|(_, index)| index.starts_with(['0', '1']))
    }
}

struct Free<'w> {
    w: &'w mut Writer,
    pools: Vec<Pool>,
    stages: Vec<Stage>,
    open: Vec<Open>,
    leased: Vec<String>,
    names: u32,
    /// Statements still to be written, about.
    left: i64,
    /// `turn` and `end` may be written here.
    top: bool,
    observes: u32,
    /// `holders` is not read where a session may hold a pool twice: 0.1.3 miscounts there.
    holders: bool,
    /// A run names several stages.
    shared: bool,
}

/// Writes a free program.
pub(super) fn free(w: &mut Writer) {
    w.used("shape free");
    let pools = w.rng.between(1, 3) as usize;
    let holders = w.rng.chance(25);
    let mut free = Free {
        w,
        pools: Vec::with_capacity(pools),
        stages: Vec::new(),
        open: Vec::new(),
        leased: Vec::new(),
        names: 0,
        left: 0,
        top: true,
        observes: 0,
        holders,
        shared: false,
    };
    free.declare(pools);
    let served = free.w.rng.chance(15);
    free.workload(served);
    free.session(served);
    if free.shared {
        let share = free.w.pick(&[("share maxmin", "maxmin"), ("share bottleneck", "bottleneck")]);
        free.w.line(format!("share {share};"));
    }
    free.gauges();
    let horizon = free.w.one_of(&["24", "40", "64"]);
    free.w.run_block(horizon);
}

fn sized(name: &str, size: Option<u64>) -> String {
    size.map_or_else(|| name.to_owned(), |n| format!("{name}[{n}]"))
}

impl Free<'_> {
    fn declare(&mut self, pools: usize) {
        self.w.line("stage gate : delay;");
        self.stages.push(Stage { name: "gate", size: None, kind: Kind::Plain });
        for name in ["s1", "s2"] {
            if self.w.rng.chance(55) {
                let size = self.w.rng.chance(25).then_some(2);
                let kind = self.w.pick(&[
                    ("stage fifo", "fifo"),
                    ("stage fifo(c)", "fifo(2)"),
                    ("stage delay", "delay"),
                    ("stage ps constant", "ps(2)"),
                    ("stage ps present", "ps(present)"),
                    ("stage ps present", "ps(min(present, 2))"),
                ]);
                if size.is_some() {
                    self.w.used("stage family");
                }
                self.w.line(format!("stage {} : {kind};", sized(name, size)));
                self.stages.push(Stage { name, size, kind: Kind::Plain });
            }
        }
        if self.w.rng.chance(20) {
            self.w.line("stage wire[2] : ps(8);");
            self.w.line("stage port[2] : ps(4);");
            for name in ["wire", "port"] {
                self.stages.push(Stage { name, size: Some(2), kind: Kind::Link });
            }
        }
        let engines = self.w.one_of(&[0usize, 1, 1, 1, 2]);
        let family = (engines == 1 && self.w.rng.chance(20)).then_some(2u64);
        // Pools first in the text, so that an engine's memory is above it; either order is legal.
        let kinds: Vec<(Option<u64>, Option<usize>)> = (0..pools)
            .map(|_| {
                let via = (engines > 0 && self.w.rng.chance(45)).then(|| self.w.rng.below(engines as u64) as usize);
                let size = match family {
                    // A family of stages serves a family of pools, one for one.
                    Some(n) if via.is_some() || self.w.rng.chance(50) => Some(n),
                    _ => self.w.rng.chance(20).then_some(2),
                };
                (size, via)
            })
            .collect();
        for (at, (size, via)) in kinds.iter().enumerate() {
            // To a later scalar only, so that spills never go round.
            let target = kinds.get(at + 1).is_some_and(|(size, _)| size.is_none());
            self.pool(["a", "b", "c"][at], *size, *via, target.then(|| ["a", "b", "c"][at + 1]));
        }
        for (at, name) in ["eng", "eng2"].iter().enumerate().take(engines) {
            let size = if at == 0 { family } else { None };
            let fits = self.pools.iter().position(|p| p.size == size);
            let memory = match fits {
                Some(pool) if self.w.rng.chance(75) => Some(self.pools[pool].name),
                _ => None,
            };
            if size.is_some() {
                self.w.used("step family");
            }
            self.w.line(format!("stage {} : step {{", sized(name, size)));
            self.w.step(memory);
            self.w.line("};");
            self.stages.push(Stage { name, size, kind: Kind::Step });
        }
    }

    fn pool(&mut self, name: &'static str, size: Option<u64>, via: Option<usize>, below: Option<&str>) {
        self.w.line(format!("pool {} {{", sized(name, size)));
        if size.is_some() {
            self.w.used("pool family");
        }
        let cap = if self.w.rng.chance(8) {
            self.w.used("cap inf");
            f64::INFINITY
        } else {
            self.w.used("cap");
            self.w.amount(6.0, 30.0)
        };
        self.w.line(format!("cap {cap};"));
        let block = self.w.pick(&[
            ("block none", None),
            ("block none", None),
            ("block whole", Some(1.0)),
            ("block whole", Some(2.0)),
            ("block whole", Some(4.0)),
            ("block fractional", Some(0.5)),
            ("block fractional", Some(1.5)),
        ]);
        if let Some(block) = block {
            self.w.line(format!("block {block};"));
        }
        let evict = self.w.evict();
        if !evict.is_empty() {
            self.w.line(evict);
        }
        let preempt = self.w.preempt();
        self.w.line(preempt);
        let order = self.w.queue_order();
        if !order.is_empty() {
            self.w.line(order);
        }
        if let Some(via) = via {
            self.w.used("admit via");
            self.w.line(format!("admit via {};", ["eng", "eng2"][via]));
        }
        if let Some(target) = below
            && size.is_none()
            && self.w.rng.chance(30)
        {
            let when =
                self.w.pick(&[("spill always", "1"), ("spill when size", "size >= 1"), ("spill when age", "age < 6")]);
            self.w.used("spill");
            self.w.line(format!("spill {target} via gate (size * 0.25) when ({when});"));
        }
        self.w.line("}");
        self.pools.push(Pool { name, size, cap, block, preempts: !preempt.contains("none"), via });
    }

    fn workload(&mut self, served: bool) {
        self.w.line("workload {");
        let sessions = self.w.rng.between(2, 5);
        self.w.arrivals(sessions);
        self.w.sizes();
        if self.w.rng.chance(40) {
            self.w.used("turn block");
            self.w.line("turn {");
            let value = self.w.amount(1.0, 4.0);
            self.w.line(format!("set x1 = {value} + turn_no;"));
            self.w.line("}");
        }
        if served {
            self.w.used("workload session");
            self.w.line("session {");
            self.w.line("run gate (0.125 + serial * 0.25);");
            self.w.line("request;");
            if self.w.rng.chance(50) {
                self.w.line("turn;");
                self.w.line("run gate (1.5);");
                self.w.line("request;");
            }
            self.w.line("end;");
            self.w.line("}");
        }
        self.w.line("}");
    }

    fn session(&mut self, served: bool) {
        self.top = !served;
        self.left = self.w.rng.between(8, 22) as i64;
        if served {
            self.w.used("server");
            self.w.line("server {");
        } else {
            self.w.line("session {");
            let start = self.w.one_of(&["0.125", "0.25 + serial * 0.5", "0.5 + x0 * 0.25", "serial == 0 ? 1 : 0.5"]);
            self.w.line(format!("run gate ({start});"));
        }
        let forks = self.w.legs.chance(15);
        if forks {
            self.fork();
        }
        self.list(0);
        if forks {
            self.w.line("join;");
            self.observe();
        }
        if !served {
            if self.w.rng.chance(30) {
                self.w.used("loop");
                self.w.line("loop {");
                self.w.used("turn");
                self.w.line("turn;");
                let think = self.w.amount(0.5, 3.0);
                self.w.line(format!("run gate ({think});"));
                self.left = self.w.rng.between(4, 10) as i64;
                self.list(1);
                let turns = self.w.rng.between(2, 4);
                self.w.line(format!("branch (turn_no >= {turns}) {{"));
                self.w.line("end;");
                self.w.line("}");
                self.w.line("}");
            } else if self.w.rng.chance(70) {
                self.w.line("end;");
            }
        }
        self.w.line("}");
    }

    /// Legs beside the rest of the session.
    fn fork(&mut self) {
        let top = std::mem::replace(&mut self.top, false);
        for _ in 0..self.w.legs.between(1, 2) {
            self.w.used("fork");
            self.w.line("fork {");
            self.list(1);
            self.w.line("}");
        }
        self.top = top;
    }

    fn gauges(&mut self) {
        for (at, pool) in self.pools.clone().iter().enumerate() {
            let figure = self.w.pick(&[("gauge used", "used"), ("gauge free", "free"), ("gauge queued", "queued")]);
            let value = match pool.size {
                None => format!("{figure}({})", pool.name),
                Some(n) => {
                    let aggregate = self.w.pick(&[("gauge sum", "sum"), ("gauge max", "max"), ("gauge min", "min")]);
                    format!("{aggregate} k in {n} ({figure}({}[k]))", pool.name)
                }
            };
            self.w.line(format!("gauge g{at} = {value};"));
        }
        for (at, stage) in self.stages.clone().iter().enumerate() {
            if self.w.rng.chance(50) {
                let figure = self.w.pick(&[("gauge queue", "queue"), ("gauge busy", "busy")]);
                let value = match stage.size {
                    None => format!("{figure}({})", stage.name),
                    Some(n) => format!("sum k in {n} ({figure}({}[k]))", stage.name),
                };
                self.w.line(format!("gauge h{at} = {value};"));
            }
        }
    }

    // ---- references and expressions

    fn stage_reference(&mut self, kind: Kind) -> Option<String> {
        let fitting: Vec<Stage> = self.stages.iter().filter(|s| s.kind == kind).cloned().collect();
        if fitting.is_empty() {
            return None;
        }
        let stage = self.w.one_of(&fitting);
        Some(self.reference(stage.name, stage.size))
    }

    fn reference(&mut self, name: &str, size: Option<u64>) -> String {
        match size {
            None => name.to_owned(),
            Some(n) => {
                let index = self.w.pick(&[
                    ("index constant", "0".to_owned()),
                    ("index constant", format!("{}", n - 1)),
                    ("index computed", format!("serial - floor(serial / {n}) * {n}")),
                    ("index computed", format!("x0 > 3 ? {} : 0", n - 1)),
                ]);
                format!("{name}[{index}]")
            }
        }
    }

    /// A figure of the state now.
    fn figure(&mut self) -> String {
        let pool = self.w.one_of(&self.pools.clone());
        let stage = self.w.one_of(&self.stages.clone());
        match self.w.rng.below(10) {
            0 => self.pool_figure("figure used", "used", &pool),
            1 if pool.cap.is_finite() => self.pool_figure("figure free", "free", &pool),
            1 | 2 => self.pool_figure("figure queued", "queued", &pool),
            3 => self.pool_figure("figure cachedin", "cachedin", &pool),
            4 if self.holders => self.pool_figure("figure holders", "holders", &pool),
            4 | 5 => self.stage_figure("figure queue", "queue", &stage),
            6 => self.stage_figure("figure busy", "busy", &stage),
            7 => self.stage_figure("figure work", "work", &stage),
            8 if stage.kind == Kind::Step => {
                let left = self.stage_figure("figure budget_left", "budget_left", &stage);
                format!("min({left}, 16)")
            }
            8 => {
                self.w.used("figure now");
                "now".to_owned()
            }
            _ => match pool.size {
                Some(n) => {
                    let aggregate =
                        self.w.pick(&[("aggregate sum", "sum"), ("aggregate max", "max"), ("aggregate min", "min")]);
                    format!("{aggregate} k in {n} (used({}[k]))", pool.name)
                }
                None => self.pool_figure("figure used", "used", &pool),
            },
        }
    }

    fn pool_figure(&mut self, feature: &'static str, figure: &str, pool: &Pool) -> String {
        self.w.used(feature);
        let reference = self.reference(pool.name, pool.size);
        format!("{figure}({reference})")
    }

    fn stage_figure(&mut self, feature: &'static str, figure: &str, stage: &Stage) -> String {
        self.w.used(feature);
        let reference = self.reference(stage.name, stage.size);
        format!("{figure}({reference})")
    }

    /// A positive amount that reads attributes and constants only.
    fn size(&mut self, high: f64) -> String {
        let constant = self.w.amount(0.5, high);
        match self.w.rng.below(8) {
            0 | 1 => format!("{constant}"),
            2 => "x0".to_owned(),
            3 => "x1".to_owned(),
            4 => format!("min(x2, {constant})"),
            5 => format!("{constant} + serial * 0.5"),
            6 => format!("serial == 1 ? {constant} : x0"),
            _ => "x0 + x1".to_owned(),
        }
    }

    /// The work of a run; mostly positive, sometimes 0, sometimes read from the state.
    fn work(&mut self) -> String {
        match self.w.rng.below(12) {
            0 => {
                self.w.used("work zero");
                "0".to_owned()
            }
            1 => "serial * 0.5".to_owned(),
            2 => {
                let figure = self.figure();
                self.w.used("work of state");
                format!("0.25 + max(min({figure}, 4), 0)")
            }
            _ => self.size(5.0),
        }
    }

    fn test(&mut self) -> String {
        let bound = self.w.amount(1.0, 6.0);
        match self.w.rng.below(9) {
            0 => "serial == 0".to_owned(),
            1 => format!("serial < {}", self.w.rng.between(1, 3)),
            2 => format!("x0 > {bound}"),
            3 | 4 => {
                let figure = self.figure();
                self.w.used("branch on state");
                format!("{figure} >= {bound}")
            }
            5 => {
                self.w.used("not");
                "!(serial == 1)".to_owned()
            }
            6 => {
                self.w.used("and or");
                format!("x0 > {bound} && serial != 0 || x1 <= 2")
            }
            7 => "turn_no == 0".to_owned(),
            _ if self.open.last().is_none_or(|o| o.caches) => format!("computed > 0 || cached >= {bound}"),
            _ => "computed > 0".to_owned(),
        }
    }

    // ---- statements

    fn list(&mut self, depth: u32) {
        let count = self.w.rng.between(2, 5);
        for _ in 0..count {
            self.statement(depth);
        }
        while depth == 0 && self.left > 0 {
            self.statement(depth);
        }
    }

    fn observe(&mut self) {
        self.observes += 1;
        let name = format!("o{}", self.observes % 9);
        let value = match self.w.rng.below(5) {
            0 => "now".to_owned(),
            1 => "serial * 100 + now".to_owned(),
            2 => "x0 + x1 - x2".to_owned(),
            _ => self.figure(),
        };
        self.w.line(format!("observe {name} = {value};"));
    }

    fn statement(&mut self, depth: u32) {
        self.left -= 1;
        match self.w.rng.below(26) {
            0..=3 => self.observe(),
            4..=6 => self.plain_run(),
            7..=9 => self.step_run(),
            10 => self.flow_run(),
            11 | 12 if depth < 3 => self.branch(depth),
            13..=18 if depth < 4 && self.open.len() < 3 => self.hold(depth),
            19 => self.grow(),
            20 => self.load(),
            21 => self.release(),
            22 => {
                self.w.used("drop");
                let pool = self.w.one_of(&self.pools.clone());
                let reference = self.reference(pool.name, pool.size);
                self.w.line(format!("drop {reference};"));
            }
            23 => {
                self.w.used("set");
                let figure = self.figure();
                let name = self.w.one_of(&["l0", "l1"]);
                self.w.line(format!("set {name} = {figure};"));
                self.w.line(format!("observe o_{name} = {name};"));
            }
            24 if self.top && depth < 2 && self.open.iter().all(|o| o.constant()) => {
                if self.w.rng.chance(30) {
                    self.w.used("end inside");
                    self.w.line("branch (serial == 3) {");
                    self.w.line("end;");
                    self.w.line("}");
                } else {
                    self.w.used("turn");
                    self.w.line("turn;");
                }
            }
            _ => self.transfer(),
        }
    }

    fn plain_run(&mut self) {
        let Some(stage) = self.stage_reference(Kind::Plain) else { return };
        let work = self.work();
        self.w.used("run");
        self.w.line(format!("run {stage} ({work});"));
    }

    fn step_run(&mut self) {
        let Some(stage) = self.stage_reference(Kind::Step) else { return self.plain_run() };
        let mode = self.w.pick(&[("run prefill", "prefill"), ("run decode", "decode")]);
        let work = self.work();
        let open: Vec<usize> = (0..self.open.len()).filter(|&at| !self.open[at].released).collect();
        if !open.is_empty() && self.w.rng.chance(70) {
            let at = self.w.one_of(&open);
            let reference = self.open[at].reference.clone();
            self.open[at].room = 0.0;
            self.w.used("growing");
            if !self.pools[self.open[at].pool].preempts {
                self.w.used("growing without preemption");
            }
            self.w.line(format!("run {stage} {mode} ({work}) growing {reference};"));
        } else {
            self.w.line(format!("run {stage} {mode} ({work});"));
        }
    }

    fn flow_run(&mut self) {
        if !self.stages.iter().any(|s| s.kind == Kind::Link) {
            return self.plain_run();
        }
        let work = self.size(16.0);
        let wire = self.reference("wire", Some(2));
        let port = self.reference("port", Some(2));
        if self.w.rng.chance(75) {
            self.w.used("flow");
            self.shared = true;
            self.w.line(format!("run {wire}, {port} ({work});"));
        } else {
            self.w.used("flow alone");
            self.w.line(format!("run {wire} ({work});"));
        }
    }

    fn branch(&mut self, depth: u32) {
        self.w.used("branch");
        let test = self.test();
        self.w.line(format!("branch ({test}) {{"));
        let rooms: Vec<f64> = self.open.iter().map(|o| o.room).collect();
        self.list(depth + 1);
        self.w.line("}");
        if self.w.rng.chance(50) {
            self.w.used("else");
            self.w.line("else {");
            self.list(depth + 1);
            self.w.line("}");
        }
        // What either side used up is used up.
        for (open, room) in self.open.iter_mut().zip(rooms) {
            open.room = open.room.min(room);
        }
    }

    fn grow(&mut self) {
        let open: Vec<usize> = (0..self.open.len()).filter(|&at| !self.open[at].released).collect();
        if open.is_empty() {
            return self.observe();
        }
        let at = self.w.one_of(&open);
        let amount = self.w.amount(0.5, 5.0);
        let reference = self.open[at].reference.clone();
        // A growth that preempts its own session must let time pass before it is tried again.
        if self.pools[self.open[at].pool].preempts {
            self.w.used("grow preempting");
            let work = self.w.amount(0.5, 2.0);
            self.w.line(format!("run gate ({work});"));
        }
        self.w.used("grow");
        self.w.line(format!("grow {reference} ({amount});"));
    }

    fn load(&mut self) {
        let open: Vec<usize> = (0..self.open.len()).filter(|&at| self.open[at].room >= 0.5).collect();
        if open.is_empty() {
            return self.observe();
        }
        let at = self.w.one_of(&open);
        let amount = self.w.amount(0.0, self.open[at].room.floor());
        self.open[at].room -= amount;
        let reference = self.open[at].reference.clone();
        self.w.used("load");
        self.w.line(format!("load {reference} ({amount});"));
    }

    fn release(&mut self) {
        if !self.leased.is_empty() && self.w.rng.chance(60) {
            self.w.used("release lease");
            let reference = self.w.one_of(&self.leased.clone());
            // Inside a hold of the pool it would end that one's share.
            if !self.open.iter().any(|o| o.reference == reference) {
                self.w.line(format!("release {reference};"));
                return;
            }
        }
        let open: Vec<usize> = (0..self.open.len()).filter(|&at| !self.open[at].released).collect();
        if open.is_empty() || self.w.rng.chance(40) {
            return self.observe();
        }
        let at = self.w.one_of(&open);
        let pool = self.open[at].pool;
        let reference = self.open[at].reference.clone();
        // A computed index may name another member; any hold of the family may be meant.
        for open in self.open.iter_mut().filter(|o| o.pool == pool) {
            open.released = true;
            open.room = 0.0;
        }
        self.w.used("release");
        self.w.line(format!("release {reference};"));
    }

    fn transfer(&mut self) {
        let target = (0..self.open.len()).find(|&at| self.open[at].room >= 1.0 && !self.open[at].released);
        let (Some(target), false) = (target, self.leased.is_empty()) else { return self.plain_run() };
        let source = self.w.one_of(&self.leased.clone());
        if self.open.iter().any(|o| o.reference == source) {
            return self.plain_run();
        }
        let amount = self.w.amount(0.0, self.open[target].room.floor());
        self.open[target].room -= amount;
        let into = self.open[target].reference.clone();
        let work = self.size(4.0);
        let on = match self.stage_reference(Kind::Link) {
            Some(link) => link,
            None => "gate".to_owned(),
        };
        self.w.used("transfer on");
        self.w.line(format!("transfer on {on} ({work}) from {source} to {into} ({amount});"));
    }

    /// Keys that choose a member of a pool family.
    fn choose_keys(&mut self, name: &str, n: u64, index: &str) -> String {
        if self.w.later.chance(70) {
            return self.w.pick(&[
                ("choose one key", format!("(used({name}[{index}]))")),
                ("choose one key", format!("(-queued({name}[{index}]))")),
                ("choose two keys", format!("(queued({name}[{index}]) > 0 ? 1 : 0, -cachedin({name}[{index}]))")),
            ]);
        }
        self.w.rng.below(3); // In the place of that.
        let last = n - 1;
        let (feature, keys) = self.w.later.one_of(&[
            ("choose by an aggregate", format!("(sum k in {n} (k == {index} ? 0 : used({name}[k])))")),
            ("choose by an aggregate", format!("(max k in {n} (queued({name}[k]) * (k + {index})), -{index})")),
            ("choose by a neighbour", format!("({index} < {last} ? used({name}[{index} + 1]) : 2, -{index})")),
            ("choose by a member there may not be", format!("(used({name}[{index} + (queued({name}[{index}]) > 1)]))")),
        ]);
        self.w.used(feature);
        keys
    }

    fn hold(&mut self, depth: u32) {
        let mut grabs = Vec::new();
        let mut opened = Vec::new();
        let count = if self.pools.len() > 1 && self.w.rng.chance(35) { 2 } else { 1 };
        let first = self.w.rng.below(self.pools.len() as u64) as usize;
        let bound = self.w.rng.chance(25).then(|| {
            self.names += 1;
            format!("b{}", self.names)
        });
        let bound_read = bound.is_some() && self.w.rng.chance(50);
        let mut chosen = None;
        for at in 0..count {
            let pool = (first + at) % self.pools.len();
            if self.holders && self.open.iter().any(|o| o.pool == pool) {
                return self.observe();
            }
            let Pool { name, size, cap, block, .. } = self.pools[pool].clone();
            let reference = match size {
                Some(n) if at == 0 && self.w.rng.chance(40) => {
                    self.names += 1;
                    let index = format!("j{}", self.names);
                    let keys = self.choose_keys(name, n, &index);
                    self.w.line(format!("choose {index} in {n} by {keys};"));
                    chosen = Some(index.clone());
                    format!("{name}[{index}]")
                }
                _ => self.reference(name, size),
            };
            let fits = |units: f64| block.map_or(units, |b| (units / b).ceil() * b) <= cap;
            let mut constant = self.w.amount(0.0, cap.min(24.0) * 0.6);
            if !fits(constant) {
                constant = 1.0;
            }
            let (units, room) = match self.w.rng.below(10) {
                0..=4 => (format!("{constant}"), constant),
                5 | 6 => {
                    self.w.used("units of attributes");
                    (self.size(6.0), 0.0)
                }
                7 => {
                    self.w.used("units of state");
                    let figure = self.figure();
                    (format!("max(min({figure}, {constant}), 1)"), 0.0)
                }
                8 if cap.is_finite() && self.w.rng.chance(4) => {
                    // Live state is not judged: this one waits for ever.
                    self.w.used("units beyond the cap");
                    (format!("used({reference}) + {}", cap + 2.0), 0.0)
                }
                8 if at == 0 && bound.is_some() => {
                    let bound = bound.clone().unwrap_or_default();
                    (bound.to_string(), 0.0)
                }
                _ => (format!("{constant}"), constant),
            };
            let reserve = if self.w.rng.chance(25) {
                self.w.used("reserve");
                let reserve = if self.w.rng.chance(50) { format!("{constant}") } else { self.size(5.0) };
                format!(" reserve ({reserve})")
            } else {
                String::new()
            };
            if self.open.iter().any(|o| o.pool == pool) {
                self.w.used("nested hold of one pool");
            }
            if self.pools[pool].via.is_some() {
                self.w.used("hold served by a step stage");
            }
            grabs.push(format!("{reference} ({units}){reserve}"));
            opened.push(Open { pool, reference, room, released: false, caches: false });
        }
        self.w.used(if self.open.is_empty() { "hold" } else { "nested hold" });
        if count > 1 {
            self.w.used("hold of two pools");
        }
        let mut header = format!("hold {}", grabs.join(", "));
        let caches = self.w.rng.chance(55);
        if caches {
            // How much was consumed is not known here.
            for open in &mut opened {
                open.room = 0.0;
                open.caches = true;
            }
            if self.w.rng.chance(45) {
                self.w.used("reuse");
                let reuse = self.size(8.0);
                header += &format!(" reuse ({reuse})");
            }
        }
        if let Some(bound) = &bound {
            let value = if bound_read {
                self.w.used("at admission, body reads");
                self.size(4.0)
            } else {
                self.w.used("at admission, body does not read");
                let pool = opened[0].reference.clone();
                self.w.one_of(&[format!("min(cachedin({pool}), 4) + 1"), "computed > 0 ? computed + 1 : x0".to_owned()])
            };
            header += &format!(" at admission ({bound} = {value})");
        }
        self.w.line(format!("{header} {{"));
        if let (Some(bound), true) = (&bound, bound_read) {
            self.w.line(format!("observe bound = {bound};"));
        }
        if caches && self.w.rng.chance(60) {
            self.w.line("observe found = cached;");
        }
        if self.w.rng.chance(40) {
            self.w.line("observe was = computed;");
        }
        let before = self.open.len();
        let lease = (!self.holders && self.w.rng.chance(25)).then(|| self.w.one_of(&opened).reference);
        self.open.extend(opened);
        self.list(depth + 1);
        self.open.truncate(before);
        let mut tail = "}".to_owned();
        if caches {
            self.w.used("cache");
            let cache = self.w.pick(&[
                ("cache constant", "6"),
                ("cache constant", "3.5"),
                ("cache inf", "inf"),
                ("cache zero", "0"),
                ("cache attribute", "x0 + x2"),
                ("cache negative", "x0 - 3"),
            ]);
            tail += &format!(" cache ({cache})");
        }
        if let Some(reference) = lease {
            let time = self.w.pick(&[
                ("lease finite", "2"),
                ("lease finite", "1.25"),
                ("lease finite", "0.5 + x1 * 0.5"),
                ("lease inf", "inf"),
                ("lease zero", "0"),
            ]);
            tail += &format!(" lease {reference} ({time})");
            if !self.leased.contains(&reference) && chosen.is_none() {
                self.leased.push(reference);
            }
        }
        self.w.line(tail);
    }
}
