//! What a page needs of a run beyond its report, gathered while it goes on and in bounded memory:
//! curves over time, how samples are spread, and what bounded each request that was late.
//!
//! # Invariants
//!
//! - Memory does not grow with the run, but for the first [`MISSES_MAX`] late requests.

use std::collections::BTreeMap;

use serq_ir::{Mode, Program};
use serq_sim::record::{Move, PoolState, Recorder, StageState};
use serq_sim::ttft::{PARTS, Part, Request};

use super::distribution::Distribution;
use super::instances::Group;
use super::series::Series;

/// Late requests that are kept to be judged at the end.
const MISSES_MAX: usize = 65_536;

/// What a curve shows of its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Waiting,
    Jobs,
    Decodes,
    Used,
    Cached,
    Load,
}

/// A curve over time: the sum over its sources, each by a weight.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) series: Series,
    sum: f64,
}

/// A member that a track adds up.
#[derive(Clone, Copy, Debug)]
struct Source {
    track: usize,
    figure: Figure,
    weight: f64,
    last: f64,
}

/// The curves of a group, by place in [`Gathered::tracks`].
#[derive(Debug, Default)]
pub(super) struct GroupTracks {
    pub(super) waiting: Option<usize>,
    pub(super) jobs: Option<usize>,
    pub(super) decodes: Option<usize>,
    pub(super) used: Option<usize>,
    pub(super) cached: Option<usize>,
    /// Name of the stage's family, its curve, and whether that is a share.
    pub(super) wires: Vec<(String, usize, bool)>,
}

/// A request that missed a limit.
#[derive(Clone, Copy, Debug)]
struct Miss {
    limit: usize,
    /// By part, then from the first token to the sample.
    times: [f64; PARTS + 1],
}

/// How the samples of a limited observation came about.
#[derive(Clone, Debug, Default)]
pub(super) struct Limited {
    /// Samples after warm-up, and those above the limit.
    pub(super) count: u64,
    pub(super) late: u64,
    /// Late ones whose time the parts say nothing of.
    pub(super) unknown: u64,
    /// Of those within the limit: by part, then from the first token to the sample.
    timely: [Distribution; PARTS + 1],
}

/// A session alive, as far as its latest request goes.
#[derive(Debug, Default)]
struct Life {
    request: Option<Request>,
    /// A decode run that goes on: its work.
    decodes: Option<f64>,
    /// Tokens of the answer behind the first.
    tokens: Option<f64>,
}

/// All of it.
pub(super) struct Gathered {
    warmup: f64,
    pub(super) tracks: Vec<Track>,
    pub(super) groups: Vec<GroupTracks>,
    /// By pool and by stage.
    of_pool: Vec<Vec<Source>>,
    of_stage: Vec<Vec<Source>>,
    /// By observation.
    pub(super) observes: Vec<Distribution>,
    pub(super) first_token: Distribution,
    pub(super) per_token: Distribution,
    /// Observation and limit.
    limits: Vec<(u32, f64)>,
    pub(super) limited: Vec<Limited>,
    misses: Vec<Miss>,
    lives: BTreeMap<u64, Life>,
}

impl Gathered {
    pub(super) fn new(program: &Program, groups: &[Group], slo: &[(String, f64)]) -> Self {
        let horizon = program.run.horizon.0;
        let members = |sizes: &mut dyn Iterator<Item = Option<u32>>| sizes.map(|s| s.unwrap_or(1) as usize).sum();
        let pools: usize = members(&mut program.pools.iter().map(|p| p.size));
        let stages: usize = members(&mut program.stages.iter().map(|s| s.size));
        let observe = |name: &String| program.observes.iter().position(|o| o == name).map(|at| at as u32);
        let limits: Vec<(u32, f64)> =
            slo.iter().filter_map(|(name, limit)| observe(name).map(|observe| (observe, *limit))).collect();
        let mut gathered = Self {
            warmup: program.run.warmup.0,
            tracks: Vec::new(),
            groups: Vec::new(),
            of_pool: vec![Vec::new(); pools],
            of_stage: vec![Vec::new(); stages],
            observes: vec![Distribution::default(); program.observes.len()],
            first_token: Distribution::default(),
            per_token: Distribution::default(),
            limited: vec![Limited::default(); limits.len()],
            limits,
            misses: Vec::new(),
            lives: BTreeMap::new(),
        };
        let caps = crate::timeline::members::pools(program);
        let cap = |pool: u32| program.pools[caps[pool as usize].family as usize].cap.0;
        let stage_members = crate::timeline::members::stages(program);
        for group in groups {
            let each = 1.0 / group.size() as f64;
            let mut tracks = GroupTracks {
                waiting: gathered.pool_track(horizon, program, &group.pools, Figure::Waiting, &|_| each),
                jobs: gathered.stage_track(horizon, program, &group.engines, Figure::Jobs, each),
                decodes: gathered.stage_track(horizon, program, &group.engines, Figure::Decodes, each),
                ..GroupTracks::default()
            };
            let finite: Vec<u32> = group.memory.iter().copied().filter(|&pool| cap(pool).is_finite()).collect();
            let share = |pool: u32| 1.0 / cap(pool) / finite.len() as f64;
            tracks.used = gathered.pool_track(horizon, program, &finite, Figure::Used, &share);
            tracks.cached = gathered.pool_track(horizon, program, &finite, Figure::Cached, &share);
            let families: std::collections::BTreeSet<u32> =
                group.wires.iter().map(|&wire| stage_members[wire as usize].0.family).collect();
            for family in families {
                let wires: Vec<u32> =
                    group.wires.iter().copied().filter(|&w| stage_members[w as usize].0.family == family).collect();
                let weight = 1.0 / wires.len() as f64;
                let stage = &program.stages[family as usize];
                // Of what flows share, how much of it; elsewhere who is there, waiting or served.
                let figure = if stage.shared { Figure::Load } else { Figure::Jobs };
                if let Some(track) = gathered.stage_track(horizon, program, &wires, figure, weight) {
                    tracks.wires.push((stage.name.clone(), track, stage.shared));
                }
            }
            gathered.groups.push(tracks);
        }
        gathered
    }

    fn track(&mut self, horizon: f64, program: &Program) -> usize {
        self.tracks.push(Track { series: Series::new(horizon, program.run.arrivals.is_none()), sum: 0.0 });
        self.tracks.len() - 1
    }

    fn pool_track(
        &mut self,
        horizon: f64,
        program: &Program,
        pools: &[u32],
        figure: Figure,
        weight: &dyn Fn(u32) -> f64,
    ) -> Option<usize> {
        if pools.is_empty() {
            return None;
        }
        let track = self.track(horizon, program);
        for &pool in pools {
            self.of_pool[pool as usize].push(Source { track, figure, weight: weight(pool), last: 0.0 });
        }
        Some(track)
    }

    fn stage_track(
        &mut self,
        horizon: f64,
        program: &Program,
        stages: &[u32],
        figure: Figure,
        weight: f64,
    ) -> Option<usize> {
        if stages.is_empty() {
            return None;
        }
        let track = self.track(horizon, program);
        for &stage in stages {
            self.of_stage[stage as usize].push(Source { track, figure, weight, last: 0.0 });
        }
        Some(track)
    }

    /// Late requests by what bounded them: for each limit the part (or [`PARTS`], the rest of the
    /// answer) that was furthest above its median among the requests within the limit, and how many.
    pub(super) fn bounds(&self) -> Vec<BTreeMap<usize, u64>> {
        let medians: Vec<[f64; PARTS + 1]> =
            self.limited.iter().map(|limited| limited.timely.each_ref().map(|times| times.quantile(0.5))).collect();
        let mut bounds = vec![BTreeMap::new(); self.limits.len()];
        for Miss { limit, times } in &self.misses {
            let above = times.iter().zip(&medians[*limit]).map(|(time, median)| time - median);
            let most = above.enumerate().fold(
                (0, f64::NEG_INFINITY),
                |most, (at, above)| {
                    if above > most.1 { (at, above) } else { most }
                },
            );
            *bounds[*limit].entry(most.0).or_default() += 1;
        }
        bounds
    }

    fn end_decode(&mut self, now: f64, session: u64) {
        let Some(life) = self.lives.get_mut(&session) else { return };
        if let (Some(request), Some(tokens), Some(_)) = (life.request, life.tokens, life.decodes.take())
            && tokens >= 1.0
        {
            life.tokens = None;
            if now >= self.warmup {
                self.per_token.add((now - request.first_token) / tokens);
            }
        }
    }
}

/// Adds a change of one source to its track.
fn change(tracks: &mut [Track], source: &mut Source, now: f64, value: f64) {
    if value != source.last {
        let track = &mut tracks[source.track];
        track.sum += source.weight * (value - source.last);
        source.last = value;
        // A sum of many comes back to nothing, but for rounding.
        let shown = if track.sum.abs() < 1e-9 { 0.0 } else { track.sum };
        track.series.set(now, shown);
    }
}

impl Recorder for Gathered {
    fn session(&mut self, now: f64, session: u64, what: Move, _part: Option<Part>) {
        match what {
            Move::Turned => {
                self.end_decode(now, session);
                self.lives.insert(session, Life::default());
            }
            Move::Ended => {
                self.end_decode(now, session);
                self.lives.remove(&session);
            }
            Move::Serving { mode: Some(Mode::Decode), work, .. } => {
                self.end_decode(now, session);
                let life = self.lives.entry(session).or_default();
                life.decodes = Some(work);
                if life.request.is_some() && life.tokens.is_none() {
                    life.tokens = Some(work);
                }
            }
            Move::Preempted { .. } | Move::Cancelled => {
                if let Some(life) = self.lives.get_mut(&session) {
                    life.decodes = None;
                }
            }
            Move::Queued { .. } | Move::Growing { .. } | Move::Serving { also: false, .. } => {
                self.end_decode(now, session);
            }
            // Legs are not gathered.
            Move::Forked { .. } | Move::LegOver => {}
            Move::Joining
            | Move::Admitted { .. }
            | Move::Leased { .. }
            | Move::LeaseOver { .. }
            | Move::Prefilled { .. }
            | Move::Failed
            | Move::Serving { .. } => {}
        }
    }

    fn first_token(&mut self, request: &Request) {
        let life = self.lives.entry(request.session).or_default();
        life.request = Some(*request);
        // A run that made the first token itself makes one less behind it.
        life.tokens = life.decodes.map(|work| work - 1.0);
        if request.first_token >= self.warmup {
            self.first_token.add(request.span());
        }
    }

    fn pool(&mut self, now: f64, pool: u32, state: PoolState) {
        for source in &mut self.of_pool[pool as usize] {
            let value = match source.figure {
                Figure::Used => state.used,
                Figure::Cached => state.cached,
                _ => f64::from(state.queue),
            };
            change(&mut self.tracks, source, now, value);
        }
    }

    fn stage(&mut self, now: f64, stage: u32, state: StageState) {
        for source in &mut self.of_stage[stage as usize] {
            let value = match source.figure {
                Figure::Decodes => f64::from(state.decoders),
                Figure::Load => state.load,
                _ => f64::from(state.number),
            };
            change(&mut self.tracks, source, now, value);
        }
    }

    fn sample(&mut self, _now: f64, observe: u32, session: u64, turn: f64, value: f64, counts: bool) {
        if !counts {
            return;
        }
        self.observes[observe as usize].add(value);
        for at in 0..self.limits.len() {
            let (limited, limit) = self.limits[at];
            if limited != observe {
                continue;
            }
            let request = self.lives.get(&session).and_then(|life| life.request);
            // The sample is one of a time that began with the request and has its first token in it.
            let times = request
                .filter(|request| request.turn as f64 == turn)
                .map(|request| (request.parts, value - request.span()))
                .filter(|(_, rest)| *rest > -1e-9 * value.abs().max(1e-9))
                .map(|(parts, rest)| std::array::from_fn(|at| parts.get(at).copied().unwrap_or(rest.max(0.0))));
            let tally = &mut self.limited[at];
            tally.count += 1;
            if value <= limit {
                if let Some(times) = times {
                    tally.timely.iter_mut().zip(times).for_each(|(distribution, time)| distribution.add(time));
                }
                continue;
            }
            tally.late += 1;
            match times {
                Some(times) if self.misses.len() < MISSES_MAX => self.misses.push(Miss { limit: at, times }),
                _ => tally.unknown += 1,
            }
        }
    }

    fn finished(&mut self, end: f64) {
        self.tracks.iter_mut().for_each(|track| track.series.finish(end));
    }
}
