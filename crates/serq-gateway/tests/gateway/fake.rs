//! A backend without a model: tokens are bytes, and an answer is the prompt again, turned by as
//! many characters as the choice's number. How it goes about it depends on the model's name.
//!
//! | model | |
//! |---|---|
//! | `echo` | answers at once |
//! | `endless` | as `echo`, with a context nothing fills |
//! | `slow` | a token every 5 ms |
//! | `gated` | a token for each permit of [`Fake::permit`] |
//! | `silent` | never says a thing |
//! | `fails` | fails after three tokens |
//! | `breaks` | ends after three tokens without a word |
//! | `babbles` | goes on after a choice's end |
//! | `panics` | can't tokenize |
//! | `full`, `picky`, `away`, `broken` | refuse |

// The example `echo` has no use for what tests look at.
#![allow(dead_code)]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serq_gateway::backend::{
    Backend, Event, Events, FinishReason, Gauge, Logprob, Model, Piece, Prompt, Refusal, Request, TokenLogprobs,
};
use tokio::sync::watch;
use tokio::time::Sleep;

/// The end of text.
pub(crate) const END: u32 = 256;

pub(crate) const MODELS: [&str; 13] = [
    "echo", "endless", "slow", "gated", "silent", "fails", "breaks", "babbles", "panics", "full", "picky", "away",
    "broken",
];

pub(crate) struct Fake {
    /// How many requests are being answered.
    pub(crate) live: watch::Sender<usize>,
    pub(crate) requests: Mutex<Vec<Request>>,
    pub(crate) prompts: Mutex<Vec<Prompt>>,
    pub(crate) not_ready: Mutex<Option<String>>,
    gate: Arc<Mutex<Gate>>,
}

#[derive(Default)]
struct Gate {
    permits: usize,
    waiting: Vec<Waker>,
}

impl Fake {
    pub(crate) fn new() -> Arc<Fake> {
        Arc::new(Fake {
            live: watch::Sender::new(0),
            requests: Mutex::default(),
            prompts: Mutex::default(),
            not_ready: Mutex::default(),
            gate: Arc::default(),
        })
    }

    /// Lets `gated` go on by so many tokens.
    pub(crate) fn permit(&self, tokens: usize) {
        let mut gate = self.gate.lock().unwrap();
        gate.permits += tokens;
        gate.waiting.drain(..).for_each(Waker::wake);
    }

    pub(crate) async fn wait_for_live(&self, count: usize) {
        self.live.subscribe().wait_for(|live| *live == count).await.expect("the sender is ours");
    }

    pub(crate) fn last_request(&self) -> Request {
        self.requests.lock().unwrap().last().expect("a request").clone()
    }
}

impl Backend for Fake {
    type Events = Answers;

    fn models(&self) -> Vec<Model> {
        let model = |name: &str| Model {
            id: name.to_owned(),
            created: 1_700_000_000,
            context_tokens: if name == "endless" { 1 << 30 } else { 4096 },
            vocabulary_tokens: 257,
        };
        MODELS.map(model).to_vec()
    }

    fn ready(&self) -> Result<(), String> {
        self.not_ready.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    fn prepare(&self, model: &str, prompt: Prompt) -> Result<Vec<u32>, Refusal> {
        assert_ne!(model, "panics", "as asked for");
        self.prompts.lock().unwrap().push(prompt.clone());
        let text = match prompt {
            Prompt::Ids(ids) => return Ok(ids),
            Prompt::Text(text) => text,
            Prompt::Chat(messages) => {
                let lines = messages.iter().map(|message| format!("{}: {}", message.role.name(), message.content));
                lines.collect::<Vec<_>>().join("\n")
            }
        };
        Ok(text.bytes().map(u32::from).collect())
    }

    async fn submit(&self, request: Request) -> Result<Answers, Refusal> {
        self.requests.lock().unwrap().push(request.clone());
        match request.model.as_str() {
            "full" => {
                let message = "32 requests wait, and no more may".to_owned();
                return Err(Refusal::Full { retry_after: Duration::from_millis(1500), message });
            }
            "picky" => {
                let message = "`seed` is not to this backend's taste".to_owned();
                return Err(Refusal::Invalid { param: Some("seed".to_owned()), message });
            }
            "away" => return Err(Refusal::Unavailable("no instance answers".to_owned())),
            "broken" => return Err(Refusal::Failed("the weights are gone".to_owned())),
            _ => {}
        }
        self.live.send_modify(|live| *live += 1);
        let choices = (0..request.choices).map(|choice| Choice::new(&request, choice)).collect();
        Ok(Answers {
            choices,
            next: 0,
            told: 0,
            observed: false,
            sleep: None,
            live: self.live.clone(),
            gate: self.gate.clone(),
            request,
        })
    }

    fn gauges(&self) -> Vec<Gauge> {
        vec![Gauge {
            name: "serq_kv_blocks_used".to_owned(),
            help: "KV blocks held by requests.".to_owned(),
            counter: false,
            labels: vec![("instance".to_owned(), "decode/0".to_owned())],
            value: *self.live.borrow() as f64,
        }]
    }
}

/// A request being answered.
pub(crate) struct Answers {
    request: Request,
    choices: Vec<Choice>,
    next: usize,
    told: usize,
    observed: bool,
    sleep: Option<Pin<Box<Sleep>>>,
    live: watch::Sender<usize>,
    gate: Arc<Mutex<Gate>>,
}

struct Choice {
    /// What it says, over and over where the end of text doesn't count.
    tokens: Vec<u32>,
    generated: u32,
    /// Not told yet: part of a character, or perhaps of a stop string.
    held: Vec<u8>,
    /// By its text: its end is to be told.
    ended: bool,
    finished: bool,
}

impl Choice {
    fn new(request: &Request, choice: u32) -> Choice {
        let bytes: Vec<u8> = request.prompt.iter().map(|id| (id % 256) as u8).collect();
        let mut characters: Vec<char> = String::from_utf8_lossy(&bytes).chars().collect();
        let turn = choice as usize % characters.len();
        characters.rotate_left(turn);
        let text: String = characters.into_iter().collect();
        Choice {
            tokens: text.bytes().map(u32::from).chain([END]).collect(),
            generated: 0,
            held: Vec::new(),
            ended: false,
            finished: false,
        }
    }
}

impl Events for Answers {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if !self.observed {
            self.observed = true;
            return Poll::Ready(Some(Event::Observed(vec![("ttft".to_owned(), 0.25), ("remote".to_owned(), 1.0)])));
        }
        match self.request.model.as_str() {
            "fails" if self.told == 3 => return Poll::Ready(Some(Event::Failed("instance 1 went away".to_owned()))),
            "breaks" if self.told == 3 => return Poll::Ready(None),
            "silent" => return Poll::Pending,
            "gated" => {
                let mut gate = self.gate.lock().unwrap();
                if gate.permits == 0 {
                    gate.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
                gate.permits -= 1;
            }
            "slow" => {
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(Duration::from_millis(5))));
                std::task::ready!(sleep.as_mut().poll(context));
                self.sleep = None;
            }
            _ => {}
        }
        Poll::Ready(self.generate())
    }
}

impl Answers {
    /// A token of the next choice that isn't finished, or its end.
    fn generate(&mut self) -> Option<Event> {
        let count = self.choices.len();
        let alive = (0..count).map(|step| (self.next + step) % count).find(|index| !self.choices[*index].finished)?;
        let request = &self.request;
        let choice = &mut self.choices[alive];
        let index = alive as u32;
        let cached_tokens = request.prompt.len() as u32 / 2 + index;
        let reason = match choice {
            Choice { ended: true, .. } => Some(FinishReason::Stop),
            Choice { generated, .. } if *generated == request.max_tokens => Some(FinishReason::Length),
            _ => None,
        };
        if let Some(reason) = reason {
            choice.finished = request.model != "babbles";
            return Some(Event::Finished { choice: index, reason, cached_tokens });
        }
        self.next = alive + 1;
        self.told += 1;
        let token = choice.tokens[choice.generated as usize % choice.tokens.len()];
        choice.generated += 1;
        if token != END {
            choice.held.push(token as u8);
        }
        let may_end = choice.generated >= request.min_tokens;
        let stopped = stop(&request.stop_strings, &choice.held).filter(|_| may_end);
        let last = (token == END && !request.ignore_eos) || request.stop_token_ids.contains(&token);
        choice.ended = stopped.is_some() || (last && may_end);
        let told = match stopped {
            Some(at) => at,
            None if choice.ended || choice.generated == request.max_tokens => choice.held.len(),
            None => choice.held.len() - unsure(&request.stop_strings, &choice.held),
        };
        let text = String::from_utf8_lossy(&choice.held[..told]).into_owned();
        choice.held.drain(..told);
        let logprob = |id: u32, logprob| Logprob { bytes: if id == END { vec![] } else { vec![id as u8] }, logprob };
        let logprobs = request.logprobs.map(|top| TokenLogprobs {
            chosen: logprob(token, -0.5),
            top: (0..top).map(|rank| logprob((token + rank) % 256, -0.5 - rank as f32)).collect(),
        });
        Some(Event::Piece(Piece {
            choice: index,
            text,
            token_ids: vec![token],
            logprobs: logprobs.into_iter().collect(),
        }))
    }
}

/// Where the first stop string begins.
fn stop(strings: &[String], held: &[u8]) -> Option<usize> {
    let find = |stop: &String| held.windows(stop.len()).position(|window| window == stop.as_bytes());
    strings.iter().filter_map(find).min()
}

/// How many bytes at the end may be part of a stop string or of a character.
fn unsure(strings: &[String], held: &[u8]) -> usize {
    let begins = |length: &usize| {
        let tail = &held[held.len() - length..];
        strings.iter().any(|stop| stop.as_bytes().starts_with(tail))
    };
    let stop = (1..=held.len()).rev().find(begins).unwrap_or(0);
    let whole = match std::str::from_utf8(&held[..held.len() - stop]) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    held.len() - whole
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.live.send_modify(|live| *live -= 1);
    }
}
