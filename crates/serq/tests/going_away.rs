//! Releases that take time to arrive, and clients that go away: by hand.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, simulate};

fn run(text: &str, cancellations: &[(f64, u64)]) -> Outcome {
    let (mut sources, mut said) = load(None, text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let options = Options { record: true, cancellations: cancellations.to_vec(), ..Options::default() };
    let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("it runs");
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0), "nothing is left to nobody");
    outcome
}

/// (time, session, value) of an observation.
fn samples(outcome: &Outcome, observe: &str) -> Vec<(f64, u64, f64)> {
    let at = outcome.report.observes.iter().position(|o| o.name == observe).expect("it is observed");
    outcome.samples[at].iter().map(|s| (s.time, s.session, s.value)).collect()
}

/// s0 leases 8 of 10 from 1 on, asks for the release at 2 and is over; it arrives at 5. s1 waits for 4
/// from 1.5 on, s2's own lease of 2 is over at 3 by its time, before its release at 2.5 + 4 would be.
#[test]
fn a_release_arrives_later_and_outlives_its_session() {
    let text = "pool mem { cap 10; }
        stage s : delay;
        workload { arrive batch(3); }
        session {
          branch (serial == 0) { hold mem (8) { run s (1); } lease mem (inf) run s (1); release mem after (3); end; }
          branch (serial == 1) { run s (1.5); hold mem (4) { observe got = now; run s (1); } end; }
          hold mem (2) { run s (1); } lease mem (2)
          run s (1.5);
          release mem after (4);
        }
        gauge used = used(mem);
        run { horizon 20; }";
    let outcome = run(text, &[]);
    assert_eq!(samples(&outcome, "got"), [(5.0, 1, 5.0)]);
    assert_eq!(outcome.gauge_points[0], [(0.0, 10.0), (3.0, 8.0), (5.0, 4.0), (6.0, 0.0)]);
    assert_eq!(outcome.report.ended, 3);
}

/// The second release of one pool is of the second lease: the first one's is on its way.
#[test]
fn a_lease_that_is_released_is_not_released_again() {
    let text = "pool mem { cap 10; }
        stage s : delay;
        workload { arrive batch(1); }
        session {
          hold mem (1) { run s (1); } lease mem (inf)
          hold mem (2) { run s (1); } lease mem (inf)
          release mem after (5);
          release mem;
          run s (1);
          release mem;
          observe still = used(mem);
          run s (9);
        }
        gauge used = used(mem);
        run { horizon 20; }";
    let outcome = run(text, &[]);
    assert_eq!(samples(&outcome, "still"), [(3.0, 0, 1.0)]);
    assert_eq!(outcome.gauge_points[0], [(0.0, 1.0), (1.0, 3.0), (2.0, 1.0), (7.0, 0.0)]);
}

const SHIELDED: &str = "pool mem { cap 8; block 4; }
    stage s : delay;
    workload { arrive batch(2); }
    session {
      hold mem (8) {
        shielded { run s (4); observe shielded = holders(mem); }
        observe after = now;
        run s (4);
      } cache (8)
      observe kept = cachedin(mem);
      run s (1);
    }
    gauge used = used(mem);
    gauge holders = holders(mem);
    run { horizon 30; }";

/// s0's client goes away at 1: it holds until 4, and is no holder; then s1 has all of it. Its client goes
/// away at 9, when it is out of what is shielded: it ends there.
#[test]
fn what_is_shielded_is_finished_and_no_more() {
    let outcome = run(SHIELDED, &[(1.0, 0), (9.0, 1)]);
    assert_eq!(samples(&outcome, "shielded"), [(4.0, 0, 0.0), (8.0, 1, 1.0)]);
    assert_eq!(samples(&outcome, "after"), [(8.0, 1, 8.0)]);
    assert_eq!(samples(&outcome, "kept"), []);
    assert_eq!(outcome.gauge_points[0], [(0.0, 8.0), (9.0, 0.0)]);
    assert_eq!(outcome.gauge_points[1], [(0.0, 1.0), (1.0, 0.0), (4.0, 1.0), (9.0, 0.0)]);
    // What nothing computed is not cached.
    assert_eq!(outcome.report.pools[0].mean_cached, 0.0);
}

/// Leases of who goes away: at once, or as much later as the lease says. Who waits, who is over and who
/// has not come are told too.
#[test]
fn an_abandoned_lease_ends_when_it_says() {
    let text = "pool a { cap 10; }
        pool b { cap 10; }
        stage s : delay;
        workload { arrive batch(2); }
        session {
          branch (serial == 1) { run s (0.5); hold b (10) { observe got = now; run s (1); } end; }
          hold a (3) { run s (1); } lease a (inf)
          hold b (2) { run s (1); } lease b (inf) abandoned (2.5)
          run s (10);
        }
        gauge a = used(a);
        gauge b = used(b);
        run { horizon 20; }";
    let outcome = run(text, &[(4.0, 0), (5.0, 0), (5.0, 7)]);
    assert_eq!(outcome.gauge_points[0], [(0.0, 3.0), (4.0, 0.0)]);
    assert_eq!(outcome.gauge_points[1], [(0.0, 0.0), (0.5, 10.0), (1.5, 2.0), (6.5, 0.0)]);
    // It left the queue.
    let outcome = run(text, &[(0.25, 1), (1.25, 0)]);
    assert_eq!(samples(&outcome, "got"), []);
    assert_eq!(outcome.gauge_points[0], [(0.0, 3.0), (1.25, 0.0)]);
}

/// A prefill of 10 in chunks of 4 is cut at 2.5, in its third step: 8 are computed, two blocks of 4 stay.
#[test]
fn what_a_cancelled_session_computed_stays_cached() {
    let text = "pool mem { cap 100; block 4; }
        stage eng : step { budget 4; cost 1; memory mem; }
        workload { arrive batch(1); }
        session { hold mem (4) { run eng prefill (10) growing mem; run eng decode (5) growing mem; } cache (100) }
        gauge used = used(mem);
        run { horizon 10; }";
    let outcome = run(text, &[(2.5, 0)]);
    assert_eq!(outcome.gauge_points[0], [(0.0, 4.0), (1.0, 8.0), (2.0, 12.0), (2.5, 0.0)]);
    assert_eq!(outcome.report.pools[0].mean_cached, 8.0 * 7.5 / 10.0);
}
