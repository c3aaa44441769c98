//! Differences that are known and explained (docs/validation.md).
//!
//! A class is a predicate on the program and the two answers, as narrow as it can be told
//! from outside. Where the cause is a corner of the program, the corner is taken away: the
//! difference is of that class when the program without it runs equal on both sides.
//! Where the cause is a rule about events, our run is made by that rule and must be equal.
//! What none of them covers is a failure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::answer::{self, Answer, compare};

/// Runs a text on both sides, if it comes to an end here.
pub(super) type Both<'a> = dyn FnMut(&str, &dyn Fn(&str) -> Answer) -> Result<Option<(Answer, Answer)>, String> + 'a;

const VOID_EVENT: &str =
    "void event: what will not happen any more, and a warm-up's end, is an event: what waits is retried";
const NOTHING_PENDING: &str = "nothing pending: whoever has room by then is served here, waits for ever there";
const SEVERAL: &str = "several of these at once";
const PASSED_OVER: &str = "engine: one passed over before another gave it work";

/// A corner that the reference decides otherwise, and programs without it.
type Corner = fn(&str) -> Option<String>;

const CORNERS: [(&str, Corner); 9] = [
    ("ps: a stage declared above the engine whose admission starts its job", ps_below_engines),
    ("holders: a session with two shares of a pool is no victim", twice_held_never_preempt),
    ("budget_left: an admitted body reads a chunk or budget that changed since", budgets_constant),
    ("cache: a preempted hold keeps a prefix larger than it had", nothing_cached),
    ("growing: a stalled chunk counts twice in the position", growing_never_stalls),
    ("growing: who does not fit holds up the growers behind it", growths_alike),
    (PASSED_OVER, engines_swapped),
    (PASSED_OVER, engines_admit_nobody),
    ("spill: into a pool that is full", spills_have_room),
];

/// The class of a difference, if it has one.
pub(super) fn class(
    text: &str,
    ours: &Answer,
    theirs: &Answer,
    differences: &[String],
    both: &mut Both<'_>,
) -> Result<Option<&'static str>, String> {
    if matches!(ours, Answer::Panicked(_)) || differences.iter().any(|d| d.starts_with("left")) {
        return Ok(None);
    }
    if matches!(theirs, Answer::Panicked(_)) {
        return Ok(Some("the reference panics"));
    }
    if only_holders(text, differences) {
        return Ok(Some("holders: a session with two shares of a pool"));
    }
    if stops_serving(ours, theirs) {
        return Ok(Some(NOTHING_PENDING));
    }
    if let (Answer::Ran(_), Answer::Stopped(_, why)) = (ours, theirs)
        && text.contains("fork {")
        && why.contains("wait for each other")
    {
        return Ok(Some("legs: sessions that wait for each other are an error there, no end here"));
    }
    if text.contains("fork {") && rejects(ours) && rejects(theirs) {
        return Ok(Some("legs: those of a session that is rejected run on"));
    }
    if let (Answer::Stopped(Some(time), why), theirs) = (ours, theirs) {
        if why.contains("does not settle") && matches!(theirs, Answer::Silent) {
            return Ok(Some("an instant without end: told here, gone on with for ever there"));
        }
        // What stops the run comes after what the reference leaves waiting.
        if let Some((ours, theirs)) = before(text, *time).map_or(Ok(None), |text| both(&text, &answer::ours))?
            && stops_serving(&ours, &theirs)
        {
            return Ok(Some(NOTHING_PENDING));
        }
    }
    if equal_but_known(text, &answer::ours_with_void_events(text), theirs) {
        return Ok(Some(VOID_EVENT));
    }
    let mut several = Vec::new();
    let mut changed = text.to_owned();
    let mut corners = 0;
    for (class, without) in CORNERS {
        if let Some(alone) = without(text) {
            if agree(text, &alone, &answer::ours, both)? {
                return Ok(Some(class));
            }
            several.push(alone);
        }
        if let Some(without) = without(&changed) {
            changed = without;
            corners += 1;
        }
    }
    if corners > 1 && agree(text, &changed, &answer::ours, both)? {
        return Ok(Some(SEVERAL));
    }
    // One of them, or all, and void events. A stage that is moved may make thirds of dyadic
    // numbers, and what ends together then comes in either order.
    if ps_below_engines(text).is_some() {
        several.push(without_sharing(&changed));
    }
    several.push(changed);
    for without in several {
        if agree(text, &without, &answer::ours_with_void_events, both)? {
            return Ok(Some(SEVERAL));
        }
    }
    Ok(rounded(text, theirs).then_some("rounding: shares that are no dyadic number"))
}

/// Whether somebody asked a pool for more than it can ever have.
fn rejects(answer: &Answer) -> bool {
    let pools = answer.at("/report/pools").and_then(Value::as_array);
    pools.is_some_and(|pools| pools.iter().any(|pool| pool["rejected"].as_u64().is_some_and(|count| count > 0)))
}

/// Whether both sides agree on a program without a corner of `whole`, ours run in a way. Where
/// both stop, they do it at one time and agree on what comes before; and by then they do not
/// on `whole`.
fn agree(whole: &str, without: &str, ours: &dyn Fn(&str) -> Answer, both: &mut Both<'_>) -> Result<bool, String> {
    let Some((own, other)) = both(without, ours)? else { return Ok(false) };
    let (Answer::Stopped(Some(time), _), Answer::Stopped(..)) = (&own, &other) else {
        return Ok(equal_but_known(without, &own, &other));
    };
    let time = *time;
    let mut run =
        |text: Option<String>, ours: &dyn Fn(&str) -> Answer| -> Result<Option<(String, Answer, Answer)>, String> {
            let Some(text) = text else { return Ok(None) };
            Ok(both(&text, ours)?.map(|(own, other)| (text, own, other)))
        };
    let at_once = run(until(without, time), ours)?
        .is_some_and(|(_, own, other)| matches!((own, other), (Answer::Stopped(..), Answer::Stopped(..))));
    let agreed =
        run(before(without, time), ours)?.is_some_and(|(text, own, other)| equal_but_known(&text, &own, &other));
    let differed = run(until(whole, time), &answer::ours)?.is_some_and(|(text, own, other)| {
        let mut differences = Vec::new();
        compare(&own, &other, &mut differences);
        !only_holders(&text, &differences)
    });
    Ok(at_once && agreed && differed)
}

/// Whether two runs are equal, `mean_holders` and what the reference leaves waiting with
/// nothing pending apart.
fn equal_but_known(text: &str, ours: &Answer, theirs: &Answer) -> bool {
    let mut differences = Vec::new();
    compare(ours, theirs, &mut differences);
    matches!((ours, theirs), (Answer::Ran(_), Answer::Ran(_)))
        && (only_holders(text, &differences) || stops_serving(ours, theirs))
}

/// The program with its horizon just before a time, if there is a before.
pub(super) fn before(text: &str, time: f64) -> Option<String> {
    if time > 0.0 { with_horizon(text, time - rounding(time)) } else { None }
}

/// The program with its horizon just behind a time.
fn until(text: &str, time: f64) -> Option<String> {
    with_horizon(text, time + rounding(time))
}

/// What one time of both sides may be apart.
fn rounding(time: f64) -> f64 {
    1e-9 * time.max(1.0)
}

fn with_horizon(text: &str, time: f64) -> Option<String> {
    let begin = text.find("  horizon ")?;
    let end = begin + text[begin..].find(';')?;
    Some(format!("{}  horizon {time}{}", &text[..begin], &text[end..]))
}

/// Whether work was divided by 3 or the like: the program shares, and some time is no
/// multiple of 2⁻²⁴, or some sample is one of 1/8 but for its last digits. Two things that end
/// together may then end in either order.
fn rounded(text: &str, theirs: &Answer) -> bool {
    let odd = |time: &Value| time.as_f64().is_some_and(|t| (t * 16_777_216.0).fract() != 0.0);
    let off = |eighths: f64| eighths != eighths.round() && (eighths - eighths.round()).abs() < 1e-9;
    let columns = || theirs.at("/samples").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    let mut samples = columns().filter_map(|c| c["samples"].as_array()).flatten().filter_map(Value::as_f64);
    let points = theirs.at("/gauge_points").and_then(Value::as_object).into_iter().flat_map(|all| all.values());
    let mut times = columns().filter_map(|c| c["times"].as_array()).flatten().collect::<Vec<_>>();
    times.extend(points.filter_map(Value::as_array).flatten().map(|point| &point[0]));
    text.contains("ps(") && (times.into_iter().any(odd) || samples.any(|sample| off(8.0 * sample)))
}

/// The program with its plain `ps` stages below the engines, or (a link's) no `ps`. 0.1.3 makes one pass over the
/// stages; what an admission starts on a `ps` stage above is not scheduled until the next
/// event, for ever if there is none.
fn ps_below_engines(text: &str) -> Option<String> {
    if !text.contains("admit via ") {
        return None;
    }
    let mut kept = Vec::new();
    let mut moved = Vec::new();
    let shares = text.lines().any(|line| line.starts_with("share ") || line.contains(" share "));
    let (mut above, mut engine_below) = (false, false);
    for line in text.lines() {
        // Where flows are shared, the stages of flows are not of this kind.
        let plain = !shares || (!line.starts_with("stage wire") && !line.starts_with("stage port"));
        if line.starts_with("stage ") && line.contains(" : ps(") && plain {
            moved.push(line);
            above = true;
        } else if line.trim().starts_with("serve ps(") {
            // A link queue's stage stands above its readers; it becomes another kind.
            kept.push("  serve delay;");
            above = true;
        } else {
            engine_below |= above && (line.contains(" : step {") || line.trim() == "serve step {");
            if line == "workload {" {
                kept.append(&mut moved);
            }
            kept.push(line);
        }
    }
    engine_below.then(|| kept.join("\n") + "\n")
}

/// The program where nobody shares: `ps` stages, but those of flows, give everyone what one would have.
fn without_sharing(text: &str) -> String {
    let shares = |line: &str| line.starts_with("stage s") && line.contains(" : ps(");
    let lines = text.lines().map(|line| match line.split_once(" : ps(") {
        Some((stage, _)) if shares(line) => format!("{stage} : delay;\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// The program with its two engines in the other order. In 0.1.3's one pass an idle engine
/// gets nothing more from the admissions of one declared below it until the next event.
fn engines_swapped(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let begin = lines.iter().position(|line| line.starts_with("stage eng : step {"))?;
    let middle = lines.iter().position(|line| line.starts_with("stage eng2 : step {"))?;
    let end = middle + lines[middle..].iter().position(|line| *line == "};")? + 1;
    let order = [&lines[..begin], &lines[middle..end], &lines[begin..middle], &lines[end..]];
    Some(order.concat().join("\n") + "\n")
}

/// The program with several engines, which may feed each other, and all pools served at
/// every settle.
fn engines_admit_nobody(text: &str) -> Option<String> {
    let engines = text.lines().filter(|line| line.starts_with("stage eng") && line.ends_with(" : step {"));
    if engines.clone().count() < 2 && !engines.clone().any(|line| line.contains('[')) {
        return None;
    }
    let kept: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with("admit via ")).collect();
    (kept.len() < text.lines().count()).then(|| kept.join("\n") + "\n")
}

/// The program that reads `budget_left`, with a constant budget and chunk. In a body that
/// an engine admitted, 0.1.3 evaluates both anew, with who is resident by then.
fn budgets_constant(text: &str) -> Option<String> {
    let changed = text
        .replace("chunk decoders > 0 ? 2 : 4;", "chunk 4;")
        .replace("budget 4 + residents * 2 - decoders;", "budget 12;");
    (text.contains("budget_left(") && changed != text).then_some(changed)
}

/// The program, where something preempts, with nothing cached. In 0.1.3 a hold preempted
/// before it ran keeps its consumed prefix even when that is more than it was allocated,
/// and the pool stands above its cap.
fn nothing_cached(text: &str) -> Option<String> {
    let preempts = text.lines().any(|line| {
        let line = line.trim();
        line.starts_with("preempt lifo") || line.starts_with("preempt by")
    });
    let lines = text.lines().map(|line| match line.split_once("} cache (") {
        Some((before, after)) => {
            let lease = after.split_once(" lease ").map_or(String::new(), |(_, lease)| format!(" lease {lease}"));
            format!("{before}}} cache (0){lease}\n")
        }
        None => format!("{line}\n"),
    });
    let changed: String = lines.collect();
    (preempts && changed != text).then_some(changed)
}

/// The program with room for every growth of a run that may wait: there 0.1.3 counts the
/// chunk that waited twice in the run's position. It waits in a pool of `preempt none`; or on an
/// engine whose memory is not the pool, where nobody may be a victim.
fn growing_never_stalls(text: &str) -> Option<String> {
    let index = |member: &str| member.split_once('[').map(|(_, index)| index.split(']').next().map(str::to_owned));
    let memories = memories(text);
    let (mut grown, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    for (run, pool) in text.lines().filter_map(|line| line.trim().strip_prefix("run ")?.split_once(" growing ")) {
        let stage = run.split(' ').next().unwrap_or(run);
        let (Some(engine), Some(grows)) = (name(stage), name(pool)) else { continue };
        let others = memories.iter().any(|(other, memory)| *memory == grows && *other != engine);
        if others || index(stage) != index(pool) {
            elsewhere.insert(grows.clone());
        }
        grown.insert(grows);
    }
    with_room(text, |pool, options| {
        let preempts = options.iter().any(|o| o.starts_with("preempt lifo") || o.starts_with("preempt by"));
        grown.contains(pool) && (!preempts || elsewhere.contains(pool))
    })
}

/// The engines that have a memory, and which pool it is.
fn memories(text: &str) -> Vec<(String, String)> {
    let mut engine = None;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(stage) = line.strip_prefix("stage ") {
            engine = name(stage);
        }
        if let (Some(engine), Some(memory)) = (&engine, line.strip_prefix("memory ").and_then(name)) {
            found.push((engine.clone(), memory));
        }
    }
    found
}

/// The program with growths of one size: whoever waits longest fits first. In 0.1.3 a grower
/// that does not fit holds up those behind it, here they are tried (docs/semantics.md, 7).
fn growths_alike(text: &str) -> Option<String> {
    let alike = |line: &str| {
        let pool = line.trim().strip_prefix("grow ")?.split_once(" (")?.0;
        Some(format!("grow {pool} (2);\n"))
    };
    let changed: String = text.lines().map(|line| alike(line).unwrap_or_else(|| format!("{line}\n"))).collect();
    (text.lines().filter(|line| alike(line).is_some()).count() > 1).then_some(changed)
}

/// The program with room for everything that is spilled: 0.1.3 makes room first and then
/// puts the piece in, whether it fits or not.
fn spills_have_room(text: &str) -> Option<String> {
    let targets: BTreeSet<String> =
        text.lines().filter_map(|line| line.trim().strip_prefix("spill ")).filter_map(name).collect();
    with_room(text, |pool, _| targets.contains(pool))
}

/// The program without preemption in pools that a session may have twice: there 0.1.3 has
/// forgotten who holds what, and passes over victims.
fn twice_held_never_preempt(text: &str) -> Option<String> {
    let twice = held_twice(text);
    let mut inside = false;
    let mut changed = false;
    let mut out = String::new();
    for line in text.lines() {
        if let Some(pool) = line.trim().strip_prefix("pool ").and_then(name) {
            inside = twice.contains(&pool);
        }
        let preempts = line.trim().starts_with("preempt lifo") || line.trim().starts_with("preempt by");
        changed |= inside && preempts;
        out += if inside && preempts { "preempt none;" } else { line };
        out.push('\n');
        inside &= line.trim() != "}";
    }
    changed.then_some(out)
}

/// The program with `cap inf` in the pools chosen by name and options.
fn with_room(text: &str, chosen: impl Fn(&str, &[&str]) -> bool) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out: Vec<String> = Vec::new();
    let mut changed = false;
    let mut at = 0;
    while at < lines.len() {
        out.push(lines[at].to_owned());
        if let Some(pool) = lines[at].trim().strip_prefix("pool ").and_then(name) {
            let end = at + lines[at..].iter().position(|line| line.trim() == "}").unwrap_or(0);
            let options: Vec<&str> = lines[at + 1..end.max(at + 1)].iter().map(|line| line.trim()).collect();
            if chosen(&pool, &options) {
                for option in &options {
                    let finite = option.starts_with("cap ") && *option != "cap inf;";
                    changed |= finite;
                    out.push((if finite { "cap inf;" } else { option }).to_owned());
                }
                at += options.len();
            }
        }
        at += 1;
    }
    changed.then(|| out.join("\n") + "\n")
}

/// The reference does what we do up to some instant and nothing afterwards, with sessions
/// alive: what an admitted body waits for in a pool served at settles is tried at the next
/// event, and none comes. Its samples and change points are then the beginning of ours, but
/// for the last change point, which holds what that instant left.
fn stops_serving(ours: &Answer, theirs: &Answer) -> bool {
    let number = |answer: &Answer, at: &str| answer.at(at).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let alive = |answer: &Answer| number(answer, "/report/arrivals") - number(answer, "/report/ended");
    if alive(theirs).is_nan() || alive(theirs) <= 0.0 {
        return false;
    }
    // We did all it did, and more.
    let more = |part: &str, figure: &str| {
        let rows = |answer: &Answer| answer.at(part).and_then(Value::as_array).cloned().unwrap_or_default();
        let count = |row: &Value| row[figure].as_f64().unwrap_or(0.0);
        let pairs: Vec<(f64, f64)> = rows(ours).iter().zip(&rows(theirs)).map(|(a, b)| (count(a), count(b))).collect();
        pairs.iter().all(|(a, b)| a >= b).then(|| pairs.iter().any(|(a, b)| a > b))
    };
    if more("/report/pools", "admissions") != Some(true) || more("/report/stages", "completed").is_none() {
        return false;
    }
    let begins = |ours: &Value, theirs: &Value, slack: usize| {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (ours, theirs) = (list(ours), list(theirs));
        let same = theirs.len().saturating_sub(slack);
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let equal = |a: &Value, b: &Value| match (a, b) {
            (Value::Array(a), Value::Array(b)) => a.iter().zip(b).all(|(a, b)| number(a) == number(b)),
            _ => number(a) == number(b) || a == b,
        };
        ours.len() >= same && ours.iter().zip(&theirs[..same]).all(|(a, b)| equal(a, b))
    };
    let all = |part: &str, begins: &dyn Fn(&Value, &Value) -> bool| {
        let (Some(ours), Some(theirs)) = (ours.at(part), theirs.at(part)) else { return false };
        theirs.as_object().is_some_and(|rows| rows.iter().all(|(name, row)| begins(&ours[name], row)))
    };
    let columns = ["samples", "times", "sessions", "turns"];
    all("/samples", &|a, b| columns.iter().all(|column| begins(&a[column], &b[column], 0)))
        && all("/gauge_points", &|a, b| begins(a, b, 1))
}

/// Nothing but `mean_holders` differs, of pools a session may have twice: ending a hold,
/// 0.1.3 forgets all of the session's holders there.
fn only_holders(text: &str, differences: &[String]) -> bool {
    let twice = held_twice(text);
    differences.iter().all(|difference| {
        let row = difference.strip_prefix("report/pools/").and_then(|d| d.split_once("/mean_holders: "));
        row.is_some_and(|(row, _)| {
            let name = row.split('[').next().unwrap_or(row);
            twice.iter().any(|t| *t == name.rsplit('.').next().unwrap_or(name))
        })
    })
}

/// Pools held inside a hold of themselves, or leased: by the name's last part.
fn held_twice(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<Vec<String>> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((_, leased)) = line.split_once(" lease ") {
            found.extend(name(leased));
        }
        if line.starts_with('}') {
            open.pop();
        }
        if line.ends_with('{') {
            let pools = line.strip_prefix("hold ").map(grabbed).unwrap_or_default();
            found.extend(pools.iter().filter(|pool| open.iter().flatten().any(|o| o == *pool)).cloned());
            open.push(pools);
        }
    }
    found
}

/// The pools of a hold's header, as it is generated.
fn grabbed(header: &str) -> Vec<String> {
    let mut depth = 0;
    let mut starts = vec![header];
    for (at, c) in header.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => starts.push(&header[at + 1..]),
            _ => {}
        }
    }
    starts.into_iter().filter_map(name).collect()
}

fn name(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}
