//! Flows: jobs that occupy several `ps` stages at once and divide them.
//!
//! A stage named in any run over several stages is shared for the whole run: every
//! job on it is a flow. When a flow starts or ends, rates are set anew where they move.
//!
//! * `maxmin`: all rates rise together; the stage with the least (capacity left) /
//!   (unfrozen flows) fills first and freezes its flows at that rate (progressive
//!   filling, Bertsekas and Gallager, "Data Networks", §6.5.2).
//! * `bottleneck`: the least of capacity / flows over the flow's stages.
//!
//! Max-min is solved in a *region*: at first the stages whose flows changed. Flows of the
//! region may take on a stage outside what the others there leave. Where that does not
//! come out fair, the stage joins the region, and the region is solved again:
//!
//! ```text
//!   stages changed ─▶ fill the region ─┬─ fair at every stage next to it ─▶ rates set
//!                          ▲           └─ not at some ─▶ they join ─┐
//!                          └────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! - Σ rates at a stage ≤ its capacity (within 1e-9 of it).
//! - Every flow's rate is what filling all stages at once gives it (within 1e-9);
//!   [`Kernel::check`] compares.
//! - A flow keeps its rate and its time of ending, to the bit, while only others' rates move.
//! - Two flows that end together end one after the other, in start order.

use serq_ir::SharePolicy;

use crate::code::StageCodeKind;
use crate::kernel::Kernel;
use crate::world::{Action, World};

/// Rates nearer to each other than this part of them are one.
const SAME: f64 = 1e-12;

/// Where rates are being found.
#[derive(Debug, Default)]
pub(crate) struct Region {
    /// Tells this region's stages and flows from those of the one before.
    number: u64,
    stages: Vec<RegionStage>,
    flows: Vec<RegionFlow>,
    /// By stage, side by side since most that are asked are not inside: the latest region it was
    /// in, and its place there.
    places: Vec<(u64, u32)>,
}

impl Region {
    pub(crate) fn new(stages: usize) -> Self {
        Self { places: vec![(0, 0); stages], ..Self::default() }
    }

    fn is_inside(&self, stage: u32) -> bool {
        self.places[stage as usize].0 == self.number
    }
}

#[derive(Clone, Copy, Debug)]
struct RegionStage {
    stage: u32,
    left: f64,
    unfrozen: u32,
}

#[derive(Clone, Copy, Debug)]
struct RegionFlow {
    flow: u32,
    /// What the stages outside leave it.
    bound: f64,
    /// NaN until it is frozen.
    rate: f64,
}

impl Kernel<'_> {
    fn capacity(&self, stage: u32) -> f64 {
        self.code.capacities[stage as usize]
    }

    pub(crate) fn start_flow(&mut self, id: u32) {
        let job = &mut self.jobs[id as usize];
        job.started = self.now;
        job.since = self.now;
        self.flow_rates.resize(self.flow_rates.len().max(id as usize + 1), 0.0);
        self.flow_rates[id as usize] = f64::NAN;
        for &stage in &job.stages {
            self.stages[stage as usize].serving.push(id);
            self.flows_changed_at.push(stage);
        }
        self.flows_changed = true;
    }

    pub(crate) fn stop_flow(&mut self, id: u32) {
        let job = &self.jobs[id as usize];
        self.flows_due.remove(&(job.due.to_bits(), job.order, id));
        for &stage in &job.stages {
            self.stages[stage as usize].serving.retain(|&flow| flow != id);
            self.flows_changed_at.push(stage);
        }
        self.flows_changed = true;
    }

    /// Sets the rates that move since flows changed, and says which flow ends next.
    pub(crate) fn share_out<W: World>(&mut self, world: &mut W) {
        let mut changed = std::mem::take(&mut self.flows_changed_at);
        match self.code.share {
            Some(SharePolicy::Maxmin) => self.share_fairly(&changed),
            Some(SharePolicy::Bottleneck) => {
                for &stage in &changed {
                    for at in 0..self.stages[stage as usize].serving.len() {
                        let flow = self.stages[stage as usize].serving[at];
                        self.set_flow_rate(flow, self.bottleneck(flow));
                    }
                }
            }
            None => {}
        }
        for stage in changed.drain(..) {
            self.count_load(stage);
        }
        self.flows_changed_at = changed;
        let next = self.flows_due.first().map(|&(due, _, flow)| (flow, f64::from_bits(due)));
        world.act(Action::NextFinish { stage: None, next });
    }

    fn bottleneck(&self, flow: u32) -> f64 {
        let share = |&s: &u32| self.capacity(s) / self.stages[s as usize].serving.len() as f64;
        self.jobs[flow as usize].stages.iter().map(share).fold(f64::INFINITY, f64::min)
    }

    fn set_flow_rate(&mut self, id: u32, rate: f64) {
        let now = self.now;
        let job = &mut self.jobs[id as usize];
        let before = std::mem::replace(&mut self.flow_rates[id as usize], rate);
        if before == rate {
            return;
        }
        self.flows_due.remove(&(job.due.to_bits(), job.order, id));
        // Nothing is moved in no time, at an endless rate either.
        if now > job.since {
            job.remaining -= before * (now - job.since);
        }
        job.since = now;
        let (remaining, order) = (job.remaining, job.order);
        let due = self.due(remaining, rate);
        self.jobs[id as usize].due = due.unwrap_or(f64::INFINITY);
        if let Some(due) = due {
            self.flows_due.insert((due.to_bits(), order, id));
        }
        for at in 0..self.jobs[id as usize].stages.len() {
            let stage = self.jobs[id as usize].stages[at];
            self.count_load(stage);
        }
    }

    /// Always a fresh sum.
    fn count_load(&mut self, stage: u32) {
        let sum: f64 = self.stages[stage as usize].serving.iter().map(|&f| self.flow_rates[f as usize]).sum();
        self.stages[stage as usize].load = sum / self.capacity(stage);
        self.touch_stage(stage);
    }

    fn share_fairly(&mut self, changed: &[u32]) {
        if changed.iter().all(|&stage| self.stages[stage as usize].serving.iter().all(|&flow| self.is_alone(flow))) {
            for &stage in changed {
                if let Some(&flow) = self.stages[stage as usize].serving.first() {
                    let capacities = self.jobs[flow as usize].stages.iter().map(|&s| self.capacity(s));
                    self.set_fair_rate(flow, capacities.fold(f64::INFINITY, f64::min));
                }
            }
        } else {
            self.share_in_region(changed);
        }
    }

    /// A flow that meets no other has what the narrowest of its stages can carry.
    fn is_alone(&self, flow: u32) -> bool {
        self.jobs[flow as usize].stages.iter().all(|&stage| self.stages[stage as usize].serving.len() == 1)
    }

    #[inline(never)]
    fn share_in_region(&mut self, changed: &[u32]) {
        let mut region = std::mem::take(&mut self.region);
        region.number += 1;
        region.stages.clear();
        for &stage in changed {
            self.join_region(&mut region, stage);
        }
        region.flows.clear();
        let mut listed = 0;
        while listed < region.stages.len() {
            self.list_flows(&mut region, listed);
            listed = region.stages.len();
            self.fill(&mut region);
            for at in 0..region.flows.len() {
                self.join_unfair_neighbours(&mut region, at);
            }
        }
        for &RegionFlow { flow, rate, .. } in &region.flows {
            self.set_fair_rate(flow, rate);
        }
        self.region = region;
    }

    fn set_fair_rate(&mut self, flow: u32, rate: f64) {
        let before = self.flow_rates[flow as usize];
        // A new flow has no rate yet.
        if before.is_nan() || (rate - before).abs() > SAME * rate {
            self.set_flow_rate(flow, rate);
        }
    }

    fn join_region(&mut self, region: &mut Region, stage: u32) {
        let place = &mut region.places[stage as usize];
        if place.0 != region.number && !self.stages[stage as usize].serving.is_empty() {
            *place = (region.number, region.stages.len() as u32);
            region.stages.push(RegionStage { stage, left: 0.0, unfrozen: 0 });
        }
    }

    /// Lists the flows of the region's stages from `new`, which joined since, after the others,
    /// nothing given out yet.
    fn list_flows(&mut self, region: &mut Region, new: usize) {
        let Region { number, stages: inside, flows, places } = region;
        for RegionStage { stage, left, unfrozen } in inside.iter_mut() {
            *left = self.capacity(*stage);
            *unfrozen = self.stages[*stage as usize].serving.len() as u32;
        }
        let place = |stage: u32| {
            let (region, place) = places[stage as usize];
            (region == *number).then_some(place)
        };
        let bound = |flow: u32| {
            let outside = self.jobs[flow as usize].stages.iter().filter(|s| place(**s).is_none());
            outside.map(|&s| self.left_by_others(s, flow)).fold(f64::INFINITY, f64::min)
        };
        for known in flows.iter_mut() {
            known.rate = f64::NAN;
            let joined = |&s: &u32| place(s).is_some_and(|place| place as usize >= new);
            if self.jobs[known.flow as usize].stages.iter().any(joined) {
                known.bound = bound(known.flow);
            }
        }
        for &RegionStage { stage, .. } in &inside[new..] {
            for &flow in &self.stages[stage as usize].serving {
                // It is listed at the first of its stages that is inside.
                let stages = &self.jobs[flow as usize].stages;
                if stages.iter().filter_map(|&s| place(s)).min() == place(stage) {
                    flows.push(RegionFlow { flow, bound: bound(flow), rate: f64::NAN });
                }
            }
        }
    }

    fn left_by_others(&self, stage: u32, flow: u32) -> f64 {
        let others = self.stages[stage as usize].serving.iter().filter(|&&f| f != flow);
        let taken: f64 = others.map(|&f| self.flow_rates[f as usize]).sum();
        (self.capacity(stage) - taken).max(0.0)
    }

    /// Progressive filling, of stages and of the flows' bounds.
    fn fill(&self, region: &mut Region) {
        let mut open = region.flows.len();
        while open > 0 {
            let (mut tightest, mut level) = (None, f64::INFINITY);
            for s in region.stages.iter().filter(|s| s.unfrozen > 0) {
                let share = s.left / f64::from(s.unfrozen);
                if share < level || tightest.is_none() {
                    (tightest, level) = (Some(s.stage), share);
                }
            }
            let mut bounded = None;
            let mut least = level;
            for (at, f) in region.flows.iter().enumerate() {
                if f.rate.is_nan() && (f.bound < least || (f.bound == least && bounded.is_none())) {
                    (bounded, least) = (Some(at), f.bound);
                }
            }
            for at in 0..region.flows.len() {
                let RegionFlow { flow, rate, .. } = region.flows[at];
                let stages = &self.jobs[flow as usize].stages;
                let freezes = match bounded {
                    Some(bounded) => bounded == at,
                    None => rate.is_nan() && tightest.is_some_and(|t| stages.contains(&t)),
                };
                if !freezes {
                    continue;
                }
                let rate = least.max(0.0);
                region.flows[at].rate = rate;
                open -= 1;
                for &stage in stages {
                    let (number, place) = region.places[stage as usize];
                    if number == region.number {
                        let inside = &mut region.stages[place as usize];
                        inside.unfrozen -= 1;
                        if rate.is_finite() {
                            inside.left = (inside.left - rate).max(0.0);
                        }
                    }
                }
            }
        }
    }

    /// Takes in the stages outside at which a flow's rate is not fair.
    fn join_unfair_neighbours(&mut self, region: &mut Region, at: usize) {
        let RegionFlow { flow, bound, rate } = region.flows[at];
        let before = self.flow_rates[flow as usize];
        for place in 0..self.jobs[flow as usize].stages.len() {
            let stage = self.jobs[flow as usize].stages[place];
            if region.is_inside(stage) {
                continue;
            }
            let near = self.capacity(stage) * SAME;
            let (moved, fell) = ((rate - before).abs() > near, rate < before - near);
            let held = rate >= bound - near;
            if !(moved || fell || held) {
                continue;
            }
            let (mut sum, mut greatest, mut shared) = (0.0, 0.0f64, false);
            for &other in &self.stages[stage as usize].serving {
                let rate = self.flow_rates[other as usize];
                sum += rate;
                if other != flow {
                    greatest = greatest.max(rate);
                    shared |= moved && self.jobs[other as usize].stages.iter().any(|&s| region.is_inside(s));
                }
            }
            let full = sum >= self.capacity(stage) - near;
            let alone = self.stages[stage as usize].serving.len() == 1;
            // Two flows of the region meet there; or it is held back while another has more; or
            // it leaves room on what was full.
            let unfair = shared || (held && rate < greatest - near) || (fell && full && !alone);
            if unfair {
                self.join_region(region, stage);
            }
        }
    }

    /// Asserts that every flow has the rate that filling all stages at once gives it.
    pub(crate) fn check_flows(&self) {
        if self.code.share != Some(SharePolicy::Maxmin) || self.flows_changed {
            return;
        }
        let mut open: Vec<u32> = (0..self.jobs.len() as u32)
            .filter(|&id| {
                let job = &self.jobs[id as usize];
                let shared = |&s: &u32| matches!(self.code.stages[s as usize].kind, StageCodeKind::Shared { .. });
                job.alive && job.stages.first().is_some_and(shared)
            })
            .collect();
        let mut left: Vec<f64> = (0..self.stages.len() as u32)
            .map(|s| match self.code.stages[s as usize].kind {
                StageCodeKind::Shared { capacity } => capacity,
                _ => f64::INFINITY,
            })
            .collect();
        while !open.is_empty() {
            let crowd = |s: u32| open.iter().filter(|&&f| self.jobs[f as usize].stages.contains(&s)).count();
            let level = |s: u32| left[s as usize] / crowd(s) as f64;
            let crowded = (0..self.stages.len() as u32).filter(|&s| crowd(s) > 0);
            let tightest = crowded.min_by(|a, b| level(*a).total_cmp(&level(*b))).expect("a flow has a stage");
            let rate = level(tightest);
            let (frozen, rest): (Vec<u32>, Vec<u32>) =
                open.iter().partition(|&&f| self.jobs[f as usize].stages.contains(&tightest));
            for flow in frozen {
                let job = &self.jobs[flow as usize];
                let has = self.flow_rates[flow as usize];
                let off = (has - rate).abs();
                assert!(off <= 1e-9 * rate.abs() || rate.is_infinite(), "a flow has {has}, {rate} is fair");
                job.stages.iter().for_each(|&s| left[s as usize] -= rate);
            }
            open = rest;
        }
    }
}
