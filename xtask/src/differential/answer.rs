//! What a program did, in one shape for both sides, and where two answers part.

use std::panic::catch_unwind;

use serde_json::{Map, Value, json};
use serq_ir::Program;
use serq_lang::{Settings, compile, load};
use serq_sim::{Options, Outcome, Sample, Steps, simulate};

/// Whether a number of ours is near enough to theirs; of a NaN it is not.
pub(crate) type Near<'a> = dyn FnMut(f64, f64) -> bool + 'a;

/// What a program did.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// It ran: `samples`, `gauge_points` and `report`, as in `tests/cases`.
    Ran(Value),
    /// It does not compile.
    Refused(String),
    /// Its run ends in an error; ours tells when.
    Stopped(Option<f64>, String),
    /// The side itself broke.
    Panicked(String),
    /// The reference did not answer in time.
    Silent,
}

impl Answer {
    /// One line for a person.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::Ran(_) => "ran".to_owned(),
            Self::Refused(why) => format!("refused: {why}"),
            Self::Stopped(time, why) => format!("stopped{}: {why}", time.map_or(String::new(), |t| format!(" at {t}"))),
            Self::Panicked(why) => format!("panicked: {why}"),
            Self::Silent => "no answer".to_owned(),
        }
    }

    /// A value of the answer by its JSON pointer.
    pub(crate) fn at(&self, pointer: &str) -> Option<&Value> {
        match self {
            Self::Ran(value) => value.pointer(pointer),
            _ => None,
        }
    }
}

/// Links and runs a program here. Negative work stops the run, as it does in 0.1.3.
/// A failed assertion is an answer too, so that its program can be shrunk.
pub(crate) fn ours(text: &str) -> Answer {
    ours_by(text, &Options::default())
}

/// The same where events that became void count as events, as they do in the reference.
pub(crate) fn ours_with_void_events(text: &str) -> Answer {
    ours_by(text, &Options { void_events: true, steps: Steps::Planned, ..Options::default() })
}

fn ours_by(text: &str, options: &Options) -> Answer {
    catch_unwind(|| answer(text, options)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Answer::Panicked(said.unwrap_or_default())
    })
}

fn answer(text: &str, options: &Options) -> Answer {
    let (mut sources, mut diagnostics) = load(None, text, &mut |_| Err("no files here".into()));
    let (program, more) = compile(&mut sources, &Settings::default());
    diagnostics.extend(more);
    let Some(program) = program else {
        let said = diagnostics.iter().map(|d| format!("{}: {}", d.code, d.message)).collect::<Vec<_>>();
        return Answer::Refused(said.join("; "));
    };
    let options = Options { record: true, strict: true, max_events: Some(2_000_000), ..options.clone() };
    match simulate(&program, None, &options, &mut |_, _| true) {
        Ok(outcome) => ran(&program, &outcome),
        Err(error) => Answer::Stopped(Some(error.time), error.message),
    }
}

/// What a run with its samples kept came to.
pub(crate) fn ran(program: &Program, outcome: &Outcome) -> Answer {
    let mut samples = Map::new();
    for (name, taken) in program.observes.iter().zip(&outcome.samples) {
        let column = |of: fn(&Sample) -> f64| taken.iter().map(|s| number(of(s))).collect::<Vec<Value>>();
        let columns = json!({
            "samples": column(|s| s.value),
            "times": column(|s| s.time),
            "sessions": column(|s| s.session as f64),
            "turns": column(|s| s.turn),
        });
        samples.insert(name.clone(), columns);
    }
    let mut points = Map::new();
    for (gauge, held) in program.gauges.iter().zip(&outcome.gauge_points) {
        let held: Vec<Value> = held.iter().map(|(time, value)| json!([number(*time), number(*value)])).collect();
        points.insert(gauge.name.clone(), held.into());
    }
    let report = serde_json::to_value(&outcome.report).expect("a report is JSON");
    Answer::Ran(json!({ "samples": samples, "gauge_points": points, "report": report }))
}

/// JSON has no infinity and no NaN: they are words, as in `tools/reference.py`.
fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else if value.is_nan() {
        json!("nan")
    } else {
        json!(if value > 0.0 { "inf" } else { "-inf" })
    }
}

/// Where our answer is not theirs within 1e-9 of max(1, |x|), and which units ours leaves behind.
pub(crate) fn compare(ours: &Answer, theirs: &Answer, differences: &mut Vec<String>) {
    compare_by(&mut |a, b| (a - b).abs() <= 1e-9 * b.abs().max(1.0), ours, theirs, differences);
}

/// Where our answer is not theirs, by what is near enough, and which units ours leaves behind.
pub(crate) fn compare_by(near: &mut Near<'_>, ours: &Answer, theirs: &Answer, differences: &mut Vec<String>) {
    if let Some(rows) = ours.at("/report/pools").and_then(Value::as_array) {
        for row in rows {
            if row["left"].as_f64() != Some(0.0) {
                differences.push(format!("left: {} units of {}", row["left"], row["name"]));
            }
        }
    }
    match (ours, theirs) {
        (Answer::Ran(ours), Answer::Ran(theirs)) => {
            for part in ["samples", "gauge_points", "report"] {
                values(near, part, &ours[part], &theirs[part], differences);
            }
        }
        (Answer::Refused(_), Answer::Refused(_)) | (Answer::Stopped(..), Answer::Stopped(..)) => {}
        _ => differences.push(format!("ours {}; theirs {}", ours.summary(), theirs.summary())),
    }
}

fn values(near: &mut Near<'_>, at: &str, ours: &Value, theirs: &Value, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
            if !near(a, b) {
                differences.push(format!("{at}: {a}, not {b}"));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            if a.len() != b.len() {
                differences.push(format!("{at}: {} of them, not {}", a.len(), b.len()));
            }
            for (k, (a, b)) in a.iter().zip(b).enumerate() {
                let at = match (b["name"].as_str(), b["index"].as_u64()) {
                    (Some(name), Some(index)) => format!("{at}/{name}[{index}]"),
                    (Some(name), None) => format!("{at}/{name}"),
                    _ => format!("{at}/{k}"),
                };
                values(near, &at, a, b, differences);
            }
        }
        (Value::Object(a), Value::Object(b)) => {
            // Of a mean that is 0 but for rounding, the variance over its square is noise.
            let noise = |row: &Map<String, Value>| {
                row.get("mean").and_then(Value::as_f64).is_some_and(|mean| mean.abs() < 1e-12)
            };
            for (key, theirs) in b {
                if key == "cv2" && (noise(a) || noise(b)) {
                    continue;
                }
                if key == "serq_version" || key == "events" {
                    continue;
                }
                match a.get(key) {
                    Some(ours) => values(near, &format!("{at}/{key}"), ours, theirs, differences),
                    None => differences.push(format!("{at}/{key}: missing")),
                }
            }
        }
        _ if ours == theirs => {}
        _ => differences.push(format!("{at}: {ours}, not {theirs}")),
    }
}
