//! Random programs with much to leap over, and much that looks into leaps or ends them.
//!
//! Engines decode long answers in steps of equal, round durations. Meanwhile sessions that are
//! not at the engines grow into their memory and preempt, give room back that a refused head
//! waits for, and look: at `work`, at who is there, at what is in use. All times are multiples
//! of 1/8, so what they do often falls exactly on the end of a step.
//!
//! The programs of [`crate::differential::generator`] decode too little for this, even with
//! their decodes made long.

use std::fmt::Write as _;

use crate::differential::generator::Rng;

/// The program of a seed.
pub(super) fn program(seed: u64) -> String {
    // Not the numbers the other generator draws of that seed.
    let mut rng = Rng::new(seed ^ 0x6c65_6170);
    let engines = rng.between(1, 3);
    let cap = 16 * rng.between(8, 24);
    let mut text = String::new();
    let preempt =
        rng.one_of(&["lifo", "lifo", "by (position)", "by (0 - position)", "by (decoding, admission)", "none"]);
    let evict = rng.one_of(&["", " evict lru;"]);
    let block = rng.one_of(&["8", "16", "32", "64"]);
    let _ =
        writeln!(text, "pool kv[{engines}] {{ cap {cap}; block {block};{evict} preempt {preempt}; admit via eng; }}");
    let seats = rng.chance(40);
    if seats {
        let _ = writeln!(text, "pool seats[{engines}] {{ cap {}; admit via eng; }}", rng.between(1, 4));
    }
    let _ = writeln!(text, "pool room {{ cap {cap}; }}");
    let cost =
        rng.one_of(&["1", "0.5", "0.125 * (1 + decoders)", "0.25 + 0.125 * residents", "1 + kv_decode / 1024", "2"]);
    let budget = rng.one_of(&[
        "64",
        "16",
        "4",
        "2.5",
        "2 + 2 * residents - decoders",
        "max(8 - residents, 1)",
        "1 + kv_decode / 32",
        "max(16 - kv_decode / 16, 1)",
    ]);
    let _ = writeln!(text, "stage eng[{engines}] : step {{ budget {budget}; cost {cost}; memory kv; }}");
    text += "stage wait : delay;\n";
    let sessions = rng.between(3, 10);
    let arrive = match rng.below(3) {
        0 => format!("batch({sessions})"),
        1 => format!("closed({})", sessions.min(6)),
        _ => format!("renewal({})", eighths(rng.between(16, 160))),
    };
    let _ = writeln!(text, "workload {{ arrive {arrive}; }}");
    text += "session {\n";
    let kinds = rng.between(2, 4);
    let _ = writeln!(text, "  set kind = serial - floor(serial / {kinds}) * {kinds};");
    let _ = writeln!(text, "  set i = serial - floor(serial / {engines}) * {engines};");
    for kind in 0..kinds {
        let _ = writeln!(text, "  branch (kind == {kind}) {{");
        match rng.below(4) {
            // The first kind decodes: somebody has to.
            0 if kind > 0 => outsider(&mut text, &mut rng, cap),
            1 if kind > 0 => watcher(&mut text, &mut rng),
            _ => decoder(&mut text, &mut rng, engines, cap, seats),
        }
        text += "    end;\n  } else { }\n";
    }
    text += "}\n";
    let _ = writeln!(text, "gauge in_use = sum k in {engines} (used(kv[k]));");
    let _ = writeln!(text, "gauge fullest = max k in {engines} (used(kv[k]) + queued(kv[k]));");
    let _ = writeln!(text, "gauge there = max k in {engines} (queue(eng[k]));\ngauge waiting = queue(wait);");
    let (horizon, warmup) = (rng.between(100, 400), rng.between(0, 50));
    format!("{text}run {{ horizon {horizon}; warmup {}; }}\n", eighths(8 * warmup + rng.below(8)))
}

fn eighths(count: u64) -> f64 {
    count as f64 / 8.0
}

/// Decodes a long answer, growing or not, perhaps after a prefill and where the least work is.
fn decoder(text: &mut String, rng: &mut Rng, engines: u64, cap: u64, seats: bool) {
    if rng.chance(50) {
        let _ = writeln!(text, "    run wait ({});", eighths(rng.between(1, 200)));
    }
    if rng.chance(40) {
        let _ = writeln!(text, "    choose j in {engines} by (work(eng[j]));\n    set i = j;\n    observe chosen = i;");
    }
    let units = rng.between(1, cap / 2);
    let growing = if rng.chance(70) { " growing kv[i]" } else { "" };
    // A whole hold fits the pool, so that nobody is preempted by itself for ever.
    let tokens = if growing.is_empty() { rng.between(20, 200) } else { rng.between(1, cap / 2 - 32) };
    let seat = if seats { ", seats[i] (1)" } else { "" };
    let fraction = rng.one_of(&["", "", " + 0.5", " + serial / 8"]);
    let header = if rng.chance(15) {
        // What it asks for changes with every step.
        format!("work(eng[{}]) > {} ? {units} : 1", rng.one_of(&["i", "0"]), rng.between(10, 100))
    } else {
        units.to_string()
    };
    let _ = writeln!(text, "    hold kv[i] ({header}){seat} at admission (was = computed) {{");
    text.push_str("      observe was = was;\n");
    if growing.is_empty() && rng.chance(50) {
        // It stands there while others come by, for who is preempted by position.
        let _ = writeln!(text, "      load kv[i] ({});", rng.between(1, units));
    }
    if rng.chance(30) {
        let _ = writeln!(text, "      run eng[i] prefill ({});", rng.between(1, 40));
    }
    let _ = writeln!(text, "      run eng[i] decode ({tokens}{fraction}){growing};");
    let _ = writeln!(text, "    }}{}", rng.one_of(&["", " cache (inf)", " cache (16)"]));
    text.push_str("    observe done = now;\n");
}

/// Holds memory of an engine without being there, and grows while others decode.
fn outsider(text: &mut String, rng: &mut Rng, cap: u64) {
    let _ = writeln!(text, "    run wait ({});", eighths(rng.between(0, 160)));
    let _ = writeln!(text, "    hold kv[i] ({}) {{", rng.between(1, cap / 3));
    let _ = writeln!(text, "      run wait ({});", eighths(rng.between(8, 400)));
    if rng.chance(70) {
        let _ = writeln!(text, "      grow kv[i] ({});", rng.between(1, cap / 3));
        let _ = writeln!(text, "      observe grown = now;\n      run wait ({});", eighths(rng.between(1, 80)));
    }
    text.push_str("    }\n");
    if rng.chance(50) {
        let units = if rng.chance(40) { "max(work(eng[i]), 1)".to_owned() } else { rng.between(1, cap).to_string() };
        let _ = writeln!(text, "    hold room ({units}) {{ run wait ({}); }}", eighths(rng.between(1, 80)));
        text.push_str("    observe left = now;\n");
    }
}

/// Looks now and then.
fn watcher(text: &mut String, rng: &mut Rng) {
    for _ in 0..rng.between(2, 6) {
        // Often as long as a step or some, so that both end together.
        let any = rng.between(1, 120);
        let _ = writeln!(text, "    run wait ({});", eighths(rng.one_of(&[4, 8, 8, 16, any, any])));
        let look = rng.one_of(&[
            "work(eng[i])",
            "queue(eng[i])",
            "busy(eng[i])",
            "used(kv[i])",
            "free(kv[i])",
            "queued(kv[i])",
        ]);
        let _ = writeln!(text, "    observe seen = {look};");
    }
}
