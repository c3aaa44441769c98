//! A program's sessions as real clients of a server.
//!
//! The program is compiled as its clients see it (`serq_lang::played`); [`known`] says which of its
//! observations they make, [`player`] drives the kernel, [`prompt`] writes what is asked, [`client`] asks,
//! [`sse`] reads, and [`measured`] keeps what comes of it.

mod client;
mod known;
mod measured;
mod player;
mod prompt;
mod sse;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use serq_ir::{Expr, Program, StmtKind, each_stmt};
use serq_kernel::{Code, Fault};
use serq_lang::played::{ANSWER, FIRST_TOKEN};
use serq_sim::clients::Clients;
use serq_sim::report::{self, Note, NoteKind, Observe, Report};
use serq_sim::trace::TraceFile;

use client::Client;
pub(crate) use client::Endpoint;
pub(crate) use measured::Failures;
use player::Player;
use prompt::{Alphabet, Writer};

/// Ids asked for where nobody says otherwise. Special tokens are below it or far above it in the
/// vocabularies of GPT-2, Llama 2 and 3, Mistral, Qwen, Gemma and SmolLM2.
const IDS: Range<u32> = 1000..30_000;

/// Words that most vocabularies have with a space before them.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he",
    "this", "are", "or", "his", "from", "at", "which", "but", "have", "an", "had", "they", "you", "were", "their",
];

/// A program made ready to be played.
pub(crate) struct Played {
    program: Program,
    code: Code,
    /// Members of stages.
    first_token: u32,
    answer: u32,
    /// The attribute that is an answer's length.
    length: u32,
    /// Of each observation, whether the clients make it.
    known: Vec<bool>,
}

impl Played {
    /// A program that was compiled to be played.
    ///
    /// # Errors
    ///
    /// One sentence: what of it no client does.
    pub(crate) fn new(program: Program) -> Result<Self, String> {
        let (mut length, mut computes) = (None, false);
        each_stmt(&program.session, &mut |stmt| {
            let StmtKind::Run(run) = &stmt.kind else { return };
            computes |= run.mode.is_some();
            if run.stages.iter().any(|stage| program.stages[stage.stage as usize].name == ANSWER) {
                run.work.each(&mut |part| {
                    if let Expr::Attribute(attribute) = part {
                        length = Some(*attribute);
                    }
                });
            }
        });
        let Some(length) = length else {
            return Err("no session calls a `decode` entry, and that is what a client's request is".into());
        };
        if computes {
            return Err("a session itself runs on an engine, outside of entries: no client does".into());
        }
        let code = Code::new(&program);
        let member = |wanted: &str| {
            let at = code.stage_members().position(|(name, ..)| name == wanted);
            at.expect("it was compiled to be played") as u32
        };
        let (first_token, answer) = (member(FIRST_TOKEN), member(ANSWER));
        let known = known::known(&program);
        Ok(Self { first_token, answer, length, known, code, program })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }
}

/// How a server is asked.
pub(crate) struct Manner {
    pub(crate) endpoint: Endpoint,
    pub(crate) url: String,
    pub(crate) model: Option<String>,
    pub(crate) by_text: bool,
    pub(crate) ids: Option<Range<u32>>,
    /// Seconds a request may take.
    pub(crate) patience: f64,
}

/// What was played, with what only clients know.
#[derive(Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    pub(crate) report: Report,
    pub(crate) clients: ClientSide,
}

/// A run's requests, as their clients saw them.
#[derive(Serialize)]
pub(crate) struct ClientSide {
    pub(crate) url: String,
    pub(crate) model: String,
    /// `ids` or `text`.
    pub(crate) tokens_by: &'static str,
    /// Whole run.
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// By kind.
    pub(crate) failed: BTreeMap<String, Failures>,
    /// Under way when the run ended.
    pub(crate) cut_off: u64,
    /// Prompts and answers that had another length than was asked for.
    pub(crate) prompts_off: u64,
    pub(crate) answers_off: u64,
    /// Processors' time over the run's; `None` where the system does not tell.
    pub(crate) core_share: Option<f64>,
    /// How much later than their law said clients came.
    pub(crate) late: Observe,
    #[serde(serialize_with = "by_name")]
    pub(crate) measured: Vec<Observe>,
    /// What the server said it observed.
    #[serde(serialize_with = "by_name")]
    pub(crate) server: Vec<Observe>,
}

fn by_name<S: Serializer>(rows: &[Observe], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rows.iter().map(|row| (&row.name, row)))
}

/// Why nothing was played, or not to its end.
pub(crate) enum Stopped {
    /// The server: one sentence.
    Server(String),
    /// The program.
    Fault(Box<Fault>),
}

/// Plays a program until its horizon, or until `watch` says so.
pub(crate) fn play(
    played: &Played,
    trace: Option<&TraceFile>,
    manner: &Manner,
    watch: &mut dyn FnMut(f64, u64) -> bool,
) -> Result<Outcome, Stopped> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Stopped::Server(format!("no clients can be started: {error}")))?;
    let client = Arc::new(Client::new(manner.endpoint.clone(), Duration::from_secs_f64(manner.patience)));
    let (model, vocabulary) = runtime.block_on(model_of(&client, manner)).map_err(Stopped::Server)?;
    let mut notes = Vec::new();
    let alphabet = match manner.by_text {
        true => runtime.block_on(words(&client, &manner.endpoint, &model, &mut notes)).map_err(Stopped::Server)?,
        false => Alphabet::Ids(manner.ids.clone().unwrap_or_else(|| ids_of(vocabulary))),
    };
    let program = &played.program;
    let clients = Clients::new(program, trace).map_err(Stopped::Server)?;
    let skipped = clients.rows_skipped();
    let writer = Writer::new(program.run.seed, alphabet);
    let (wall, before) = (Instant::now(), processor_seconds());
    let mut player = Player::new(played, clients, client, runtime.handle().clone(), writer, model.clone());
    let end = player.play(watch).map_err(Stopped::Fault)?;
    let core_share =
        before.zip(processor_seconds()).map(|(before, after)| (after - before) / wall.elapsed().as_secs_f64());
    let cut_off = player.stop();
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (requests, arrivals) = (player.requests(), player.arrivals());
    let measured = &player.measured;
    if skipped > 0 {
        let text = format!("{skipped} wrong row(s) of the trace were left out (--skip-bad)");
        notes.push(Note { kind: NoteKind::Skipped, text });
    }
    let clients = ClientSide {
        url: manner.url.clone(),
        model,
        tokens_by: if manner.by_text { "text" } else { "ids" },
        requests,
        answered: measured.answered,
        failed: measured.failures.clone(),
        cut_off,
        prompts_off: measured.lengths_off.0,
        answers_off: measured.lengths_off.1,
        core_share,
        late: measured.lateness(),
        measured: measured.own(),
        server: measured.server(),
    };
    let observes = measured.observes(program);
    notes.extend(remarks(played, &observes, &clients, measured.ids_untold));
    let report = Report {
        schema: report::REPORT_SCHEMA,
        serq_version: env!("CARGO_PKG_VERSION"),
        program: program.name.clone(),
        constants: report::Constants::of(program),
        horizon: program.run.horizon.0,
        end,
        warmup: program.run.warmup.0,
        seed: program.run.seed,
        events: requests,
        leaps: 0,
        steps_leapt: 0,
        arrivals,
        ended: measured.ended,
        failed: 0,
        turns: measured.turns,
        mean_live: measured.mean_live(end),
        observes,
        gauges: Vec::new(),
        stages: Vec::new(),
        pools: Vec::new(),
        ttft: None,
        slo: None,
        notes,
    };
    Ok(Outcome { report, clients })
}

/// What a reader should know.
fn remarks(played: &Played, observes: &[Observe], clients: &ClientSide, ids_untold: u64) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut say = |kind: NoteKind, text: String| notes.push(Note { kind, text });
    for (kind, Failures { count, first }) in &clients.failed {
        say(NoteKind::Failed, format!("{count} request(s) failed, {kind}: {first}"));
    }
    if clients.prompts_off > 0 {
        say(
            NoteKind::Clients,
            format!(
                "{} prompt(s) had another length than drawn: the figures of `prompt_tokens` are the server's counts",
                clients.prompts_off
            ),
        );
    }
    if clients.answers_off > 0 {
        say(
            NoteKind::Failed,
            format!(
                "{} answer(s) had another length than asked for: the server ends them by itself, or does not know `ignore_eos`",
                clients.answers_off
            ),
        );
    }
    if ids_untold > 0 && clients.tokens_by == "ids" {
        say(
            NoteKind::Clients,
            format!(
                "the server did not say the tokens of {ids_untold} answer(s) (`return_token_ids`): other ones stand for them in further prompts"
            ),
        );
    }
    let theirs: Vec<&Observe> =
        observes.iter().zip(&played.known).filter(|(_, known)| !**known).map(|(observe, _)| observe).collect();
    let names = |there: bool| -> Vec<&str> {
        theirs.iter().filter(|observe| (observe.count > 0) == there).map(|observe| &observe.name[..]).collect()
    };
    if clients.answered > 0 && !names(true).is_empty() {
        say(NoteKind::Clients, format!("as the server says it: {}", names(true).join(", ")));
    }
    if clients.answered > 0 && !names(false).is_empty() {
        say(NoteKind::Clients, format!("a client can't know, and the server did not say: {}", names(false).join(", ")));
    }
    if clients.late.p99 > 0.01 {
        say(
            NoteKind::Clients,
            format!("clients came up to {:.3} s late (p99): this machine is too slow for this load", clients.late.p99),
        );
    }
    notes
}

/// The model that is asked for, and how many tokens it knows, where the server says so.
async fn model_of(client: &Client, manner: &Manner) -> Result<(String, Option<u32>), String> {
    let url = &manner.url;
    let page = match client.models().await {
        Ok((200, page)) => serde_json::from_slice::<serde_json::Value>(&page).ok(),
        Err(trouble) if trouble.kind == "connect" => {
            return Err(format!("nobody answers at {url}: {}", trouble.message));
        }
        Ok(_) | Err(_) => None,
    };
    let models = page.as_ref().and_then(|page| page["data"].as_array()).map_or(&[][..], |models| &models[..]);
    let id = |model: &serde_json::Value| model["id"].as_str().map(str::to_owned);
    let of = |model: &serde_json::Value| model["vocab_size"].as_u64().and_then(|count| u32::try_from(count).ok());
    match (&manner.model, models) {
        (Some(name), _) => {
            Ok((name.clone(), models.iter().find(|model| id(model).as_ref() == Some(name)).and_then(of)))
        }
        (None, [one]) => {
            id(one).map(|name| (name, of(one))).ok_or_else(|| format!("{url} names no model: give --model"))
        }
        (None, []) => Err(format!("{url} does not say which models it has: give --model")),
        (None, all) => {
            let names: Vec<String> = all.iter().filter_map(id).collect();
            Err(format!("{url} has several models: give --model, one of {}", names.join(", ")))
        }
    }
}

/// Ids to write prompts of. Of a small vocabulary the middle half.
fn ids_of(vocabulary: Option<u32>) -> Range<u32> {
    match vocabulary {
        Some(count) if (4..IDS.end + IDS.start).contains(&count) => count / 4..count - count / 4,
        _ => IDS,
    }
}

/// Words that are one token each, as the server's `/tokenize` says, or as is likely.
async fn words(client: &Client, endpoint: &Endpoint, model: &str, notes: &mut Vec<Note>) -> Result<Alphabet, String> {
    let path = format!("{}/tokenize", endpoint.base.strip_suffix("/v1").unwrap_or(&endpoint.base));
    let count = async |text: String| {
        let body = serde_json::json!({ "model": model, "prompt": text }).to_string().into_bytes();
        let (status, page) = client.fetch("POST", &path, body).await.ok()?;
        let page: serde_json::Value = serde_json::from_slice(&page).ok().filter(|_| status == 200)?;
        page["count"].as_u64()
    };
    let (mut words, mut beside) = (Vec::new(), 0);
    for word in WORDS {
        let word_times = |times: usize| format!(" {word}").repeat(times);
        let (Some(once), Some(nine)) = (count(word_times(1)).await, count(word_times(9)).await) else { break };
        if nine == once + 8 {
            words.push(word.to_owned());
            beside = (once - 1) as usize;
        }
    }
    if words.is_empty() {
        let text = "the server has no `/tokenize`: a word is taken for a token, and lengths are about those drawn";
        notes.push(Note { kind: NoteKind::Clients, text: text.into() });
        words = WORDS.map(str::to_owned).to_vec();
    }
    Ok(Alphabet::Words { words, beside })
}

/// Processor time of this process so far, to a hundredth, where the system tells it.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may have anything in it: fields 14 and 15 of proc(5), in hundredths.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_never_special_ones() {
        assert_eq!(ids_of(None), 1000..30_000);
        assert_eq!(ids_of(Some(151_936)), 1000..30_000);
        assert_eq!(ids_of(Some(512)), 128..384);
        assert_eq!(ids_of(Some(0)), 1000..30_000);
    }
}
