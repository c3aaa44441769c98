//! Flows over several links against a second simulation of the same networks.
//!
//! Random small networks are written as programs: links of different capacity, sessions that
//! start together or apart and send one flow after another over random sets of links. The
//! oracle has its own event loop. It finds max-min rates by raising one level for all flows
//! until some link is full, the level found by bisection on nothing but "is any link above its
//! capacity", and certifies what it found: rates are max-min fair exactly if every flow
//! has a full link on which no flow is faster (Bertsekas and Gallager, "Data Networks",
//! 1992, §6.5.2). Finish times, loads and numbers must agree to 1e-9, and each policy's
//! twin is the other policy.

use std::fmt::Write;

use serq_lang::Settings;
use serq_sim::{Options, Outcome, simulate};

use super::experiment::program;

/// Networks tried.
const NETWORKS: u64 = 80;

/// A run's end, after every flow's.
const HORIZON: f64 = 200.0;

/// Links declared alone; further ones are members of a family.
const SCALARS: usize = 4;
const FAMILY: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Maxmin,
    Bottleneck,
}

#[derive(Debug)]
struct Flow {
    links: Vec<usize>,
    work: f64,
}

#[derive(Debug)]
struct Network {
    capacities: Vec<f64>,
    /// When a session's first flow starts, and its flows.
    sessions: Vec<(f64, Vec<Flow>)>,
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A positive number of two decimals, up to `most`.
    fn amount(&mut self, most: u64) -> f64 {
        (1 + self.below(100 * most)) as f64 / 100.0
    }
}

impl Network {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut capacities: Vec<f64> = (0..SCALARS).map(|_| 0.5 + random.amount(3)).collect();
        capacities.extend([0.5 + random.amount(2); FAMILY]);
        let sessions = (0..3 + random.below(8)).map(|k| {
            // Every other session starts at 0: rates of flows that start together matter most.
            let start = if k % 2 == 0 { 0.0 } else { random.amount(4) };
            let flows = (0..1 + random.below(3)).map(|_| {
                let mut links: Vec<usize> = (0..SCALARS).filter(|_| random.below(3) == 0).collect();
                // A flow may name a family once.
                if links.len() < 2 || random.below(2) == 0 {
                    links.push(SCALARS + random.below(FAMILY as u64) as usize);
                }
                Flow { links, work: random.amount(5) }
            });
            (start, flows.collect())
        });
        let mut network = Self { sessions: sessions.collect(), capacities };
        // `share` is refused where no flow has two links.
        network.sessions[0].1.push(Flow { links: vec![0, 1, SCALARS], work: 1.5 });
        network
    }

    fn text(&self, policy: Policy) -> String {
        let mut text = String::from("stage gate : delay;\n");
        for (k, capacity) in self.capacities[..SCALARS].iter().enumerate() {
            writeln!(text, "stage s{k} : ps({capacity});").unwrap();
        }
        writeln!(text, "stage f[{FAMILY}] : ps({});", self.capacities[SCALARS]).unwrap();
        let policy = if policy == Policy::Maxmin { "maxmin" } else { "bottleneck" };
        writeln!(text, "share {policy};\nworkload {{ arrive batch({}); }}\nsession {{", self.sessions.len()).unwrap();
        for (serial, (start, flows)) in self.sessions.iter().enumerate() {
            writeln!(text, "  branch (serial == {serial}) {{\n    run gate ({start});").unwrap();
            for Flow { links, work } in flows {
                let name = |&link: &usize| match link.checked_sub(SCALARS) {
                    None => format!("s{link}"),
                    Some(member) => format!("f[{member}]"),
                };
                let links = links.iter().map(name).collect::<Vec<_>>().join(", ");
                writeln!(text, "    run {links} ({work});\n    observe done = now;").unwrap();
            }
            text.push_str("  }\n");
        }
        writeln!(text, "  end;\n}}\nrun {{ horizon {HORIZON}; }}").unwrap();
        text
    }

    fn simulate(&self, policy: Policy) -> Schedule {
        let text = self.text(policy);
        let program = program("network", &text, &Settings::default());
        let options = Options { record: true, ..Options::default() };
        let Outcome { report, samples, .. } =
            simulate(&program, None, &options, &mut |_, _| true).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        let mut done = vec![Vec::new(); self.sessions.len()];
        for sample in &samples[0] {
            done[sample.session as usize].push(sample.value);
        }
        // The gate's row comes first.
        let rows = &report.stages[1..];
        Schedule {
            done,
            number: rows.iter().map(|row| row.mean_number).collect(),
            // Of a link no flow shares with another link the report has the time it is busy.
            load: rows.iter().map(|row| (row.kind == "shared").then_some(row.utilization)).collect(),
        }
    }

    /// The same by brute force.
    fn oracle(&self, policy: Policy) -> Schedule {
        struct Active {
            session: usize,
            flow: usize,
            left: f64,
        }
        let mut now = 0.0;
        let mut done = vec![Vec::new(); self.sessions.len()];
        let (mut number, mut load) = (vec![0.0; self.capacities.len()], vec![0.0; self.capacities.len()]);
        let mut starts: Vec<(f64, usize)> = self.sessions.iter().enumerate().map(|(k, s)| (s.0, k)).collect();
        let mut active: Vec<Active> = Vec::new();
        let begin = |session: usize, flow: usize| {
            self.sessions[session].1.get(flow).map(|f| Active { session, flow, left: f.work })
        };
        loop {
            starts.retain(|&(start, session)| {
                if start <= now {
                    active.extend(begin(session, 0));
                }
                start > now
            });
            let links: Vec<&[usize]> =
                active.iter().map(|a| self.sessions[a.session].1[a.flow].links.as_slice()).collect();
            let rates = match policy {
                Policy::Maxmin => raise_level(&self.capacities, &links),
                Policy::Bottleneck => bottlenecks(&self.capacities, &links),
            };
            let first =
                (0..active.len()).map(|k| (now + active[k].left / rates[k], k)).min_by(|a, b| a.0.total_cmp(&b.0));
            let start = starts.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
            let next = first.map_or(start, |first| first.0.min(start));
            if next == f64::INFINITY {
                break;
            }
            for (k, links) in links.iter().enumerate() {
                active[k].left -= rates[k] * (next - now);
                for &link in *links {
                    number[link] += (next - now) / HORIZON;
                    load[link] += rates[k] / self.capacities[link] * (next - now) / HORIZON;
                }
            }
            now = next;
            if let Some((_, k)) = first.filter(|first| first.0 == now) {
                let Active { session, flow, .. } = active.remove(k);
                done[session].push(now);
                active.extend(begin(session, flow + 1));
            }
        }
        assert!(now < HORIZON, "every flow ends before the horizon");
        Schedule { done, number, load: load.into_iter().map(Some).collect() }
    }
}

/// Σ rates on each link.
fn loads(capacities: &[f64], links: &[&[usize]], rate: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut loads = vec![0.0; capacities.len()];
    for (flow, links) in links.iter().enumerate() {
        for &link in *links {
            loads[link] += rate(flow);
        }
    }
    loads
}

/// Max-min rates: the level of all flows not yet stopped rises until a link is full, which
/// stops the flows on it.
fn raise_level(capacities: &[f64], links: &[&[usize]]) -> Vec<f64> {
    let mut rates: Vec<Option<f64>> = vec![None; links.len()];
    while rates.contains(&None) {
        let at = |level: f64| loads(capacities, links, |flow| rates[flow].unwrap_or(level));
        let feasible = |level: f64| at(level).iter().zip(capacities).all(|(load, capacity)| load <= capacity);
        let (mut low, mut high) = (0.0, 2.0 * capacities.iter().copied().fold(0.0, f64::max));
        // Until the two are neighbouring doubles.
        loop {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                break;
            }
            if feasible(middle) { low = middle } else { high = middle }
        }
        let full: Vec<bool> =
            at(low).iter().zip(capacities).map(|(load, capacity)| *load >= capacity * (1.0 - 1e-12)).collect();
        let before = rates.iter().flatten().count();
        for (flow, rate) in rates.iter_mut().enumerate() {
            if rate.is_none() && links[flow].iter().any(|&link| full[link]) {
                *rate = Some(low);
            }
        }
        assert!(rates.iter().flatten().count() > before, "some link is full at the highest feasible level");
    }
    let rates: Vec<f64> = rates.into_iter().flatten().collect();
    assert!(is_maxmin(capacities, links, &rates), "{capacities:?} {links:?} {rates:?}");
    rates
}

/// Bertsekas and Gallager's certificate.
fn is_maxmin(capacities: &[f64], links: &[&[usize]], rates: &[f64]) -> bool {
    let loads = loads(capacities, links, |flow| rates[flow]);
    let within = |link: usize| loads[link] <= capacities[link] * (1.0 + 1e-9);
    let full = |link: usize| loads[link] >= capacities[link] * (1.0 - 1e-9);
    let fastest = |link: usize| {
        (0..rates.len()).filter(|&flow| links[flow].contains(&link)).map(|flow| rates[flow]).fold(0.0, f64::max)
    };
    (0..capacities.len()).all(within)
        && (0..rates.len())
            .all(|flow| links[flow].iter().any(|&link| full(link) && rates[flow] >= fastest(link) * (1.0 - 1e-9)))
}

/// Each flow as if every link were divided evenly among the flows on it.
fn bottlenecks(capacities: &[f64], links: &[&[usize]]) -> Vec<f64> {
    let flows = loads(capacities, links, |_| 1.0);
    links.iter().map(|links| links.iter().map(|&l| capacities[l] / flows[l]).fold(f64::INFINITY, f64::min)).collect()
}

#[derive(Debug)]
struct Schedule {
    /// Finish times, by session.
    done: Vec<Vec<f64>>,
    /// Time averages by link: flows, and Σ rates / capacity where it is known.
    number: Vec<f64>,
    load: Vec<Option<f64>>,
}

impl Schedule {
    /// The largest difference of any figure, relative to it or 1.
    fn off(&self, other: &Self) -> f64 {
        let counts = |schedule: &Self| schedule.done.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(self), counts(other), "the same flows end");
        let done = self.done.iter().flatten().zip(other.done.iter().flatten()).map(|(a, b)| (*a, *b));
        let number = self.number.iter().zip(&other.number).map(|(a, b)| (*a, *b));
        let load = self.load.iter().zip(&other.load).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        done.chain(number).chain(load).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f64::max)
    }
}

/// Every network's schedule is its oracle's; under the other policy most are not.
fn check(policy: Policy, other: Policy) {
    let (mut worst, mut told_apart, mut flows) = (0.0f64, 0, 0);
    for seed in 0..NETWORKS {
        let network = Network::random(seed);
        let oracle = network.oracle(policy);
        let off = network.simulate(policy).off(&oracle);
        assert!(off < 1e-9, "network {seed} differs by {off}:\n{}", network.text(policy));
        worst = worst.max(off);
        told_apart += u64::from(network.simulate(other).off(&oracle) > 1e-3);
        flows += oracle.done.iter().map(Vec::len).sum::<usize>();
    }
    println!(
        "| {policy:?} | {flows} flows of {NETWORKS} networks | brute force | differ by {worst:.1e} at most | \
         {other:?}: {told_apart} networks |"
    );
    // In a few networks the two policies give the same schedule.
    assert!(4 * told_apart >= 3 * NETWORKS, "{other:?} is told from {policy:?} in {told_apart} networks only");
}

#[test]
fn maxmin_is_water_filling() {
    check(Policy::Maxmin, Policy::Bottleneck);
}

#[test]
fn bottleneck_is_the_tightest_link() {
    check(Policy::Bottleneck, Policy::Maxmin);
}

/// A parking lot: the long flow crosses both links and shares the first with two others.
#[test]
fn the_oracle_knows_a_case_done_by_hand() {
    let links: [&[usize]; 4] = [&[0, 1], &[0], &[0], &[1]];
    let capacities = [3.0, 4.0];
    assert!(raise_level(&capacities, &links).iter().zip([1.0, 1.0, 1.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-12));
    assert_eq!(bottlenecks(&capacities, &links), [1.0, 1.0, 1.0, 2.0]);
    assert!(!is_maxmin(&capacities, &links, &[1.0, 1.0, 1.0, 2.0]));
}
