//! Instances that are gone, and what becomes of those who had anything there.

use super::super::live::{Computing, Live};
use super::{Driver, Due, Fact, Finish};

/// Seconds for which an instance is passed over whose KV did not arrive.
const MISTRUST: f64 = 5.0;
/// Seconds that a request waits for an instance to come back where no other is.
const PATIENCE: f64 = 10.0;

/// How a request was lost.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// Something of it was computed or tried: that is one retry less.
    pub(super) spent: bool,
    /// It waits until somebody is there.
    pub(super) waits: bool,
}

/// An instance that is gone.
pub(super) struct Going {
    pub(super) why: String,
    /// The kernel knew it, and somebody came to it all the same.
    pub(super) known: bool,
    /// It has come back meanwhile, empty, for the so-manieth time.
    pub(super) back: Option<u64>,
}

impl<const MODELLED: bool> Driver<'_, MODELLED> {
    /// What a request had is lost, or nobody was where it came: it begins again with the tokens there are, now or once
    /// somebody is there; or it fails.
    pub(super) fn mark_lost(&mut self, session: u64, why: &str, loss: Loss) {
        let retries = self.instances.as_ref().map_or(0, |instances| instances.retries());
        let Some(live) = self.live.get_mut(&session) else { return };
        if live.gone_away || live.again || live.finish.is_some() {
            return;
        }
        if live.figures.retries < retries {
            live.figures.retries += u32::from(loss.spent);
            (live.again, live.waits) = (true, loss.waits);
            why.clone_into(&mut live.why);
        } else {
            live.finish = Some(Finish::Unavailable(why.to_owned()));
            live.gone_away = true;
        }
    }

    pub(super) fn go(&mut self, stage: u32, why: String) {
        self.draining.remove(&stage);
        self.going.insert(stage, Going { why, known: false, back: None });
        let memory = self.served.instances[stage as usize];
        self.stop_copies(|copying| copying.touches(memory));
    }

    pub(super) fn come_back(&mut self, stage: u32, times: u64) {
        if let Some(going) = self.going.get_mut(&stage) {
            going.back = Some(times);
        } else if let Some(why) = self.gone.remove(&stage) {
            // Who got there meanwhile is not there for who comes back.
            if !self.kernel.sessions_at(stage).is_empty() {
                self.going.insert(stage, Going { why, known: true, back: Some(times) });
                return;
            }
            let time = self.now();
            self.tell(Fact::Back { time, stage });
            if let Some(instances) = &mut self.instances {
                instances.welcome(stage, times);
            }
            self.release_parked();
        }
    }

    /// Who comes to an instance that takes no new work goes elsewhere; once nobody is there, it may go.
    pub(super) fn drain_instances(&mut self) {
        for (stage, first) in self.draining.clone() {
            let there = self.kernel.sessions_at(stage);
            for &session in there.iter().filter(|&&session| session >= first) {
                let why = format!("{} is to end, and no other is there", self.served.name_of(stage));
                self.mark_lost(session, &why, Loss { spent: false, waits: true });
                self.cancel(session);
            }
            if there.is_empty() {
                self.draining.remove(&stage);
                if let Some(instances) = &mut self.instances {
                    instances.dismiss(stage);
                }
            }
        }
    }

    /// Instances that are gone are so for the kernel too, once nothing of those who were there is being read
    /// or written elsewhere. So it is whenever somebody gets to one.
    pub(super) fn lose_instances(&mut self) {
        let kernel = &self.kernel;
        let again = self.gone.extract_if(.., |&stage, _| !kernel.sessions_at(stage).is_empty());
        self.going.extend(again.map(|(stage, why)| (stage, Going { why, known: true, back: None })));
        for (stage, Going { why, known, back }) in std::mem::take(&mut self.going) {
            let memory = self.served.instances[stage as usize];
            let there = self.kernel.sessions_at(stage);
            let reads =
                self.copying.values().any(|copying| there.contains(&copying.session) || copying.touches(memory));
            let runs = |session| {
                let live: Option<&Live> = self.live.get(session);
                live.is_some_and(|live| live.running.iter().any(|&running| running != stage))
            };
            if reads || there.iter().any(runs) {
                self.going.insert(stage, Going { why, known, back });
                continue;
            }
            for Computing { session, .. } in self.steps.remove(&stage).unwrap_or_default() {
                if let Some(live) = self.live.get_mut(&session) {
                    live.has_run(stage);
                }
            }
            for &session in &there {
                let spent = !known && self.live.get(&session).is_some_and(|live| !live.shares.is_empty());
                self.mark_lost(session, &why, Loss { spent, waits: known });
            }
            let time = self.now();
            self.tell(Fact::Gone { time, stage });
            self.gone.insert(stage, why);
            if let Some(times) = back {
                self.come_back(stage, times);
            }
        }
    }

    /// An instance whose KV did not arrive somewhere is passed over for a while: others may be nearer.
    pub(super) fn mistrust(&mut self, pool: u32) {
        let Some(stage) = self.served.instances.iter().position(|&memory| memory == Some(pool)) else { return };
        let stage = stage as u32;
        if self.is_absent(stage) {
            return;
        }
        let time = self.now();
        self.tell(Fact::Draining { time, stage });
        self.clock.set(Due::Trusted(stage), time + MISTRUST);
    }

    pub(super) fn trust(&mut self, stage: u32, time: f64) {
        if !self.is_absent(stage) {
            self.tell(Fact::Back { time, stage });
            self.release_parked();
        }
    }

    /// Who has waited too long is told for whom.
    pub(super) fn give_up_waiting(&mut self, time: f64) {
        for (until, mut live) in std::mem::take(&mut self.parked) {
            if until > time {
                self.parked.push((until, live));
            } else {
                live.finish = Some(Finish::Unavailable(std::mem::take(&mut live.why)));
                self.finish(live);
            }
        }
        self.wait_for_parked();
    }

    /// A request waits until somebody is there.
    pub(super) fn park(&mut self, mut live: Live) {
        let until = *live.waits_until.get_or_insert(self.time + PATIENCE);
        self.parked.push((until, live));
        self.wait_for_parked();
    }

    pub(super) fn wait_for_parked(&mut self) {
        let first = self.parked.iter().map(|(until, _)| *until).min_by(f64::total_cmp);
        self.clock.set(Due::Patience, first.unwrap_or(f64::INFINITY));
    }

    /// Somebody is there: whoever waited for that tries.
    pub(super) fn release_parked(&mut self) {
        self.again.extend(self.parked.drain(..).map(|(_, live)| live));
        self.wait_for_parked();
    }

    /// Whether an instance is gone, or takes no new work.
    pub(super) fn is_absent(&self, stage: u32) -> bool {
        self.gone.contains_key(&stage) || self.going.contains_key(&stage) || self.draining.contains_key(&stage)
    }
}
