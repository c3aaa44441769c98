//! Four prompts, on one instance in a process of its own and on two instances here: token by token.

use std::collections::BTreeMap;
use std::env;
use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serq_engine::chat::{ChatOptions, Message};
use serq_engine::instances::LocalInstances;
use serq_engine::request::{Event, Figures, Finish};
use serq_engine::served::Served;
use serq_engine::service::{Copied, Ended, Instances, Put, Run, Service, Transfer};
use serq_engine::tokenizer::Specials;

use super::{Sabotage, ask, programs};
use crate::command::up::EngineFlags;
use crate::failure::Failure;
use crate::output;
use crate::serving::Packed;

const PROMPTS: [&str; 4] =
    ["什么是 PD 分离？", "写一句关于秋天的诗。", "Explain KV cache transfer.", "Introduce RDMA in a few words."];
const MAX_TOKENS: usize = 48;
/// As in the second seed's listing.
const BLOCKS: [(&str, &str); 3] = [("bsP", "16"), ("bsD", "32"), ("thr", "1")];

/// What came of it.
#[derive(Serialize)]
pub(super) struct SameText {
    /// All texts are equal, and as many bytes were moved as the tokens have.
    pub(super) equal: bool,
    prompts: Vec<Answer>,
    prompt_tokens: usize,
    kv_bytes_moved: u64,
    kv_bytes_per_token: usize,
    kv_bytes_expected: u64,
    alone_s: f64,
    disaggregated_s: f64,
}

#[derive(Serialize)]
struct Answer {
    prompt: String,
    prompt_tokens: usize,
    tokens: Vec<u32>,
    text: String,
    equal: bool,
    /// From the request to the prompt's KV on the prefill instance, to its being copied, to the
    /// first token, and to the last, in seconds.
    prefill_s: f64,
    transfer_s: f64,
    first_token_s: f64,
    response_s: f64,
}

/// What the other process says.
#[derive(Serialize, Deserialize)]
pub(super) struct Alone {
    tokens: Vec<Vec<u32>>,
    seconds: f64,
}

fn prompts(packed: &Packed) -> Result<Vec<Vec<u32>>, Failure> {
    let chat = |text: &str| {
        let message = Message { role: "user".into(), content: text.into() };
        let chat = packed.chat.as_ref().map(|chat| chat.render(&[message], &ChatOptions::default()));
        let text = chat.transpose().map_err(|error| Failure::Failed(error.to_string()))?;
        Ok(packed.tokenizer.prompt(&text.unwrap_or_default()))
    };
    PROMPTS.iter().map(|prompt| chat(prompt)).collect()
}

/// Tokens of each prompt's answer, with their figures.
fn answers(service: &Service, prompts: &[Vec<u32>], ends: &[u32]) -> Result<Vec<(Vec<u32>, Figures)>, Failure> {
    let asked: Vec<_> = prompts.iter().map(|prompt| ask(service, prompt.clone(), MAX_TOKENS, ends.to_vec())).collect();
    let mut all = Vec::new();
    for one in asked {
        let mut tokens = Vec::new();
        loop {
            match one.events.recv() {
                Ok((_, Event::Token { token, .. })) => tokens.push(token),
                Ok((
                    _,
                    Event::Finished {
                        finish: Finish::Refused(why) | Finish::Unavailable(why) | Finish::Failed(why),
                        ..
                    },
                )) => {
                    return Err(Failure::Failed(why));
                }
                Ok((_, Event::Finished { figures, .. })) => {
                    all.push((tokens, figures));
                    break;
                }
                Err(_) => return Err(Failure::Failed("the instances are gone".into())),
            }
        }
    }
    Ok(all)
}

/// The undisaggregated side: prints its tokens.
pub(super) fn alone(flags: &EngineFlags) -> Result<(), Failure> {
    let packed = flags.open()?.pack().map_err(Failure::Failed)?;
    let prompts = prompts(&packed)?;
    let served = programs::served("colocated_smollm2.sq", &[]);
    let instances = LocalInstances::new(&served, &packed.model, packed.cores, u64::MAX).map_err(Failure::Failed)?;
    let service = Service::start(served, Box::new(instances), None);
    let began = Instant::now();
    let tokens = answers(&service, &prompts, &packed.ends)?.into_iter().map(|(tokens, _)| tokens).collect();
    let alone = Alone { tokens, seconds: began.elapsed().as_secs_f64() };
    output::print(&format!("{}\n", serde_json::to_string(&alone).expect("tokens are plain data")))
}

/// Instances whose reads bring half.
struct Sabotaged(LocalInstances);

impl Instances for Sabotaged {
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended) {
        self.0.start(stage, runs, ended);
    }

    fn copy(&mut self, mut transfer: Transfer<'_>, copied: Copied) -> Option<u64> {
        transfer.tokens.start += transfer.tokens.len() / 2;
        self.0.copy(transfer, copied)
    }

    fn put(&mut self, put: Put) {
        self.0.put(put);
    }
}

pub(super) fn show(packed: &Packed, alone: &Alone, sabotage: Option<Sabotage>) -> Result<SameText, Failure> {
    let prompts = prompts(packed)?;
    let served: Served = programs::served("pd_smollm2.sq", &BLOCKS);
    let instances = LocalInstances::new(&served, &packed.model, packed.cores, u64::MAX).map_err(Failure::Failed)?;
    let instances: Box<dyn Instances> = match sabotage {
        None => Box::new(instances),
        Some(Sabotage::Copy) => Box::new(Sabotaged(instances)),
    };
    let service = Service::start(served, instances, None);
    let began = Instant::now();
    let found = answers(&service, &prompts, &packed.ends)?;
    let disaggregated_s = began.elapsed().as_secs_f64();
    let kv_bytes_per_token = packed.model.kv_layout(1).block_bytes();
    let kv_bytes_moved = found.iter().map(|(_, figures)| figures.kv_bytes_moved).sum();
    let prompt_tokens: usize = prompts.iter().map(Vec::len).sum();
    let kv_bytes_expected = (prompt_tokens * kv_bytes_per_token) as u64;
    let answers: Vec<Answer> = found
        .into_iter()
        .zip(&alone.tokens)
        .zip(PROMPTS.iter().zip(&prompts))
        .map(|(((tokens, figures), expected), (prompt, ids))| {
            let seen: &BTreeMap<String, f64> = &figures.observed;
            let seen = |name: &str| seen.get(name).copied().unwrap_or(f64::NAN);
            Answer {
                prompt: (*prompt).to_owned(),
                prompt_tokens: ids.len(),
                equal: tokens == *expected,
                text: packed.tokenizer.decode(&tokens, Specials::Hidden),
                tokens,
                prefill_s: seen("prefill"),
                transfer_s: seen("transfer"),
                first_token_s: seen("ttft"),
                response_s: seen("response"),
            }
        })
        .collect();
    let equal = answers.iter().all(|answer| answer.equal) && kv_bytes_moved == kv_bytes_expected;
    Ok(SameText {
        equal,
        prompts: answers,
        prompt_tokens,
        kv_bytes_moved,
        kv_bytes_per_token,
        kv_bytes_expected,
        alone_s: alone.seconds,
        disaggregated_s,
    })
}

pub(super) fn other_process(flags: &EngineFlags) -> Result<Alone, Failure> {
    let program = env::current_exe().map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    let output = Command::new(program)
        .args(["demo", "--alone"])
        .args(flags.arguments())
        .output()
        .map_err(|error| Failure::Failed(format!("cannot start the other process: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("error: ").to_owned();
        return Err(Failure::Failed(said));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::Failed(format!("the other process did not say tokens: {error}")))
}

impl SameText {
    pub(super) fn text(&self) -> String {
        let mut text = String::from(
            "One instance in a process of its own; a prefiller with blocks of 16 and a decoder with blocks of 32 here\n\n",
        );
        for answer in &self.prompts {
            let said: String = answer.text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(60).collect();
            let equal = if answer.equal { "the same" } else { "DIFFERENT" };
            text += &format!("  {}\n    {said}…\n", answer.prompt);
            text += &format!(
                "    {} tokens, {equal}   prefill {:.1} ms │ copied {:.1} ms later │ first token at {:.1} ms │ answer at {:.0} ms\n",
                answer.tokens.len(),
                answer.prefill_s * 1e3,
                answer.transfer_s * 1e3,
                answer.first_token_s * 1e3,
                answer.response_s * 1e3,
            );
        }
        text += &format!(
            "\n  KV moved: {} bytes = {} prompt tokens × {} bytes{}\n",
            self.kv_bytes_moved,
            self.prompt_tokens,
            self.kv_bytes_per_token,
            if self.kv_bytes_moved == self.kv_bytes_expected { "" } else { " — NO" },
        );
        text += &format!(
            "  All four: {:.0} ms alone, {:.0} ms disaggregated\n",
            self.alone_s * 1e3,
            self.disaggregated_s * 1e3
        );
        let equal = self.prompts.iter().filter(|answer| answer.equal).count();
        text += &format!("  {equal} of {} texts are the same, token by token.\n", self.prompts.len());
        text
    }
}
