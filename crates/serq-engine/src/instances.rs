//! The instances of a program in one process: a model, their blocks, and the threads that compute.
//!
//! There are as many *groups* as instances, or as cores to compute on, whichever are fewer. The
//! cores are dealt out among the groups, and the instances among them too, in declaration order.
//! Instances of one group take turns, step by step, in the order their steps were planned.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::kv::KvStore;
use crate::model::{Model, Part, Runner};
use crate::sampler::Token;
use crate::served::Served;
use crate::service::{Copied, CopyError, Ended, Instances, Put, Run, StoreCounts, Transfer};
use crate::store::{Spoiled, Store};
use crate::workers::Workers;

/// The instances of a program, computing one model.
pub struct LocalInstances {
    /// By member of a pool: an instance's memory.
    memories: Vec<Option<Arc<KvStore>>>,
    /// Likewise: what instances spilled.
    stores: BTreeMap<u32, Store>,
    /// Who is told of what goes wrong with them.
    note: fn(&str),
    /// By member of a stage: its group, and its number there.
    places: Vec<Option<(usize, usize)>>,
    groups: Vec<Group>,
}

/// How often a request is routed again whose pin was over before it was read.
const RETRIES: u32 = 3;

struct Group {
    steps: Option<Sender<Step>>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Step {
    instance: usize,
    runs: Vec<Run>,
    ended: Ended,
}

/// How many threads each group of so many instances has.
pub fn threads(instances: usize, cores: usize) -> Vec<usize> {
    let groups = instances.min(cores).max(1);
    (0..groups).map(|group| (cores.max(1) + groups - 1 - group) / groups).collect()
}

impl LocalInstances {
    /// The instances of a program, on so many cores.
    ///
    /// # Errors
    ///
    /// The memory their blocks take, if it is more than `bytes_most`.
    pub fn new(served: &Served, model: &Arc<Model>, cores: usize, bytes_most: u64) -> Result<Self, String> {
        Self::with_files(served, model, cores, bytes_most, &BTreeMap::new(), |_| {})
    }

    /// The same with the blocks of some stores, members of pools, in files. `note` is told what goes wrong with a
    /// store's blocks.
    ///
    /// # Errors
    ///
    /// As above; or what is wrong with a file.
    pub fn with_files(
        served: &Served,
        model: &Arc<Model>,
        cores: usize,
        bytes_most: u64,
        files: &BTreeMap<u32, PathBuf>,
        note: fn(&str),
    ) -> Result<Self, String> {
        let named = served.instances();
        let mut bytes = 0;
        let kept = served.stores();
        for store in kept.iter().filter(|store| !files.contains_key(&store.pool)) {
            bytes += store.memory.blocks as u64 * model.kv_layout(store.memory.block).block_bytes() as u64;
        }
        for instance in &named {
            let layout = model.kv_layout(instance.memory.block);
            bytes += instance.memory.blocks as u64 * layout.block_bytes() as u64;
        }
        if bytes > bytes_most {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            return Err(format!(
                "the blocks of {} instances and {} stores take {:.1} GiB and {:.1} GiB are to be had: a smaller `cap` is \
                 meant",
                named.len(),
                kept.len(),
                gib(bytes),
                gib(bytes_most)
            ));
        }
        let members = named.iter().map(|instance| instance.pool as usize + 1).max().unwrap_or(0);
        let mut memories: Vec<Option<Arc<KvStore>>> = vec![None; members];
        let stages = named.iter().map(|instance| instance.stage as usize + 1).max().unwrap_or(0);
        let mut places = vec![None; stages];
        let threads = threads(named.len(), cores);
        let mut dealt: Vec<Vec<Arc<KvStore>>> = vec![Vec::new(); threads.len()];
        for (nth, instance) in named.iter().enumerate() {
            let store = KvStore::new(model.kv_layout(instance.memory.block), instance.memory.blocks)?;
            let store = Arc::new(store);
            let group = nth % threads.len();
            places[instance.stage as usize] = Some((group, dealt[group].len()));
            dealt[group].push(Arc::clone(&store));
            memories[instance.pool as usize] = Some(store);
        }
        let mut stores = BTreeMap::new();
        for store in kept {
            let layout = model.kv_layout(store.memory.block);
            let file = files.get(&store.pool).map(PathBuf::as_path);
            stores.insert(store.pool, Store::new(layout, store.memory.blocks, file)?);
        }
        let groups = dealt.into_iter().zip(threads).enumerate().map(|(group, (stores, threads))| {
            let (steps, asked) = mpsc::channel::<Step>();
            let model = Arc::clone(model);
            let thread = thread::Builder::new().name(format!("serq-group-{group}")).spawn(move || {
                let workers = Workers::new(threads);
                let mut runners: Vec<Runner> = stores.iter().map(|store| Runner::new(&model, store.layout())).collect();
                while let Ok(Step { instance, runs, ended }) = asked.recv() {
                    ended.tell(compute(&mut runners[instance], &model, &workers, &stores[instance], &runs));
                }
            });
            Group { steps: Some(steps), thread: Some(thread.expect("a thread can be started")) }
        });
        Ok(Self { memories, stores, note, places, groups: groups.collect() })
    }

    fn memory(&self, pool: u32) -> &Arc<KvStore> {
        self.memories[pool as usize].as_ref().expect("the memory of an instance")
    }
}

/// A step: the forward pass, and a token for each run that wants one.
pub(crate) fn compute(
    runner: &mut Runner,
    model: &Model,
    workers: &Workers,
    store: &KvStore,
    runs: &[Run],
) -> Vec<Option<Token>> {
    let parts: Vec<Part<'_>> = runs
        .iter()
        .map(|run| Part { tokens: &run.tokens, start: run.start, blocks: &run.blocks, next: run.next.is_some() })
        .collect();
    let logits = runner.step(model, workers, store, &parts);
    let rows = logits.chunks_exact_mut(model.config().vocabulary);
    // The workers draw beside each other, each row by itself.
    let drawn: Vec<_> =
        runs.iter().filter_map(|run| run.next.as_ref()).zip(rows).map(|row| Mutex::new((row, None))).collect();
    workers.run(drawn.len(), &|_, nth| {
        let mut row = drawn[nth].lock().expect("a row is drawn once");
        let ((next, logits), token) = &mut *row;
        let (prompt, answer) = next.before.as_ref().map_or((&[][..], &[][..]), |(prompt, answer)| (prompt, answer));
        *token = Some(next.sampling.sample(logits, prompt, answer, next.nth));
    });
    let mut drawn = drawn.into_iter().map(|row| row.into_inner().expect("a row is drawn once").1);
    runs.iter().map(|run| run.next.as_ref().and_then(|_| drawn.next()?)).collect()
}

impl Instances for LocalInstances {
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended) {
        let (group, instance) = self.places[stage as usize].expect("a step of an instance");
        let steps = self.groups[group].steps.as_ref().expect("the group is there");
        steps.send(Step { instance, runs, ended }).expect("the group's thread lives");
    }

    fn copy(&mut self, Transfer { from, to, tokens, .. }: Transfer<'_>, copied: Copied) -> Option<u64> {
        let target = Arc::clone(self.memory(to.pool));
        let Some(store) = self.stores.get_mut(&from.pool) else {
            return Some(self.memory(from.pool).copy(from.blocks, &target, to.blocks, tokens));
        };
        match store.get(from, &target, to.blocks, tokens) {
            Ok(bytes) => Some(bytes),
            Err(blocks) => {
                let s = if blocks.len() == 1 { "" } else { "s" };
                (self.note)(&format!(
                    "{} block{s} of a store did not hold what was put there: dropped, and computed again",
                    blocks.len()
                ));
                copied.tell_all(Err(CopyError::Spoiled(blocks)));
                None
            }
        }
    }

    fn put(&mut self, Put { pool, block, part, into, to }: Put) {
        let mut store = self.stores.remove(&into).expect("it is a store");
        match self.stores.get_mut(&pool).map(|lower| lower.lend(block)) {
            None => store.put(to, self.memory(pool), block, part),
            Some(Ok((source, block))) => store.put(to, source, block, part),
            Some(Err(Spoiled)) => store.put_nothing(to),
        }
        self.stores.insert(into, store);
    }

    fn store_counts(&self, pool: u32) -> StoreCounts {
        self.stores.get(&pool).map_or_else(StoreCounts::default, |store| store.counts)
    }

    fn retries(&self) -> u32 {
        RETRIES
    }
}

impl Drop for LocalInstances {
    fn drop(&mut self) {
        for group in &mut self.groups {
            group.steps = None;
        }
        for group in &mut self.groups {
            if let Some(thread) = group.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
