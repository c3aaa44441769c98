//! A program made ready for real instances.
//!
//! ```text
//!   step stage with `memory M`   an instance; M has its KV blocks, numbered
//!   run over shared stages       a read: bytes are copied, and it ends when they are
//!   transfer … from … to …       the same
//!   pool others spill into       a store: blocks in host memory or a file
//!   fifo, ps and delay stages    what the real world takes time for by itself: no time
//! ```
//!
//! What a model of time needs and a real instance has by itself (`cost`, rates, latencies) is not
//! looked at. `asynchronous` is not either: a step is planned when the one before it is over.

use serq_ir::{BuiltIn, Evict, Expr, Program, StageKind, Stmt, StmtKind, each_stmt};
use serq_kernel::{Code, Held};

/// The most blocks of one pool.
const BLOCKS_MAX: f64 = (1u64 << 22) as f64;

/// A program, and what an engine has to know of it.
pub struct Served {
    pub(crate) program: Program,
    pub(crate) code: Code,
    /// By member of a pool: its KV blocks, where it has them, as instances and stores do.
    pub(crate) memories: Vec<Option<Memory>>,
    /// By member of a stage: the pool of its KV blocks, where it is an instance.
    pub(crate) instances: Vec<Option<u32>>,
}

/// The KV blocks of an instance, or of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How many.
    pub blocks: usize,
    /// Tokens of each.
    pub block: usize,
    /// Requests may share them.
    pub shared: bool,
}

/// A store, as a person calls it: blocks that instances spilled.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedStore {
    /// `store`
    pub name: String,
    /// Member of a pool.
    pub pool: u32,
    /// Its blocks.
    pub memory: Memory,
}

/// An instance, as a person calls it.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// `P[0]`
    pub name: String,
    /// Member of a stage.
    pub stage: u32,
    /// Member of a pool.
    pub pool: u32,
    /// Its blocks.
    pub memory: Memory,
}

impl Served {
    /// A program that was compiled to be served.
    ///
    /// # Errors
    ///
    /// One sentence: what of it no real instance can do.
    pub fn new(mut program: Program) -> Result<Self, String> {
        let mut owners = vec![Vec::new(); program.pools.len()];
        for stage in &mut program.stages {
            if let StageKind::Step(step) = &mut stage.kind {
                step.asynchronous = None;
                if let Expr::Number(budget) = step.budget
                    && (budget.0 < 1.0 || budget.0.fract() != 0.0 && budget.0.is_finite())
                {
                    let (name, budget) = (&stage.name, budget.0);
                    return Err(format!(
                        "{name} has a budget of {budget} tokens a step; a whole number from 1 is meant"
                    ));
                }
                let memory = step.memory.ok_or_else(|| {
                    format!("{} has no memory: an instance needs the pool of its KV blocks, `memory kv;`", stage.name)
                })?;
                if program.pools[memory as usize].size != stage.size {
                    return Err(format!(
                        "{} and its memory {} are not as many: each instance has its own",
                        stage.name, program.pools[memory as usize].name
                    ));
                }
                owners[memory as usize].push(stage.name.clone());
            }
        }
        if owners.iter().all(Vec::is_empty) {
            return Err("the program has no `serve step { … }`: nothing computes".into());
        }
        let stores = stores(&program, &owners)?;
        let mut shared = Vec::new();
        for ((pool, owners), store) in program.pools.iter_mut().zip(&owners).zip(&stores) {
            if let [one, other, ..] = &owners[..] {
                return Err(format!("{} is the memory of {one} and of {other}; each instance has its own", pool.name));
            }
            shared.push(pool.share_prefixes);
            if owners.is_empty() && !store {
                pool.share_prefixes = false;
                continue;
            }
            if !matches!(pool.evict, Evict::Lru) {
                return Err(format!(
                    "{} evicts by a key: blocks are evicted in the order of their last use, `evict lru`",
                    pool.name
                ));
            }
            let block = pool.block.map_or(1.0, |block| block.0);
            if block.fract() != 0.0 || !(1.0..=65_536.0).contains(&block) {
                return Err(format!(
                    "a block of {} has {block} tokens; a whole number from 1 to 65536 is meant",
                    pool.name
                ));
            }
            let blocks = (pool.cap.0 / block).floor();
            if !(1.0..=BLOCKS_MAX).contains(&blocks) {
                return Err(format!(
                    "{} has {} tokens in blocks of {block}: at least one block and at most {BLOCKS_MAX} are meant",
                    pool.name, pool.cap.0
                ));
            }
            pool.share_prefixes = true;
            pool.block = Some(serq_ir::json::Number(block));
        }
        let mut grows = false;
        each_stmt(&program.session, &mut |stmt| grows |= matches!(stmt.kind, StmtKind::Grow { .. }));
        if grows {
            return Err("`grow` by itself is not served: a run takes its blocks with `growing`".into());
        }
        told_by_requests(&program)?;
        let code = Code::new(&program);
        let memories: Vec<Option<Memory>> = code
            .pool_members()
            .map(|(_, family, _)| {
                let pool = &program.pools[family as usize];
                let block = pool.block.map_or(1.0, |block| block.0);
                (stores[family as usize] || !owners[family as usize].is_empty()).then(|| Memory {
                    blocks: (pool.cap.0 / block).floor() as usize,
                    block: block as usize,
                    shared: shared[family as usize],
                })
            })
            .collect();
        let first_pool = |family: u32| code.pool_members().position(|(_, of, _)| of == family).map(|at| at as u32);
        let instances = code
            .stage_members()
            .map(|(_, family, member)| match &program.stages[family as usize].kind {
                StageKind::Step(step) => Some(first_pool(step.memory?)? + member),
                _ => None,
            })
            .collect();
        Ok(Self { memories, instances, code, program })
    }

    /// The stores, in declaration order.
    pub fn stores(&self) -> Vec<NamedStore> {
        let members = self.memories.iter().zip(0..).filter(|(_, pool)| !self.instances.contains(&Some(*pool)));
        let named = |(memory, pool): (&Option<Memory>, u32)| {
            Some(NamedStore { name: self.pool(pool).0, pool, memory: (*memory)? })
        };
        members.filter_map(named).collect()
    }

    /// Whether KV is written by who has it: `P push D latency x …` has its wait at `P.nic`, `D pull P` at `D.nic`.
    pub(crate) fn pushes(&self, pool: u32) -> bool {
        let family = self.code.pool_members().nth(pool as usize).map(|(_, family, _)| family);
        let name = family.map_or("", |family| &self.program.pools[family as usize].name);
        let nic = name.split('.').next().map(|queue| format!("{queue}.nic.latency"));
        self.program.stages.iter().any(|stage| Some(&stage.name) == nic.as_ref())
    }

    /// The instance a person means by a name. A queue that is not many is its only member, too: `P[0]` is `P`.
    pub fn named(&self, name: &str) -> Option<Named> {
        self.instances().into_iter().find(|one| one.name == name || format!("{}[0]", one.name) == name)
    }

    /// What a person calls an instance.
    pub(crate) fn name_of(&self, stage: u32) -> String {
        let named = self.instances().into_iter().find(|instance| instance.stage == stage);
        named.map_or_else(String::new, |instance| instance.name)
    }

    /// Up to which token of the text the blocks of a share have room.
    pub(crate) fn room(&self, held: &Held<'_>) -> usize {
        held.first as usize
            + held.blocks.len() * self.memories[held.pool as usize].expect("the blocks of an instance").block
    }

    /// The instances, in declaration order.
    pub fn instances(&self) -> Vec<Named> {
        let mut named = Vec::new();
        for (stage, (name, family, member)) in self.code.stage_members().enumerate() {
            let Some(pool) = self.instances[stage] else { continue };
            named.push(Named {
                name: member_name(name, member, self.program.stages[family as usize].size),
                stage: stage as u32,
                pool,
                memory: self.memories[pool as usize].expect("the memory of an instance"),
            });
        }
        named
    }

    /// A pool's name, as a person calls it, and its cap.
    pub(crate) fn pool(&self, pool: u32) -> (String, f64) {
        let (name, family, member) = self.code.pool_members().nth(pool as usize).expect("a pool of the program");
        let declared = &self.program.pools[family as usize];
        (member_name(name, member, declared.size), declared.cap.0)
    }

    /// Tokens of the blocks that are named: every pool's are whole numbers of them.
    pub(crate) fn named_block(&self) -> usize {
        self.memories.iter().flatten().map(|memory| memory.block).fold(0, gcd)
    }

    /// What a request brings, as text: `prompt = prompt_tokens`.
    pub fn brings(&self) -> Vec<String> {
        let name = |attribute: u32| self.program.attributes[attribute as usize].name.clone();
        let value = |value: &Expr| match value {
            Expr::Attribute(from) if *from == BuiltIn::New as u32 => "prompt_tokens".to_owned(),
            Expr::Attribute(from) if *from == BuiltIn::Out as u32 => "max_tokens".to_owned(),
            Expr::Number(number) => number.0.to_string(),
            _ => "…".to_owned(),
        };
        let set = |stmt: &Stmt| match &stmt.kind {
            StmtKind::Set { attribute, value: of } => Some(format!("{} = {}", name(*attribute), value(of))),
            _ => None,
        };
        self.program.workload.turn.iter().filter_map(set).collect()
    }
}

/// Which pools are stores: those that others spill into.
fn stores(program: &Program, owners: &[Vec<String>]) -> Result<Vec<bool>, String> {
    let mut stores = vec![false; program.pools.len()];
    for pool in &program.pools {
        let Some(spill) = &pool.spill else { continue };
        let (into, at) = (&program.pools[spill.pool.pool as usize], spill.pool.pool as usize);
        if !pool.share_prefixes {
            return Err(format!(
                "{} spills what belongs to one session; what `share prefixes` can be found in a store",
                pool.name
            ));
        }
        if let Some(owner) = owners[at].first() {
            return Err(format!(
                "{} spills into {}, the memory of {owner}: a pool that is no engine's memory is meant",
                pool.name, into.name
            ));
        }
        stores[at] = true;
    }
    for ((pool, owners), store) in program.pools.iter().zip(owners).zip(&stores) {
        if pool.spill.is_some() && owners.is_empty() && !store {
            return Err(format!("{} spills and is no instance's memory: nothing is ever in it", pool.name));
        }
    }
    Ok(stores)
}

/// A program whose lengths are its own would serve every request as if it had those.
fn told_by_requests(program: &Program) -> Result<(), String> {
    for (word, what, from) in [("prompt_tokens", "prompt", BuiltIn::New), ("max_tokens", "answer", BuiltIn::Out)] {
        let mut read = false;
        let mut look = |stmt: &Stmt| {
            stmt.each_expr(&mut |expr| {
                expr.each(&mut |part| read |= matches!(part, Expr::Attribute(of) if *of == from as u32));
            });
        };
        each_stmt(&program.workload.turn, &mut look);
        each_stmt(&program.session, &mut look);
        if !read {
            return Err(format!(
                "nothing in it depends on how long a request's {what} is; say what is: `workload {{ request {{ set x = \
                 {word}; … }} }}`"
            ));
        }
    }
    Ok(())
}

fn member_name(name: &str, member: u32, size: Option<u32>) -> String {
    if size.is_some() { format!("{name}[{member}]") } else { name.to_owned() }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
