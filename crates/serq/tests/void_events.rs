//! What will not happen any more is no event: it neither has pools retried nor lets engines wait.
//! Where `void_events` asks for it, it is one, as in serQ 0.1.3, whose answers these are too.

use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Steps, simulate};

/// When session 1 gets into a pool that no engine serves. It joins at 1, in a body that an
/// engine admits, so it is tried at the next event.
fn inside(declarations: &str, others: &str, run: &str, void_events: bool) -> Vec<f64> {
    let text = format!(
        "pool slot {{ cap 9; admit via eng; }} pool plain {{ cap 9; }} {declarations}
        stage eng : step {{ cost 1; }} stage gate : delay;
        workload {{ arrive batch(4); }}
        session {{
          branch (serial == 1) {{ run gate (1); hold slot (1) {{ hold plain (1) {{ observe inside = now; }} }} }}
          branch (serial == 2) {{ run gate (10); }}
          {others}
          end;
        }}
        run {{ horizon 20; {run} }}"
    );
    let (mut sources, mut said) = load(None, &text, &mut |_| Err("no libraries here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    said.extend(more);
    let program = program.unwrap_or_else(|| panic!("it does not load: {said:#?}"));
    let options = Options { record: true, steps: Steps::Planned, void_events, ..Options::default() };
    let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("it ends");
    outcome.samples[0].iter().map(|sample| sample.value).collect()
}

#[test]
fn what_will_not_happen_any_more_is_no_event() {
    let taken = "branch (serial == 0) { hold p (1) { } lease p (3) release p; }";
    let preempted = "branch (serial == 0) { hold p (1) { run gate (3); } }
        branch (serial == 3) { hold p (1) { run gate (0.5); grow p (1); run gate (100); } }";
    let moved = "branch (serial == 0) { run shared (3); }
        branch (serial == 3) { run gate (0.5); run shared (100); }";
    for (what, declarations, others, run, at) in [
        ("the timer of a lease that was taken", "pool p { }", taken, "", 10.0),
        ("the end of a job that was preempted", "pool p { cap 2; preempt by (serial); }", preempted, "", 10.0),
        // 2.5 of 3 are left when it has half the rate: due at 5.5.
        ("a finish that moved", "stage shared : ps(1);", moved, "", 5.5),
        ("the end of the warm-up", "", "", "warmup 3;", 10.0),
    ] {
        assert_eq!(inside(declarations, others, run, false), [at], "{what}");
        assert_eq!(inside(declarations, others, run, true), [3.0], "{what}");
    }
}

/// An engine plans when nothing else is due. Two finish at 2 on one stage, one after the other;
/// a third left another stage's finish of that time behind, which moved.
#[test]
fn engines_do_not_wait_for_what_is_void() {
    let started = |void_events| {
        let text = "stage right : ps(1); stage left : ps(1); stage gate : delay; stage eng : step { cost 1; }
            workload { arrive batch(4); }
            session {
              branch (serial < 2) { run right (1); run eng prefill (1); observe done = now; }
              branch (serial == 2) { run left (2); }
              branch (serial == 3) { run gate (1); run left (9); }
              end;
            }
            run { horizon 20; }";
        let (mut sources, _) = load(None, text, &mut |_| Err("no libraries here".into()));
        let program = compile(&mut sources, &Settings::default()).0.expect("it loads");
        let options = Options { record: true, steps: Steps::Planned, void_events, ..Options::default() };
        let outcome = simulate(&program, None, &options, &mut |_, _| true).expect("it ends");
        outcome.samples[0].iter().map(|sample| sample.value).collect::<Vec<_>>()
    };
    // The first starts a step, which the second has missed; or it waits, and both are in it.
    assert_eq!(started(false), [3.0, 4.0]);
    assert_eq!(started(true), [3.0, 3.0]);
}
