//! Answers as a person reads them: the answer, the sum it came from, then the table.
//!
//! Every figure stands at the end of its formula, with the numbers in it, so that it can be
//! done again by hand.

use super::catalogue::{Checked, Model};
use super::quantity::{Accelerators, bytes, flop_rate, percent, rate, seconds};
use super::shape::{Kept, Shape};
use super::{ratio, transfer};
use crate::number::{NOTHING, count, exact, significant};
use crate::table::Columns;

/// Columns for the name of a formula.
const NAME: usize = 15;

/// `serq plan transfer`.
pub(crate) fn transfer(
    title: &str,
    source: &str,
    question: &transfer::Question,
    answer: &transfer::Answer,
    width: usize,
) -> String {
    let mut text = paragraph("", "", &headline(title, question, answer), width);
    text.push('\n');
    for (name, formula) in formulas(question, answer) {
        text += &paragraph("  ", &name, &formula, width);
    }
    text.push('\n');
    text += &links(question, answer).draw(width);
    text.push('\n');
    for note in notes(source, question, answer) {
        text += &paragraph("  ", "", &note, width);
    }
    text
}

/// The answer, rounded as one says it.
fn headline(title: &str, question: &transfer::Question, answer: &transfer::Answer) -> String {
    let moved = answer.fan_out.as_ref().map_or(answer.kv_bytes, |fan_out| fan_out.bytes_moved);
    let mut said = format!("{title}, {}: {} of KV", count(question.tokens, "token"), said_bytes(moved));
    if let Some(over) = answer.links.first() {
        let each = if question.ranks.is_some() { " a rank" } else { "" };
        said += &format!(", {} over {}{each}", said_seconds(over.transfer_s), over.link.name);
    }
    if let Some(prefill) = answer.prefill_s {
        said += &format!("; prefill {}", said_seconds(prefill));
    }
    said
}

fn formulas(question: &transfer::Question, answer: &transfer::Answer) -> Vec<(String, String)> {
    let shape = &question.shape;
    let b = significant(question.bytes, 3);
    let mut lines = vec![(
        "KV per token".to_owned(),
        format!("{} × {b} B = {}", a_token(shape, shape.layers_full()), bytes(answer.kv_bytes_a_token, 6)),
    )];
    if shape.window_layers > 0 {
        lines.push((
            "KV of windows".into(),
            format!(
                "min({}, {}) tokens × {} × {b} B = {}",
                whole(answer.tokens_moved),
                whole(shape.window.into()),
                a_token(shape, shape.window_layers),
                bytes(answer.kv_bytes_window, 4)
            ),
        ));
    }
    if question.block > 1 || question.tokens_cached > 0 {
        let block = whole(question.block);
        let cached = question.tokens_cached.min(question.tokens);
        lines.push((
            "tokens moved".into(),
            format!(
                "⌈{} / {block}⌉ × {block} − ⌊{} / {block}⌋ × {block} = {}",
                whole(question.tokens),
                whole(cached),
                whole(answer.tokens_moved)
            ),
        ));
    }
    let windows =
        if shape.window_layers > 0 { format!(" + {}", bytes(answer.kv_bytes_window, 4)) } else { String::new() };
    lines.push((
        "KV of prompt".into(),
        format!(
            "{} × {}{windows} = {}",
            count(answer.tokens_moved, "token"),
            bytes(answer.kv_bytes_a_token, 6),
            bytes(answer.kv_bytes, 4)
        ),
    ));
    if let Some(out) = &answer.fan_out {
        let copies = if out.copies > 1 {
            format!("{} × {} copies = {}, in ", bytes(answer.kv_bytes, 4), out.copies, bytes(out.bytes_moved, 4))
        } else {
            String::new()
        };
        let senders = out.ranks_prefill.min(shape.kv_parts());
        lines.push((
            "fan-out".into(),
            format!(
                "{copies}lcm({senders}, {}) = {} of {}",
                out.ranks_decode,
                count(out.pieces, "piece"),
                bytes(out.bytes_a_piece, 4)
            ),
        ));
    }
    lines.extend(prefill_formulas(question, answer));
    lines
}

fn prefill_formulas(question: &transfer::Question, answer: &transfer::Answer) -> Vec<(String, String)> {
    let (Some(prefill), Some(seconds_all)) = (&question.prefill, answer.prefill_s) else { return Vec::new() };
    let params = question.shape.params_active.unwrap_or(0.0);
    let attention = if prefill.attention { " + attention" } else { "" };
    let speed = speed(&prefill.on, prefill.mfu);
    let mut lines = Vec::new();
    if let (true, Some(attention_s)) = (prefill.attention, answer.attention_s) {
        let flop = question.shape.flop_attention(question.tokens).unwrap_or(0.0);
        lines.push((
            "attention".to_owned(),
            format!("{} TFLOP / {speed} = {}", significant(flop / 1e12, 4), seconds(attention_s, 4)),
        ));
    }
    lines.push((
        "prefill".to_owned(),
        format!(
            "2 × {} parameters × {} / {speed}{attention} = {}",
            billions(params),
            count(question.tokens, "token"),
            seconds(seconds_all, 4)
        ),
    ));
    lines
}

fn links(question: &transfer::Question, answer: &transfer::Answer) -> Columns {
    let heads = ["link", "rate", "transfer", "of prefill", "hidden", "exposed"];
    let mut table = Columns::new(1, heads);
    let some = |value: Option<f64>| value.map_or_else(|| NOTHING.to_owned(), |value| seconds(value, 3));
    for over in &answer.links {
        let each = if question.ranks.is_some() { " a rank" } else { "" };
        table.row(vec![
            format!("{}{each}", over.link.name),
            rate(over.bytes_per_s, 4),
            seconds(over.transfer_s, 3),
            answer.prefill_s.map_or_else(|| NOTHING.to_owned(), |prefill| percent(over.transfer_s / prefill)),
            some(over.hidden_s),
            some(over.exposed_s),
        ]);
    }
    table.without_silent(3)
}

fn notes(source: &str, question: &transfer::Question, answer: &transfer::Answer) -> Vec<String> {
    let mut notes = Vec::new();
    let mut rate_notes = Vec::new();
    if question.ranks.is_some_and(|(prefill, decode)| prefill.min(decode) > 1) {
        rate_notes.push("rate: one such link for each rank of the smaller side".to_owned());
    }
    if question.efficiency < 1.0 {
        rate_notes.push(format!("{} of the line rate", percent(question.efficiency)));
    } else {
        rate_notes.push("at line rate; transfers get 80 to 90 % of it (--efficiency)".to_owned());
    }
    if question.latency_s > 0.0 {
        rate_notes.push(format!("transfer and exposed have {} of latency", seconds(question.latency_s, 3)));
    }
    notes.push(rate_notes.join("; ") + ".");
    let layers = question.shape.layers;
    match (answer.prefill_s, question.prefill.as_ref()) {
        (Some(prefill_s), Some(prefill)) => {
            notes.push(format!(
                "hidden, exposed: layer by layer, exposed = max(0, transfer − prefill) × {}/{layers} + transfer/{layers}.",
                layers - 1
            ));
            match answer.attention_s {
                Some(attention_s) if !prefill.attention => notes.push(format!(
                    "prefill: of the weights; attention adds {}, {} (--attention counts it).",
                    seconds(attention_s, 3),
                    percent(attention_s / prefill_s)
                )),
                None => notes.push("prefill: of the weights; --heads adds what attention takes.".into()),
                Some(_) => {}
            }
        }
        _ => notes.push("--on 8xh100-sxm adds the prefill, and what moving layer by layer hides behind it.".into()),
    }
    notes.push(source.to_owned());
    notes
}

/// `serq plan ratio`.
pub(crate) fn ratio(
    question: &ratio::Question,
    prefill_formula: Option<&str>,
    answers: &[ratio::Answer],
    width: usize,
) -> String {
    let said: Vec<String> =
        answers.iter().map(|answer| format!("{} at {} prompt tokens", answer.ratio, whole(answer.prompt))).collect();
    let mut text = paragraph(
        "",
        "",
        &format!(
            "{} ({} requests/s, {} output tokens)",
            said.join(", "),
            significant(question.rate, 4),
            whole(question.output)
        ),
        width,
    );
    let idle = |need: &ratio::Need| {
        let usable =
            if question.headroom > 0.0 { format!(" × {}", percent(1.0 - question.headroom)) } else { String::new() };
        format!("{usable}) = {} → {:.0}", significant(need.instances_exact, 4), need.instances)
    };
    for answer in answers {
        text.push('\n');
        let missed =
            if question.hit > 0.0 { format!(" × {} not cached", percent(1.0 - question.hit)) } else { String::new() };
        let lines = [
            Some((
                "prefill",
                format!(
                    "{}/s × {} tokens{missed} / ({} tokens/s{}, {} busy",
                    significant(question.rate, 4),
                    whole(answer.prompt),
                    significant(question.prefill_rate, 4),
                    idle(&answer.prefill),
                    percent(answer.prefill_busy)
                ),
            )),
            Some((
                "decode",
                format!(
                    "{}/s × {} tokens / ({} tokens/s{}, {} busy",
                    significant(question.rate, 4),
                    whole(question.output),
                    significant(question.decode_rate, 4),
                    idle(&answer.decode),
                    percent(answer.decode_busy)
                ),
            )),
            question.memory.as_ref().zip(answer.memory.as_ref()).map(|(memory, need)| {
                (
                    "decode memory",
                    format!(
                        "{}/s × {} tokens × {} × ({} + {} / 2) tokens / ({} tokens{}",
                        significant(question.rate, 4),
                        whole(question.output),
                        seconds(memory.tpot_s, 3),
                        whole(answer.prompt),
                        whole(question.output),
                        whole(memory.pool),
                        idle(need)
                    ),
                )
            }),
        ];
        for (name, formula) in lines.into_iter().flatten() {
            text += &paragraph("  ", name, &formula, width);
        }
    }
    text.push('\n');
    if let Some(formula) = prefill_formula {
        text += &paragraph("  ", "prefill rate", formula, width);
    }
    let advice = if question.headroom > 0.0 {
        "Averages. `serq run` on a program shows the queues that bursts make."
    } else {
        "Averages, with no headroom: a burst waits (--headroom 20%). `serq run` on a program shows the queues."
    };
    text + &paragraph("  ", "", advice, width)
}

/// The formula of a prefill instance's rate.
pub(crate) fn prefill_rate(on: &Accelerators, mfu: f64, params: f64, tokens_per_s: f64) -> String {
    format!("{} / (2 × {}) = {} tokens/s", speed(on, mfu), billions(params), significant(tokens_per_s, 4))
}

/// `(8 × 989 TFLOP/s × 50 %)`.
fn speed(on: &Accelerators, mfu: f64) -> String {
    format!("({} × {} × {})", on.count, flop_rate(on.flop_per_s), percent(mfu))
}

/// Where a model's fields are from, in a sentence.
pub(crate) fn source_of(model: &Model) -> String {
    let hub = if model.hub.is_empty() { String::new() } else { format!("{}: ", model.hub) };
    let source = &model.source;
    let from = match model.checked {
        Checked::Seed => format!("{hub}seed (docs/plan.md), {source}"),
        Checked::Repo => format!("{hub}{source}"),
        Checked::Copy => format!("{hub}a public copy of {source}"),
        Checked::No => format!("{hub}{source} (not verified here)"),
    };
    format!("fields: {from}.")
}

/// `2 × 80 layers × 8 KV heads × 128`.
fn a_token(shape: &Shape, layers: u32) -> String {
    match shape.kept {
        Kept::Heads { kv_heads, head_dim } => {
            format!("2 × {layers} layers × {} × {head_dim}", count(kv_heads.into(), "KV head"))
        }
        Kept::Latent { kv_lora_rank, qk_rope_head_dim, .. } => {
            format!("{layers} layers × ({kv_lora_rank} + {qk_rope_head_dim})")
        }
    }
}

/// `70.55e9` as `70.55 B` would be bytes to this page's reader.
fn billions(params: f64) -> String {
    format!("{}e9", exact((params / 1e6).round() / 1e3))
}

fn whole(number: u64) -> String {
    significant(number as f64, 16)
}

/// As one says it: whole milliseconds.
fn said_seconds(value: f64) -> String {
    if (0.001..0.9995).contains(&value) {
        format!("{} ms", significant((value * 1e3).round(), 5))
    } else {
        seconds(value, 3)
    }
}

/// As one says it: two decimals of a gigabyte.
fn said_bytes(value: f64) -> String {
    if (1e8..1e13).contains(&value) { format!("{:.2} GB", value / 1e9) } else { bytes(value, 3) }
}

/// Words within a width, under each other behind a name. A number and its unit stay together.
pub(super) fn paragraph(indent: &str, name: &str, words: &str, width: usize) -> String {
    let name_width = if name.is_empty() { 0 } else { NAME };
    let start = format!("{indent}{name:<name_width$}");
    let hanging = " ".repeat(start.chars().count());
    let (mut text, mut line) = (String::new(), start);
    let mut empty = true;
    for word in words_with_units(words) {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            text += line.trim_end();
            text.push('\n');
            line.clone_from(&hanging);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line += &word;
        empty = false;
    }
    text + line.trim_end() + "\n"
}

fn words_with_units(words: &str) -> Vec<String> {
    const UNITS: [&str; 13] =
        ["%", "B", "kB", "MB", "GB", "TB", "s", "ms", "µs", "tokens", "tokens/s", "TFLOP", "TFLOP/s"];
    let mut glued: Vec<String> = Vec::new();
    for word in words.split(' ') {
        let number = |before: &String| before.ends_with(|last: char| last.is_ascii_digit());
        let plain = word.trim_end_matches([')', ',', ';', '.']);
        // Thousands stand apart: 20 000.
        let thousands = plain.len() == 3 && plain.bytes().all(|byte| byte.is_ascii_digit());
        match glued.last_mut() {
            Some(before) if number(before) && (thousands || UNITS.contains(&plain)) => {
                before.push(' ');
                before.push_str(word);
            }
            _ => glued.push(word.to_owned()),
        }
    }
    glued
}
