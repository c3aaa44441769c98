//! The gateway's backend: the instances of this process.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use serq_engine::apart::{PeerLook, Peers};
use serq_engine::chat::{ChatOptions, ChatTemplate};
use serq_engine::request::{self, Finish, Voice};
use serq_engine::sampler;
use serq_engine::service::{InstanceLook, Service, Submitted};
use serq_engine::tokenizer::{Decoder, Specials, Tokenizer};
use serq_gateway::backend::{
    Backend, Event, Events, FinishReason, Gauge, Logprob, Model, Piece, Prompt, Refusal, Request, TokenLogprobs,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// More requests than this are not taken on at a time.
const LIVE_MOST: u64 = 10_000;
/// A request that is not refused by then is on its way. Longer than it takes to notice that an instance is silent and
/// to wait for another.
const REFUSED_BY: Duration = Duration::from_secs(30);

/// One model, served by a program's instances.
pub(crate) struct EngineBackend {
    pub(crate) model: Model,
    pub(crate) service: Service,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) chat: Option<ChatTemplate>,
    /// Ids that end an answer.
    pub(crate) ends: Vec<u32>,
    /// Where the instances are, if in processes of their own.
    pub(crate) peers: Option<Peers>,
    pub(crate) live: Arc<AtomicU64>,
}

/// A request's events, with what keeps it going.
pub(crate) struct EngineEvents {
    events: UnboundedReceiver<Told>,
    first: Option<Event>,
    _submitted: Submitted,
    _live: Live,
}

/// What comes of a request.
enum Told {
    Event(Event),
    /// No instance can serve it.
    Refused(String),
    /// Who would serve it is not there.
    Unavailable(String),
}

/// Counts a request for as long as it is here.
struct Live(Arc<AtomicU64>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Says tokens by the model's tokenizer.
struct Speaking {
    tokenizer: Arc<Tokenizer>,
    decoder: Option<Decoder>,
}

impl Voice for Speaking {
    fn say(&mut self, token: u32) -> String {
        self.decoder.as_mut().map_or_else(String::new, |decoder| decoder.push(&self.tokenizer, token))
    }

    fn rest(&mut self) -> String {
        self.decoder.take().map_or_else(String::new, Decoder::finish)
    }
}

impl Events for EngineEvents {
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        match self.first.take() {
            Some(event) => Poll::Ready(Some(event)),
            None => self.events.poll_recv(context).map(|told| {
                told.map(|told| match told {
                    Told::Event(event) => event,
                    Told::Refused(message) => Event::Failed(message),
                    Told::Unavailable(message) => Event::Unavailable(message),
                })
            }),
        }
    }
}

impl Backend for EngineBackend {
    type Events = EngineEvents;

    fn models(&self) -> Vec<Model> {
        vec![self.model.clone()]
    }

    fn ready(&self) -> Result<(), String> {
        match self.service.is_serving() {
            true => Ok(()),
            false => Err("the instances are gone".into()),
        }
    }

    fn healthy(&self) -> Result<(), String> {
        self.ready()?;
        let looks = self.peers.as_ref().map_or_else(Vec::new, Peers::look);
        let queue = |look: &PeerLook| look.instance.split('[').next().unwrap_or_default().to_owned();
        // Of each queue one at least is there.
        let absent = looks.iter().find(|look| {
            let mut alike = looks.iter().filter(|other| queue(other) == queue(look));
            alike.all(|other| other.gone.is_some())
        });
        absent.map_or(Ok(()), |look| Err(look.gone.clone().unwrap_or_default()))
    }

    fn prepare(&self, _: &str, prompt: Prompt) -> Result<Vec<u32>, Refusal> {
        let refuse = |param: &str, message: String| Refusal::Invalid { param: Some(param.into()), message };
        let ids = match prompt {
            Prompt::Text(text) => self.tokenizer.prompt(&text),
            Prompt::Ids(ids) => ids,
            Prompt::Chat(messages) => {
                let Some(chat) = &self.chat else {
                    return Err(refuse(
                        "messages",
                        "the model has no chat template; /v1/completions takes its text".into(),
                    ));
                };
                let messages: Vec<serq_engine::chat::Message> = messages
                    .into_iter()
                    .map(|message| serq_engine::chat::Message {
                        role: message.role.name().to_owned(),
                        content: message.content,
                    })
                    .collect();
                let text = chat
                    .render(&messages, &ChatOptions::default())
                    .map_err(|error| refuse("messages", error.to_string()))?;
                self.tokenizer.prompt(&text)
            }
        };
        match ids.is_empty() {
            true => Err(refuse("prompt", "the prompt has no tokens".into())),
            false => Ok(ids),
        }
    }

    async fn submit(&self, request: Request) -> Result<EngineEvents, Refusal> {
        if self.live.fetch_add(1, Ordering::Relaxed) >= LIVE_MOST {
            self.live.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{LIVE_MOST} requests are here already");
            return Err(Refusal::Full { retry_after: Duration::from_secs(1), message });
        }
        let live = Live(Arc::clone(&self.live));
        let (tell, events) = mpsc::unbounded_channel();
        let tokenizer = Arc::clone(&self.tokenizer);
        let sink = move |event| {
            for event in events_of(&tokenizer, event) {
                // Who does not listen any more has dropped the request too.
                let _ = tell.send(event);
            }
        };
        let submitted = self.service.submit(self.request(request), Box::new(sink));
        let mut events = EngineEvents { events, first: None, _submitted: submitted, _live: live };
        // A request no instance can hold is known at once.
        if let Ok(first) = tokio::time::timeout(REFUSED_BY, events.events.recv()).await {
            match first {
                Some(Told::Refused(message)) => return Err(Refusal::Invalid { param: None, message }),
                Some(Told::Unavailable(message)) => return Err(Refusal::Unavailable(message)),
                Some(Told::Event(Event::Failed(message))) => return Err(Refusal::Failed(message)),
                Some(Told::Event(first)) => events.first = Some(first),
                None => return Err(Refusal::Unavailable("the server is going down".into())),
            }
        }
        Ok(events)
    }

    fn gauges(&self) -> Vec<Gauge> {
        let Some(look) = self.service.look() else { return Vec::new() };
        let mut gauges = Vec::new();
        let mut add = |name: &str, help: &str, counter: bool, label: &str, of: &str, value: f64| {
            gauges.push(Gauge {
                name: name.into(),
                help: help.into(),
                counter,
                labels: vec![(label.into(), of.into())],
                value,
            });
        };
        for pool in &look.pools {
            add("serq_pool_cap", "Units the pool has.", false, "pool", &pool.name, pool.cap);
            add("serq_pool_used", "Units allocated.", false, "pool", &pool.name, pool.used);
            add("serq_pool_cached", "Units cached.", false, "pool", &pool.name, pool.cached);
            add("serq_pool_left", "Units owned by nobody alive: 0.", false, "pool", &pool.name, pool.left);
            add("serq_pool_waiting", "Requests in its queue.", false, "pool", &pool.name, pool.waiting.into());
            add("serq_pool_holders", "Holds and leases.", false, "pool", &pool.name, pool.holders.into());
            let counts = &pool.counts;
            let help = "Requests that lost their blocks to others.";
            add("serq_pool_preemptions_total", help, true, "pool", &pool.name, counts.preemptions as f64);
            add(
                "serq_pool_evicted_units_total",
                "Cached units evicted.",
                true,
                "pool",
                &pool.name,
                counts.evicted_units,
            );
        }
        for (pool, store) in look.pools.iter().filter_map(|pool| Some((pool, pool.store?))) {
            let counts = [
                ("puts_total", "Blocks put into the store.", store.puts),
                ("bytes_put_total", "Bytes of the blocks put into the store.", store.bytes_put),
                ("tokens_read_total", "Tokens whose KV was read from the store.", store.tokens_read),
                (
                    "failures_total",
                    "Blocks that did not hold what was put there, or could not be written.",
                    store.failures,
                ),
            ];
            for (name, help, value) in counts {
                add(&format!("serq_store_{name}"), help, true, "pool", &pool.name, value as f64);
            }
        }
        for InstanceLook { name, memory, running, steps } in &look.instances {
            let (memory, running) = (&look.pools[*memory], *running as f64);
            add("serq_instance_running", "Requests in the running step.", false, "instance", name, running);
            add("serq_instance_steps_total", "Steps begun.", true, "instance", name, *steps as f64);
            let used = memory.used / memory.cap;
            add("vllm:kv_cache_usage_perc", "Part of the KV blocks that is held.", false, "engine", name, used);
            add("vllm:num_requests_running", "Requests in the running step.", false, "engine", name, running);
            let waiting = memory.waiting.into();
            add("vllm:num_requests_waiting", "Requests that wait for KV blocks.", false, "engine", name, waiting);
            let preemptions = memory.counts.preemptions as f64;
            add(
                "vllm:num_preemptions_total",
                "Requests that lost their blocks to others.",
                true,
                "engine",
                name,
                preemptions,
            );
        }
        for peer in self.peers.as_ref().map_or_else(Vec::new, Peers::look) {
            let name = &peer.instance;
            let up = f64::from(u8::from(peer.gone.is_none()));
            add("serq_instance_up", "Whether the instance's process is there.", false, "instance", name, up);
            let draining = f64::from(u8::from(peer.draining));
            add("serq_instance_draining", "Whether it takes no new work.", false, "instance", name, draining);
            for (metric, help, value) in peer.counts {
                add(metric, help, metric.ends_with("_total"), "instance", name, value as f64);
                // What vLLM counts of its NIXL connector, by its name.
                let theirs = match metric {
                    "serq_kv_loads_failed_total" => "vllm:nixl_num_failed_transfers_total",
                    "serq_kv_leases_expired_total" => "vllm:nixl_num_kv_expired_reqs_total",
                    _ => continue,
                };
                add(theirs, help, true, "engine", name, value as f64);
            }
        }
        gauges
    }
}

impl EngineBackend {
    fn request(&self, request: Request) -> request::Request {
        let given = request.sampling;
        let mut ends = request.stop_token_ids;
        if !request.ignore_eos {
            ends.extend(&self.ends);
        }
        let seed = given.seed.map_or_else(|| RandomState::new().build_hasher().finish(), |seed| seed as u64);
        let sampling = sampler::Sampling {
            temperature: given.temperature,
            top_k: given.top_k.map_or(0, |k| k as usize),
            top_p: given.top_p,
            min_p: given.min_p,
            repetition_penalty: given.repetition_penalty,
            presence_penalty: given.presence_penalty,
            frequency_penalty: given.frequency_penalty,
            bias: given.logit_bias,
            seed,
            ends,
            min_tokens: request.min_tokens as usize,
            logprobs: request.logprobs.map(|count| count as usize),
        };
        let choice = |choice: u32| request::Choice {
            // A choice's draws are its own, and the first's are those of a request for one.
            sampling: sampler::Sampling {
                seed: sampling.seed.wrapping_add(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                ..sampling.clone()
            },
            stops: request.stop_strings.clone(),
            voice: Box::new(Speaking {
                tokenizer: Arc::clone(&self.tokenizer),
                decoder: Some(Decoder::new(Specials::Hidden)),
            }),
        };
        request::Request {
            prompt: request.prompt,
            max_tokens: request.max_tokens as usize,
            choices: (0..request.choices).map(choice).collect(),
        }
    }
}

/// An event of the engine in the gateway's words.
fn events_of(tokenizer: &Tokenizer, event: request::Event) -> Vec<Told> {
    match event {
        request::Event::Token { choice, token, text, logprobs } => {
            let of = |(id, logprob): (u32, f32)| Logprob { bytes: tokenizer.bytes(id).to_vec(), logprob };
            let logprobs = logprobs.map(|logprobs| TokenLogprobs {
                chosen: of((token, logprobs.chosen)),
                top: logprobs.likeliest.into_iter().map(of).collect(),
            });
            vec![Told::Event(Event::Piece(Piece {
                choice: choice as u32,
                text,
                token_ids: vec![token],
                logprobs: logprobs.into_iter().collect(),
            }))]
        }
        request::Event::Finished { choice, finish, text, figures } => {
            let reason = match finish {
                Finish::Stop(_) => FinishReason::Stop,
                Finish::Length => FinishReason::Length,
                Finish::Refused(message) => return vec![Told::Refused(message)],
                Finish::Unavailable(message) => return vec![Told::Unavailable(message)],
                Finish::Failed(message) => return vec![Told::Event(Event::Failed(message))],
            };
            let mut events = Vec::new();
            if !text.is_empty() {
                events.push(Event::Piece(Piece { choice: choice as u32, text, ..Piece::default() }));
            }
            let mut observed: Vec<(String, f64)> = figures.observed.into_iter().collect();
            observed.push(("kv_tokens_moved".into(), figures.tokens_moved as f64));
            observed.push(("retries".into(), f64::from(figures.retries)));
            observed.push(("kv_tokens_early".into(), figures.tokens_early as f64));
            observed.push(("kv_transfer_wait".into(), figures.transfer_wait));
            observed.push(("kv_bytes_moved".into(), figures.kv_bytes_moved as f64));
            events.push(Event::Observed(observed));
            events.push(Event::Finished { choice: choice as u32, reason, cached_tokens: figures.tokens_cached as u32 });
            events.into_iter().map(Told::Event).collect()
        }
    }
}
