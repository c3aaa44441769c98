//! Shaped programs: engines as people write them, with random sizes.
//!
//! | shape | what happens in it |
//! |---|---|
//! | engine | requests wait for a slot and blocks, grow, are preempted, come back, find their prefix |
//! | parked | blocks first, a read, the slot later; a nested victim |
//! | hand-over | prefillers lease, decoders pull over shared links, routes choose, turns |
//! | flows | many flows over a few links |

use super::Writer;

/// Requests on one step stage, as in the cases d25 … d29.
pub(super) fn engine(w: &mut Writer) {
    w.used("shape engine");
    let block = w.one_of(&["1", "2", "4", "4", "0.5"]);
    let cap = w.rng.between(4, 12) * 4;
    let preempt = w.one_of(&["preempt lifo;", "preempt lifo;", "preempt by (-position);", "preempt by (admission);"]);
    let slot_order = w.queue_order();
    let slots = w.rng.between(1, 6);
    w.line("pool mem {");
    w.line(format!("cap {cap};"));
    w.line(format!("block {block};"));
    w.line(preempt);
    let evict = w.evict();
    if !evict.is_empty() {
        w.line(evict);
    }
    if w.rng.chance(30) {
        w.used("admit via");
        w.line("admit via eng;");
    }
    w.line("}");
    w.line("pool slot {");
    w.line(format!("cap {slots};"));
    if !slot_order.is_empty() {
        w.line(slot_order);
    }
    w.used("admit via");
    w.line("admit via eng;");
    w.line("}");
    w.line("stage eng : step {");
    w.step(Some("mem"));
    w.line("};");
    w.line("stage gate : delay;");
    w.line("workload {");
    let sessions = w.rng.between(2, 6);
    w.arrivals(sessions);
    w.line("init {");
    w.line("set x0 = 1 + serial;");
    w.line("set x1 = 4;");
    let prompt = w.amount(2.0, 12.0);
    let other = w.amount(2.0, 12.0);
    let step = w.rng.between(2, 4);
    w.line(format!("set p = serial - floor(serial / {step}) * {step} == 0 ? {prompt} : {other};"));
    let output = w.rng.between(3, 12);
    let fraction = w.one_of(&["0", "0", "0", "0.5", "0.25"]);
    let slope = w.rng.below(2);
    w.line(format!("set o = {output} + {fraction} + serial * {slope};"));
    w.line("}");
    w.line("}");
    let turns = if w.rng.chance(40) { 2 } else { 1 };
    w.line("session {");
    let gap = w.one_of(&["0.125", "0.5", "1", "1.5"]);
    w.line(format!("run gate (0.125 + serial * {gap});"));
    w.line("loop {");
    w.used("loop");
    w.line("turn;");
    let cached = w.rng.chance(60);
    let known = "known = computed < p ? p : computed + 1";
    if cached {
        w.used("engine with cache");
        let whole = if block == "0.5" {
            "cachedin(mem)".to_owned()
        } else {
            format!("min(cachedin(mem), floor((known - 1) / {block}) * {block})")
        };
        let reuse = if w.rng.chance(50) {
            w.used("reuse");
            " reuse (p - 1)"
        } else {
            ""
        };
        let hit = if reuse.is_empty() { "cachedin(mem)".to_owned() } else { whole };
        w.line(format!(
            "hold slot (1), mem (min(known, hit + budget_left(eng))) reserve (known){reuse} at admission ({known}, hit = {hit}) {{"
        ));
        w.line("observe found = cached;");
        w.line("observe was = computed;");
        w.line("run eng prefill (max(known - cached, 0)) growing mem;");
    } else {
        w.line(format!("hold slot (1), mem (min(known, budget_left(eng))) reserve (known) at admission ({known}) {{"));
        w.line("observe was = computed;");
        w.line("run eng prefill (known) growing mem;");
    }
    w.line("observe first = serial * 100 + now;");
    if w.rng.chance(30) {
        w.used("prefill form");
        w.line("decode on eng max(o - 1 - (known - p), 0) growing mem;");
    } else {
        w.line("run eng decode (max(o - 1 - (known - p), 0)) growing mem;");
    }
    w.line(if cached { "} cache (p + o)" } else { "}" });
    w.line("observe last = serial * 100 + now;");
    w.line("set p = p + 2;");
    w.line(format!("branch (turn_no >= {turns}) {{"));
    w.line("end;");
    w.line("}");
    let think = w.amount(0.5, 3.0);
    w.line(format!("run gate ({think});"));
    w.line("}");
    w.line("}");
    w.line("gauge mem_used = used(mem);");
    w.line("gauge waiting = queued(slot);");
    w.line("gauge busy_n = busy(eng);");
    w.run_block("60");
}

/// Blocks first, a read, the slot later, as in the cases d72 and d74.
pub(super) fn parked(w: &mut Writer) {
    w.used("shape parked");
    let cap = w.rng.between(5, 12) * 4;
    let slots = w.rng.between(1, 4);
    let slot_first = w.rng.chance(60);
    let pool_of_slots = |w: &mut Writer| {
        w.line("pool slot {");
        w.line(format!("cap {slots};"));
        w.line("admit via eng;");
        w.line("}");
    };
    if slot_first {
        pool_of_slots(w);
    }
    w.line("pool mem {");
    w.line(format!("cap {cap};"));
    w.line("block 4;");
    let preempt = w.one_of(&["preempt lifo;", "preempt lifo;", "preempt by (position);"]);
    w.line(preempt);
    if w.rng.chance(60) {
        w.line("admit via eng;");
    }
    w.line("}");
    if !slot_first {
        pool_of_slots(w);
    }
    w.line("stage eng : step {");
    w.step(Some("mem"));
    w.line("};");
    let link = w.pick(&[("link delay", "delay"), ("link fifo", "fifo"), ("link fifo", "fifo(2)")]);
    w.line(format!("stage link : {link};"));
    w.line("stage gate : delay;");
    w.line("workload {");
    let sessions = w.rng.between(2, 5);
    w.arrivals(sessions);
    w.line("init {");
    w.line("set moved = 0;");
    let prompt = w.rng.between(2, 10);
    w.line(format!("set p = {prompt} + serial;"));
    let output = w.rng.between(3, 14);
    w.line(format!("set o = {output};"));
    w.line("}");
    w.line("}");
    w.line("session {");
    let gap = w.one_of(&["0.125", "0.5", "1"]);
    w.line(format!("run gate (0.125 + serial * {gap});"));
    w.line("branch (serial == 1) {");
    let direct = w.rng.between(2, 10);
    w.line(format!("hold mem ({direct}), slot (1) {{"));
    w.line(format!("run eng prefill ({direct}) growing mem;"));
    w.line("run eng decode (o) growing mem;");
    w.line("}");
    w.line("}");
    w.line("else {");
    w.used("reserve");
    w.used("reuse");
    w.line(
        "hold mem (known) reserve (known), slot (0) reserve (1) reuse (floor((known - 1) / 4) * 4) at admission (known = computed < p ? p : computed + 1) {",
    );
    w.line("observe parked = now;");
    w.line("observe was = computed;");
    w.line("observe found = cached;");
    w.line("set c = cached;");
    w.line("branch (!moved) {");
    let read = w.one_of(&["0.5", "0.25 + serial * 0.25", "1.5"]);
    w.line(format!("run link ({read});"));
    w.used("load");
    w.line("load mem (max(p - 1 - c, 0));");
    w.line("set moved = 1;");
    w.line("set c = max(p - 1, c);");
    w.line("}");
    w.used("nested hold");
    w.line("hold slot (1) {");
    w.line("observe seated = now;");
    w.line("run eng prefill (max(known - c, 0)) growing mem;");
    w.line("observe first = now;");
    w.line("run eng decode (max(o - (known - p), 0)) growing mem;");
    w.line("observe done = now;");
    w.line("}");
    w.line("} cache (100)");
    w.line("}");
    w.line("end;");
    w.line("}");
    w.line("gauge mem_used = used(mem);");
    w.line("gauge slot_used = used(slot);");
    w.line("gauge wait_mem = queued(mem);");
    w.run_block("60");
}

/// Prefillers, decoders and the links between them, as in the cases d54 … d59.
pub(super) fn hand_over(w: &mut Writer) {
    w.used("shape hand-over");
    let (prefillers, decoders) = (w.rng.between(1, 2), w.rng.between(1, 2));
    let pull = w.rng.chance(65);
    let routed = w.rng.chance(60);
    let local = w.rng.chance(30);
    let (legs, push) = (w.legs.chance(35), pull && w.legs.chance(40));
    w.line("stage think : delay;");
    w.used("queue role prefill");
    w.line(format!("queue P[{prefillers}] : prefill {{"));
    station_pools(w, "P", true);
    if pull {
        w.line("nic ps(8);");
    }
    w.line("prefill (plen) {");
    w.line("hold seats (1), mem (min(plen, hit + budget_left(P))) reserve (plen) at admission (hit = min(cachedin(mem), floor((plen - 1) / 4) * 4)) {");
    w.line("prefill (max(plen - cached, 0)) growing mem;");
    let lease = w.pick(&[("lease inf", "inf"), ("lease inf", "inf"), ("lease finite", "6"), ("lease finite", "2.5")]);
    w.line(format!("}} cache (plen) lease mem ({lease})"));
    w.line("}");
    w.line("}");
    let link = w.rng.chance(50);
    if !pull {
        if link {
            w.used("queue role link, entry");
            w.line(format!("queue L[{prefillers}] : link {{"));
            let serve = w.one_of(&["serve ps(4);", "serve fifo;", "serve delay;"]);
            w.line(serve);
            w.line("transfer (n) {");
            w.line("run (n * 0.125);");
            w.line("}");
            w.line("}");
        } else {
            w.used("queue role link");
            w.line(format!("queue L[{prefillers}] : link {{"));
            let serve =
                w.one_of(&["serve ps(4) latency 0.25;", "serve ps(8);", "serve delay latency 0.5;", "serve fifo;"]);
            w.line(serve);
            w.line("}");
        }
    }
    w.used("queue role decode");
    w.line(format!("queue D[{decoders}] : decode {{"));
    station_pools(w, "D", false);
    if pull {
        w.line("nic ps(8);");
    }
    w.line("decode (plen) {");
    w.line("hold mem (plen), seats (1) {");
    w.line("prefill (plen) growing mem;");
    w.used("mark");
    w.line("mark first;");
    w.line("decode (max(o - 1, 0)) growing mem;");
    w.line("} cache (plen + o)");
    w.line("}");
    w.line("decode (plen) from src {");
    w.line("set moved = 0;");
    w.line("hold mem (known) reserve (known), seats (0) reserve (1) reuse (floor((known - 1) / 4) * 4) at admission (known = computed < plen ? plen : computed + 1) {");
    w.line("set c = cached;");
    w.line("observe was = computed;");
    w.line("observe found = cached;");
    w.line("branch (!moved) {");
    if legs {
        w.line("mark parked;");
        w.line("join;");
        w.line("observe early = now - D.parked;");
    }
    if pull {
        w.used("transfer over pull");
        w.line("transfer (plen - c) from src to mem (max(plen - 1 - c, 0));");
    } else {
        w.used("transfer on");
        w.line("transfer on L[src] (plen - c) from src to mem (max(plen - 1 - c, 0));");
    }
    w.line("mark arrived;");
    w.line("set moved = 1;");
    w.line("set c = max(plen - 1, c);");
    w.line("}");
    w.used("nested hold");
    w.line("hold seats (1) {");
    w.line("prefill (max(known - c, 0)) growing mem;");
    w.line("branch (known == plen) {");
    w.line("mark first;");
    w.line("}");
    w.line("decode (max(o - 1 - (known - plen), 0)) growing mem;");
    w.line("}");
    w.line("} cache (plen + o)");
    w.line("}");
    w.line("}");
    if pull {
        let latency = w.pick(&[("pull latency", " latency 0.5"), ("pull latency", " latency 0.25"), ("pull", "")]);
        let share =
            w.pick(&[("share maxmin", "maxmin"), ("share maxmin", "maxmin"), ("share bottleneck", "bottleneck")]);
        if push {
            w.used("push");
            w.line(format!("P push D{latency} share {share};"));
        } else {
            w.line(format!("D pull P{latency} share {share};"));
        }
    }
    w.used("queue role gateway");
    w.line("queue front : gateway {");
    w.line("route {");
    w.line("set t0 = now;");
    w.line("set plen = ctx + fresh;");
    if routed {
        w.used("choose two keys");
        w.line(format!(
            "choose pi in {prefillers} by (queued(P[pi].seats) + used(P[pi].seats), -cachedin(P[pi].mem));"
        ));
        w.used("choose one key");
        w.line(format!("choose di in {decoders} by (used(D[di].mem));"));
    } else {
        w.line(format!("set pi = serial - floor(serial / {prefillers}) * {prefillers};"));
        w.line(format!("set di = serial - floor(serial / {decoders}) * {decoders};"));
    }
    if local {
        w.used("local decode");
        w.line("branch (plen < 10) {");
        w.line("D[di].decode (plen);");
        w.line("}");
        w.line("else {");
        remote(w, legs);
        w.line("}");
    } else {
        remote(w, legs);
    }
    w.line("observe first_at = serial * 100 + D.first;");
    w.line("observe answer = now - t0;");
    w.line("}");
    w.line("}");
    w.line("workload {");
    let sessions = if pull { w.one_of(&[1, 2, 2, 2, 4]) } else { w.rng.between(2, 5) };
    w.arrivals(sessions);
    w.used("hidden");
    w.line("hidden o;");
    w.line("init {");
    w.line("set ctx = 0;");
    w.line("set pi = 0;");
    w.line("set di = 0;");
    w.line("}");
    w.line("turn {");
    let fresh = w.rng.between(4, 24);
    let output = w.rng.between(2, 20);
    let slope = w.rng.below(3);
    w.line(format!("set fresh = {fresh} + serial * {slope};"));
    w.line(format!("set o = {output};"));
    w.line("}");
    let turns = w.rng.between(1, 3);
    w.used("workload session");
    w.line("session {");
    w.line("turn;");
    w.line("run think (0.125 + serial * 0.25);");
    w.line("loop {");
    w.line("request front;");
    w.line("set ctx = plen + o;");
    w.line(format!("branch (turn_no < {turns}) {{"));
    w.line("run think (2);");
    w.line("turn;");
    w.line("}");
    w.line("else {");
    w.line("end;");
    w.line("}");
    w.line("}");
    w.line("}");
    w.line("}");
    w.line(format!("gauge p_mem = sum k in {prefillers} (used(P[k].mem));"));
    w.line(format!("gauge d_mem = max k in {decoders} (used(D[k].mem));"));
    w.line(format!("gauge d_seats = sum k in {decoders} (used(D[k].seats));"));
    w.line(format!("gauge d_queue = sum k in {decoders} (queue(D[k]));"));
    w.run_block("96");
}

fn remote(w: &mut Writer, legs: bool) {
    w.used("decode from");
    if legs {
        w.line("set t1 = now;");
        w.used("fork");
        w.line("fork {");
        w.line("P[pi].prefill (plen);");
        w.line("observe prefilled = serial * 100 + now;");
        w.line("}");
    } else {
        w.line("P[pi].prefill (plen);");
        w.line("set t1 = now;");
    }
    w.line("D[di].decode (plen) from P[pi];");
    w.line("observe read_at = serial * 100 + D.arrived;");
    w.line("observe lease_len = D.arrived - t1;");
}

fn station_pools(w: &mut Writer, name: &str, prefiller: bool) {
    w.line("pool seats {");
    let seats = w.rng.between(1, 4);
    w.line(format!("cap {seats};"));
    w.line(format!("admit via {name};"));
    w.line("}");
    w.line("pool mem {");
    let cap = if prefiller { w.rng.between(8, 30) * 4 } else { w.rng.between(7, 26) * 4 };
    w.line(format!("cap {cap};"));
    w.line("block 4;");
    w.line("preempt lifo;");
    if !prefiller && w.rng.chance(75) {
        w.used("admit via");
        w.line(format!("admit via {name};"));
    }
    w.line("}");
    w.line("serve step {");
    let budget = w.rng.between(3, 24);
    w.line(format!("budget {budget};"));
    let cost = w.cost();
    w.line(format!("cost {cost};"));
    w.line("memory mem;");
    let rule = w.serve_rule();
    if !rule.is_empty() {
        w.line(rule);
    }
    w.line("}");
}

/// Flows over a few links, as in the cases d50 … d52.
pub(super) fn flows(w: &mut Writer) {
    w.used("shape flows");
    w.line("stage out[2] : ps(8);");
    w.line("stage in[2] : ps(4);");
    let share = w.pick(&[("share maxmin", "maxmin"), ("share bottleneck", "bottleneck")]);
    w.line(format!("share {share};"));
    w.line("stage gate : delay;");
    let ps = w.one_of(&["ps(present)", "ps(2)", "ps(min(present, 2))"]);
    w.line(format!("stage pipe : {ps};"));
    w.line("pool room {");
    let cap = w.rng.between(2, 6);
    w.line(format!("cap {cap};"));
    let order = w.queue_order();
    if !order.is_empty() {
        w.line(order);
    }
    w.line("}");
    w.line("workload {");
    let sessions = w.one_of(&[2, 2, 3, 4]);
    if sessions > 2 {
        w.used("shares that are no dyadic number");
    }
    w.arrivals(sessions);
    w.sizes();
    w.line("}");
    w.line("session {");
    w.line("run gate (0.125 + serial * 0.5);");
    for _ in 0..w.rng.between(2, 5) {
        let work = w.amount(2.0, 24.0);
        let from = w.one_of(&["0", "1", "serial - floor(serial / 2) * 2"]);
        let to = w.one_of(&["0", "1", "x0 > 4 ? 1 : 0"]);
        match w.rng.below(6) {
            0 => {
                w.used("flow alone");
                w.line(format!("run out[{from}] ({work});"));
            }
            1 => {
                w.used("run");
                w.line(format!("run pipe ({work});"));
            }
            2 => {
                w.used("hold");
                w.line("hold room (1 + serial * 0.5) {");
                w.used("flow");
                w.line(format!("run out[{from}], in[{to}] ({work});"));
                w.line("}");
            }
            _ => {
                w.used("flow");
                w.line(format!("run out[{from}], in[{to}] ({work});"));
            }
        }
        w.line("observe done = serial * 100 + now;");
        w.used("figure work");
        w.line(format!("observe left = work(out[{from}]);"));
    }
    w.line("end;");
    w.line("}");
    w.line("gauge out0 = queue(out[0]);");
    w.line("gauge in_all = sum k in 2 (queue(in[k]));");
    w.run_block("48");
}
