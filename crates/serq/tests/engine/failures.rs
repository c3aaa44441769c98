//! Reads that fail in service: what the program says is done, and no text differs.

use super::*;

/// An example whose reads that fail are dealt with so.
fn with_policy(path: &str, policy: &str) -> String {
    let text = fs::read_to_string(root().join(path)).unwrap();
    let (transfer, bare) = ("to kv (prompt - 1 - have)", text.replace(" else recompute;", ";"));
    assert_eq!(bare.matches(transfer).count(), 1, "{path}");
    bare.replace(transfer, &format!("{transfer} {policy}"))
}

fn start(
    path: &str,
    policy: &str,
    sets: &[(&str, String)],
) -> (Setup, std::sync::Arc<std::sync::Mutex<ledger::Steps>>) {
    let served = compiled(&root().join(path), &with_policy(path, policy), sets);
    let (ledger, steps) = Ledger::far(&served);
    (Setup::of(served, ledger), steps)
}

fn sets(seed: u64) -> Vec<(&'static str, String)> {
    let block = |nth: u64| [1, 8, 16, 48][(seed * 3 + nth) as usize % 4];
    let (from, to) = (block(0), block(1));
    vec![
        ("bsP", from.to_string()),
        ("bsD", to.to_string()),
        ("blocksP", (400 / from).to_string()),
        ("blocksD", (300 / to + 2).to_string()),
        ("thr", "4".into()),
        ("B", ["16", "64"][seed as usize % 2].into()),
    ]
}

/// Answers how many copies broke. All texts are right, and nobody is routed again but where instances end.
fn crowd(path: &str, policy: &str, seed: u64, instances_end: bool) -> usize {
    let mut random = Random(seed);
    let (setup, steps) = start(path, policy, &sets(seed));
    let (mut asked, mut broke): (Vec<Asked>, usize) = (Vec::new(), 0);
    // It answers once it watches who is there.
    assert_eq!(setup.service.look().unwrap().live, 0);
    loop {
        let running = steps.lock().unwrap().running();
        match random.below(8) {
            0..3 if asked.len() < 25 => {
                let length = 1 + random.below(90) as usize;
                asked.push(ask(&setup.service, prompt(&mut random, length), 1 + random.below(20) as usize, 1));
            }
            3 => broke += steps.lock().unwrap().break_copies(),
            4 if instances_end && random.below(8) == 0 => {
                steps.lock().unwrap().lose(random.below(8) as usize, random.below(2) == 0);
            }
            5 if instances_end => steps.lock().unwrap().all_back(),
            _ if running > 0 => steps.lock().unwrap().end(random.below(running as u64) as usize),
            _ => {}
        }
        let live = setup.service.look().unwrap().live;
        if asked.len() == 25 && live == 0 && steps.lock().unwrap().running() == 0 {
            break;
        }
        if live > 0 && steps.lock().unwrap().running() == 0 {
            steps.lock().unwrap().all_back();
        }
    }
    nothing_is_left(&setup.service);
    for one in &asked {
        let (mut tokens, mut retries) = (Vec::new(), 0);
        while let Ok(event) = one.events.try_recv() {
            match event {
                Event::Token { token, .. } => tokens.push(token),
                Event::Finished { finish, figures, .. } => {
                    assert!(matches!(finish, Finish::Length), "{finish:?}");
                    retries = figures.retries;
                }
            }
        }
        assert_eq!(tokens, expected(&one.prompt, one.max_tokens), "{path}, {policy}, seed {seed}");
        assert!(instances_end || retries == 0, "a read that fails is no reason to route anybody again");
    }
    setup.replay();
    broke
}

#[test]
fn reads_that_break_change_no_text() {
    for path in [PAIR, apart::PAIRS, apart::CONCURRENT] {
        for policy in ["else recompute", "else retry 2 then recompute"] {
            let broke: usize = (0..8).map(|seed| crowd(path, policy, seed, false)).sum();
            assert!(broke > 40, "{path}, {policy}: {broke} copies broke");
        }
    }
}

#[test]
fn nor_do_instances_that_end_beside_them() {
    for path in [PAIR, apart::PAIRS, apart::CONCURRENT] {
        for seed in 0..12 {
            crowd(path, "else retry 1 then recompute", seed, true);
        }
    }
}

#[test]
fn a_request_fails_with_what_broke_where_its_program_has_an_error() {
    let (setup, steps) = start(PAIR, "else retry 1 then error", &sets(2));
    let asked = ask(&setup.service, prompt(&mut Random(1), 50), 5, 1);
    let finish = loop {
        assert!(setup.service.look().is_some());
        let mut steps = steps.lock().unwrap();
        steps.break_copies();
        if steps.running() > 0 {
            steps.end(0);
        }
        drop(steps);
        match asked.events.try_recv() {
            Ok(Event::Finished { finish, .. }) => break finish,
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    };
    assert_eq!(finish, Finish::Unavailable("the link broke".into()));
    nothing_is_left(&setup.service);
    setup.replay();
}
