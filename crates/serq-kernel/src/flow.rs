//! Flows: jobs that occupy several `ps` stages at once and divide them.
//!
//! A stage named in any run over several stages is shared for the whole run: every
//! job on it is a flow. At every start and end of a flow all rates are set anew.
//!
//! * `maxmin`: all rates rise together; the stage with the least (capacity left) /
//!   (unfrozen flows) fills first and freezes its flows at that rate (progressive
//!   filling, Bertsekas and Gallager, "Data Networks", §6.5.2).
//! * `bottleneck`: the least of capacity / flows over the flow's stages.
//!
//! # Invariants
//!
//! - Σ rates at a stage ≤ its capacity (within 1e-9 of it).
//! - Two flows that end together end one after the other, in start order.

use serq_ir::SharePolicy;

use crate::code::StageCodeKind;
use crate::kernel::Kernel;

/// A shared stage while rates are being found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filling {
    stage: u32,
    left: f64,
    unfrozen: u32,
}

impl Kernel<'_> {
    fn capacity(&self, stage: u32) -> f64 {
        match self.code.stages[stage as usize].kind {
            StageCodeKind::Shared { capacity } => capacity,
            _ => unreachable!("flows run on shared stages only"),
        }
    }

    pub(crate) fn start_flow(&mut self, job: u32) {
        self.advance_flows();
        self.flows.push(job);
        for at in 0..self.jobs[job as usize].stages.len() {
            let stage = self.jobs[job as usize].stages[at];
            self.stages[stage as usize].serving.push(job);
            self.jobs[job as usize].started = self.now;
        }
        self.flows_changed = true;
    }

    pub(crate) fn stop_flow(&mut self, job: u32) {
        self.advance_flows();
        self.flows.retain(|&flow| flow != job);
        for at in 0..self.jobs[job as usize].stages.len() {
            let stage = self.jobs[job as usize].stages[at];
            let state = &mut self.stages[stage as usize];
            state.serving.retain(|&flow| flow != job);
            state.load = 0.0;
        }
        self.flows_changed = true;
    }

    /// Deducts what every flow moved since rates were last set.
    fn advance_flows(&mut self) {
        let elapsed = self.now - self.flows_since;
        self.flows_since = self.now;
        if elapsed != 0.0 {
            for &flow in &self.flows {
                let job = &mut self.jobs[flow as usize];
                job.remaining -= job.rate * elapsed;
            }
        }
    }

    /// Sets every flow's rate.
    pub(crate) fn share_out(&mut self) {
        self.advance_flows();
        self.list_stages();
        match self.code.share {
            Some(SharePolicy::Maxmin) => self.fill(),
            Some(SharePolicy::Bottleneck) => {
                for at in 0..self.flows.len() {
                    let flow = self.flows[at];
                    let rate = self.jobs[flow as usize]
                        .stages
                        .iter()
                        .map(|&s| self.capacity(s) / self.stages[s as usize].serving.len() as f64)
                        .fold(f64::INFINITY, f64::min);
                    self.jobs[flow as usize].rate = rate;
                }
            }
            None => {}
        }
        for at in 0..self.filling.len() {
            let stage = self.filling[at].stage;
            let sum: f64 = self.stages[stage as usize].serving.iter().map(|&f| self.jobs[f as usize].rate).sum();
            let capacity = self.capacity(stage);
            debug_assert!(sum <= capacity * (1.0 + 1e-9), "the flows of a stage are within its capacity");
            self.stages[stage as usize].load = sum / capacity;
            self.touch_stage(stage);
        }
    }

    /// Lists the stages that have flows, in declaration order, nothing given out yet.
    fn list_stages(&mut self) {
        self.filling.clear();
        for &flow in &self.flows {
            for &stage in &self.jobs[flow as usize].stages {
                let unfrozen = self.stages[stage as usize].serving.len() as u32;
                self.filling.push(Filling { stage, left: self.capacity(stage), unfrozen });
            }
        }
        self.filling.sort_unstable_by_key(|f| f.stage);
        self.filling.dedup_by_key(|f| f.stage);
    }

    fn fill(&mut self) {
        let mut filling = std::mem::take(&mut self.filling);
        for &flow in &self.flows {
            self.jobs[flow as usize].rate = f64::NAN;
        }
        let mut open = self.flows.len();
        while open > 0 {
            let (mut tightest, mut rate) = (usize::MAX, f64::INFINITY);
            for (at, f) in filling.iter().enumerate() {
                if f.unfrozen > 0 && f.left / f64::from(f.unfrozen) < rate {
                    tightest = at;
                    rate = f.left / f64::from(f.unfrozen);
                }
            }
            if tightest == usize::MAX {
                break;
            }
            let stage = filling[tightest].stage;
            for at in 0..self.stages[stage as usize].serving.len() {
                let flow = self.stages[stage as usize].serving[at];
                if !self.jobs[flow as usize].rate.is_nan() {
                    continue;
                }
                self.jobs[flow as usize].rate = rate.max(0.0);
                open -= 1;
                for &stage in &self.jobs[flow as usize].stages {
                    let at = filling.binary_search_by_key(&stage, |f| f.stage).expect("every flow's stage is listed");
                    filling[at].left -= rate;
                    filling[at].unfrozen -= 1;
                }
            }
        }
        self.filling = filling;
    }

    /// The flow that ends next, and when.
    pub(crate) fn next_flow(&self) -> Option<(u32, f64)> {
        self.flows
            .iter()
            .filter_map(|&flow| {
                let job = &self.jobs[flow as usize];
                Some((flow, self.due(job.remaining, job.rate)?))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
