//! A kernel's world where requests come from outside, and the facts it is told as data.

use std::collections::HashMap;

use serq_kernel::{Action, Arrival, Draws, Fault, Kernel, Stream, TraceTurn, World};

use crate::decisions::Fact;

/// What the kernel needs of its world. Where time is not `MODELLED` it is measured, and nothing says
/// how long anything lasts.
pub(crate) struct Outside<const MODELLED: bool> {
    draws: Draws,
    /// Who arrives now, by the number of its "trace session".
    arriving: HashMap<u32, Arriving>,
    arrived: u32,
    ending: Option<u32>,
    now: f64,
    pub(crate) actions: Vec<Action>,
}

/// What a request brings.
#[derive(Clone, Debug)]
struct Arriving {
    prompt_tokens: f64,
    max_tokens: f64,
    block: f64,
    names: Vec<u64>,
}

impl<const MODELLED: bool> Outside<MODELLED> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            arriving: HashMap::new(),
            arrived: 0,
            ending: None,
            now: 0.0,
            actions: Vec::new(),
        }
    }
}

impl<const MODELLED: bool> World for Outside<MODELLED> {
    const MODELS_TIME: bool = MODELLED;
    const MOVES_FLOWS: bool = true;

    fn uniform(&mut self, stream: Stream) -> f64 {
        self.draws.uniform(stream)
    }

    fn trace_turn(&mut self, trace_session: u32, _: u64) -> Option<TraceTurn> {
        let arriving = self.arriving.get(&trace_session)?;
        Some(TraceTurn { new: arriving.prompt_tokens, out: arriving.max_tokens, ..TraceTurn::default() })
    }

    fn trace_blocks(&mut self, trace_session: u32, _: u64, ids: &mut Vec<u64>) -> f64 {
        let Some(arriving) = self.arriving.remove(&trace_session) else { return 0.0 };
        ids.extend_from_slice(&arriving.names);
        arriving.block
    }

    fn replacement(&mut self) -> Option<Arrival> {
        None
    }

    fn steps_ended(&mut self, stage: u32) -> u64 {
        u64::from(self.ending == Some(stage))
    }

    fn step_end(&mut self, _: u32, _: u64) -> f64 {
        self.now
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// Tells a kernel a fact.
pub(crate) fn tell<const MODELLED: bool>(
    kernel: &mut Kernel<'_>,
    world: &mut Outside<MODELLED>,
    fact: &Fact,
) -> Result<(), Box<Fault>> {
    match fact {
        Fact::Arrived { time, prompt_tokens, max_tokens, block, names } => {
            let trace_session = world.arrived;
            world.arrived = world.arrived.wrapping_add(1);
            let arriving = Arriving {
                prompt_tokens: *prompt_tokens,
                max_tokens: *max_tokens,
                block: *block,
                names: names.clone(),
            };
            world.arriving.insert(trace_session, arriving);
            kernel.tell_arrived(world, *time, [Arrival { trace_session: Some(trace_session) }])?;
            world.arriving.remove(&trace_session);
            Ok(())
        }
        Fact::StepEnded { time, stage } => {
            (world.ending, world.now) = (Some(*stage), *time);
            let told = kernel.tell_step_ended(world, *time, *stage);
            world.ending = None;
            told
        }
        Fact::WorkEnded { time, job } => kernel.tell_work_ended(world, *time, *job),
        Fact::ReadFailed { time, job } => kernel.tell_read_failed(world, *time, *job),
        Fact::Woken { time, timer } => kernel.tell_woken(world, *time, *timer),
        Fact::Cancelled { time, session } => kernel.tell_cancelled(world, *time, *session),
        Fact::Stopped { session, answer } => {
            kernel.tell_stopped(*session, *answer);
            Ok(())
        }
        Fact::Content { session, block, names } => {
            kernel.tell_content(*session, *block, names);
            Ok(())
        }
        Fact::Gone { time, stage } => kernel.tell_gone(world, *time, *stage),
        Fact::Draining { time, stage } => {
            kernel.tell_draining(*time, *stage);
            Ok(())
        }
        Fact::Back { time, stage } => {
            kernel.tell_back(*time, *stage);
            Ok(())
        }
        Fact::Spoiled { time, pool, block } => {
            kernel.tell_spoiled(*time, *pool, *block);
            Ok(())
        }
        Fact::Restarted => unreachable!("who restarts makes another kernel"),
        Fact::Due => kernel.start_due(world, true),
    }
}
