//! What the gateway asks of whatever generates tokens.
//!
//! ```text
//!   HTTP body ──▶ Prompt ──prepare──▶ token ids ──submit──▶ events ──▶ HTTP answer
//!                                                   │
//!                              dropped: the request is cancelled
//! ```
//!
//! The backend knows tokens: it has the tokenizer, the chat template, the sampler and the
//! matching of stop strings. The gateway knows HTTP: names of fields, defaults, limits, and
//! how an answer looks.
//!
//! # What a backend promises
//!
//! - Events of one choice come in order: pieces, then one [`Event::Finished`]. Choices may be
//!   interleaved. After the last choice's end, or after [`Event::Failed`], nothing follows.
//! - Each token generated is in exactly one [`Piece`], the one that ended the text included
//!   (end of text, a stop token, the tokens of a stop string).
//! - A choice's texts, joined, are the answer: whole characters, without the stop string. Text
//!   that may become a stop string is held back until it is known, so a piece may have tokens
//!   and no text, or text and no tokens.
//! - To drop the events is to cancel: what the request holds is given back soon after, all
//!   choices and wherever they run.
//! - Events that nobody takes are kept. The gateway takes them as fast as the client reads, and
//!   cancels where a client doesn't ([`crate::Options::write_time`]), so they are at most what is
//!   generated in that time.

use std::fmt;
use std::future::Future;
use std::task::{Context, Poll};
use std::time::Duration;

/// Generates tokens for the gateway.
pub trait Backend: Send + Sync + 'static {
    /// What happens to one request.
    type Events: Events;

    /// The models served. A request that names no other is refused before the backend sees it.
    fn models(&self) -> Vec<Model>;

    /// Whether requests may come.
    ///
    /// # Errors
    ///
    /// Why not, in a sentence for the client: it gets 503.
    fn ready(&self) -> Result<(), String>;

    /// Whether requests should come here rather than elsewhere: what `/health` says. Those that come are taken as
    /// long as [`Backend::ready`].
    ///
    /// # Errors
    ///
    /// Why not, in a sentence.
    fn healthy(&self) -> Result<(), String> {
        self.ready()
    }

    /// A prompt's token ids: the chat template, then the tokenizer. Called on a thread that may
    /// be blocked.
    ///
    /// # Errors
    ///
    /// Why this prompt is refused.
    fn prepare(&self, model: &str, prompt: Prompt) -> Result<Vec<u32>, Refusal>;

    /// Takes a request. May be written as an `async fn`; dropping what it returns cancels.
    ///
    /// # Errors
    ///
    /// Why this request is refused, now or for good.
    fn submit(&self, request: Request) -> impl Future<Output = Result<Self::Events, Refusal>> + Send;

    /// Figures of the backend for `GET /metrics`, at this moment.
    fn gauges(&self) -> Vec<Gauge> {
        Vec::new()
    }
}

/// What happens to one request, as it happens. Dropping it cancels the request.
///
/// A channel will do, where the sender stops when nobody receives any more:
///
/// ```
/// use std::task::{Context, Poll};
/// use serq_gateway::backend::{Event, Events};
///
/// struct Answers(tokio::sync::mpsc::UnboundedReceiver<Event>);
///
/// impl Events for Answers {
///     fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
///         self.0.poll_recv(context)
///     }
/// }
/// ```
pub trait Events: Send + Unpin + 'static {
    /// The next event; `None` after the last. As a stream's `poll_next`: on `Pending` the
    /// context's waker is woken when there is more.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>>;
}

/// A model as clients name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// How many tokens a prompt and its answer may have together.
    pub context_tokens: u32,
    /// How many tokens there are: ids are below.
    pub vocabulary_tokens: u32,
}

/// A prompt as the client gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Token ids, each below the model's `vocabulary_tokens`.
    Ids(Vec<u32>),
    /// A conversation, at least one message.
    Chat(Vec<Message>),
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `system`.
    System,
    /// `developer`, OpenAI's newer word for `system`.
    Developer,
    /// `user`.
    User,
    /// `assistant`.
    Assistant,
}

impl Role {
    /// As in a request's body.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One prompt and what is to be made of it. All numbers are in their ranges, and
/// `prompt.len() + max_tokens` is at most the model's `context_tokens`.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// For logs: the client's or the server's id, and which of its prompts. Clients may repeat
    /// theirs.
    pub id: String,
    /// One of [`Backend::models`].
    pub model: String,
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How many answers, 1 or more. They are numbered from 0.
    pub choices: u32,
    /// The most tokens an answer may have, 1 or more.
    pub max_tokens: u32,
    /// No answer ends before by a token or a stop string; at most `max_tokens`.
    pub min_tokens: u32,
    /// An answer ends before the first of these. None is empty.
    pub stop_strings: Vec<String>,
    /// An answer ends with the first of these; they give no text.
    pub stop_token_ids: Vec<u32>,
    /// The model's own end of text is a token as any other.
    pub ignore_eos: bool,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// With each token its log-probability, and those of so many of the likeliest.
    pub logprobs: Option<u32>,
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 to 2; 0 takes the likeliest.
    pub temperature: f32,
    /// Above 0, at most 1.
    pub top_p: f32,
    /// `None`: all.
    pub top_k: Option<u32>,
    /// 0 to 1.
    pub min_p: f32,
    /// −2 to 2.
    pub presence_penalty: f32,
    /// −2 to 2.
    pub frequency_penalty: f32,
    /// Above 0; 1 does nothing.
    pub repetition_penalty: f32,
    /// With one, the same request has the same answers. Choices draw differently from it.
    pub seed: Option<i64>,
    /// Added to the logits of these tokens, by id, each at most once; −100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: None,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: None,
            logit_bias: Vec::new(),
        }
    }
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A choice grew.
    Piece(Piece),
    /// A choice is over.
    Finished {
        /// Which.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// How many of the prompt's tokens had not to be computed for it.
        cached_tokens: u32,
    },
    /// Figures of the request, shown to clients that ask for them. A later figure replaces one
    /// of the same name.
    Observed(Vec<(String, f64)>),
    /// The whole request is over, by a failure of ours. A sentence for the client.
    Failed(String),
    /// The same where nobody is there who would serve it: the client may ask again.
    Unavailable(String),
}

/// What a choice grew by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Which choice.
    pub choice: u32,
    /// Text to be joined to the choice's.
    pub text: String,
    /// The tokens generated.
    pub token_ids: Vec<u32>,
    /// One a token where the request asks for them, else none.
    pub logprobs: Vec<TokenLogprobs>,
}

/// A token's log-probability, and others that might have been.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token taken.
    pub chosen: Logprob,
    /// The likeliest, the likeliest first: as many as the request asks for.
    pub top: Vec<Logprob>,
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token's text, which may be part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm.
    pub logprob: f32,
}

/// Why a choice is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End of text, a stop token or a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// Why a prompt or a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It can't be served as it is: 400.
    Invalid {
        /// The field to be changed, as in the body.
        param: Option<String>,
        /// A sentence.
        message: String,
    },
    /// Too many wait: 429, to be tried again.
    Full {
        /// When it is worth trying.
        retry_after: Duration,
        /// A sentence.
        message: String,
    },
    /// Nothing can be served now: 503.
    Unavailable(String),
    /// A failure of ours: 500.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::Invalid { message, .. }
        | Refusal::Full { message, .. }
        | Refusal::Unavailable(message)
        | Refusal::Failed(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for Refusal {}

/// A figure of the backend, for Prometheus.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// A metric's name (`[a-zA-Z_:][a-zA-Z0-9_:]*`). Figures of one name are one metric.
    pub name: String,
    /// What it says, in a line.
    pub help: String,
    /// Whether it only grows: its name then ends in `_total`.
    pub counter: bool,
    /// Names and values.
    pub labels: Vec<(String, String)>,
    /// The figure.
    pub value: f64,
}
