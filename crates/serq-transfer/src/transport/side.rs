//! What each side brings to a link that is to begin, and how the two find a way.
//!
//! A way is one for both when both have reached the other by it. By NIXL bytes have to come without the other process
//! doing anything, as out of its memory on the same host, or through a network card. A trial shows it, of agents that help
//! each other only when they are told to:
//!
//! ```text
//!   one side                        the other, and then the two change places
//!   reads by the trial's agent      helps: that connects the two
//!   reads by the trial's agent      does nothing: the bytes are there all the same
//!   reads by the link's agent       its agent helps by itself: NIXL tells the end of a read only then
//! ```
//!
//! Where the other process would have to send them, TCP without NIXL is as quick; and UCX 1.23 ends a process that sends
//! them when who reads goes away.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Way;
use super::node::{Offer, Shared, Timed, said};
use super::reach::{Reach, Reading};
use crate::memory::{Mapping, Region};
use crate::nixl::{self, Agent};

/// What one side says of its agents.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Agents {
    links: nixl::Offer,
    trials: nixl::Offer,
    /// In the memory of the trial's.
    mark: u64,
}

/// What one side brings to a link that is to begin.
pub(super) struct Side {
    /// The best first.
    pub(super) ways: Vec<Way>,
    agents: Option<(Agent, Agent)>,
    says: Option<Agents>,
    trial: Option<Reading>,
}

impl Side {
    /// For these ways, without those that do not begin.
    pub(super) fn new(shared: &Shared, ways: impl Iterator<Item = Way>) -> Self {
        let mut side = Self { ways: Vec::new(), agents: None, says: None, trial: None };
        for way in ways {
            if !side.ways.contains(&way) {
                side.ways.push(way);
            }
        }
        if side.ways.contains(&Way::Nixl)
            && let Err(why) = side.make_agents(shared)
        {
            side.ways.retain(|way| *way != Way::Nixl);
            shared.not_offered(Way::Nixl, why);
        }
        side
    }

    fn make_agents(&mut self, shared: &Shared) -> Result<(), String> {
        let mut mark = [0; 8];
        getrandom::fill(&mut mark).map_err(|error| error.to_string())?;
        let marked = Region::new(mark.len()).map_err(|error| error.to_string())?;
        marked.write(0, &mark).expect("its length");
        let (links, trials) = (Agent::new(&shared.memory, true)?, Agent::new(&Arc::new(marked), false)?);
        let mark = u64::from_le_bytes(mark);
        self.says = Some(Agents { links: links.offer().clone(), trials: trials.offer().clone(), mark });
        self.agents = Some((links, trials));
        Ok(())
    }

    /// What the other side has to know.
    pub(super) fn offer(&self, shared: &Shared) -> Offer {
        let agents = self.says.clone().filter(|_| self.ways.contains(&Way::Nixl));
        Offer { ways: self.ways.clone(), place: shared.memory.place().clone(), agents }
    }

    /// The other's memory, as often as it is reached, the best way first.
    pub(super) fn reaches(&mut self, shared: &Shared, theirs: &Offer) -> Vec<Reach> {
        let ways: Vec<Way> = self.ways.iter().filter(|way| theirs.ways.contains(way)).copied().collect();
        ways.into_iter().filter_map(|way| self.reach(shared, way, theirs)).collect()
    }

    fn reach(&mut self, shared: &Shared, way: Way, theirs: &Offer) -> Option<Reach> {
        match way {
            Way::Local => None,
            Way::Tcp => Some(Reach::Sent),
            Way::Shm => Mapping::new(&theirs.place).ok().map(Reach::Mapped),
            Way::Nixl => {
                let ((links, trials), theirs) = (self.agents.take()?, theirs.agents.as_ref()?);
                let joined = Reading::new(trials, &theirs.trials)
                    .and_then(|trial| Ok((trial, Reading::new(links, &theirs.links)?)))
                    .map_err(|why| shared.not_offered(Way::Nixl, why));
                let (trial, reading) = joined.ok()?;
                self.trial = Some(trial);
                Some(Reach::Read(Box::new(reading)))
            }
        }
    }

    /// The trial, step by step in turns, of both sides that say something of agents. Leaves NIXL's reach out where it fails.
    pub(super) fn read_each_other(
        &mut self,
        shared: &Shared,
        theirs: &Agents,
        reaches: &mut Vec<Reach>,
        dials: bool,
        timed: &mut Timed<'_>,
    ) -> io::Result<()> {
        let trial = self.trial.take();
        let reading = reaches.iter().find_map(Reach::reading);
        let mut works = true;
        for step in [Step::Connect, Step::Alone, Step::Link] {
            let worked = works;
            for mine in [dials, !dials] {
                if mine {
                    works = works
                        && match step {
                            Step::Connect => trial.as_ref().is_some_and(Reading::reads),
                            Step::Alone => trial.as_ref().is_some_and(|trial| trial.reads_alone(theirs.mark)),
                            Step::Link => reading.is_some_and(Reading::reads),
                        };
                    timed.say(&works)?;
                } else {
                    let heard = match &trial {
                        Some(trial) if step == Step::Connect => timed.hear_while(|| trial.help())?,
                        _ => timed.hear()?,
                    };
                    works &= said::<bool>(&heard)?;
                }
            }
            if worked && !works {
                let trouble = match step {
                    Step::Connect | Step::Link => "NIXL does not reach the peer",
                    Step::Alone => "NIXL does not read the peer's memory without its help",
                };
                shared.not_offered(Way::Nixl, trouble.into());
            }
        }
        reaches.retain(|reach| works || reach.way() != Way::Nixl);
        Ok(())
    }
}

/// A trial's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Connect,
    Alone,
    Link,
}
