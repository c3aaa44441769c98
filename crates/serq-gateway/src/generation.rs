//! The answers to one HTTP request while they are generated.
//!
//! A body may have several prompts, each of them a request to the backend with `n` choices. A
//! [`Generation`] has their events in one sequence, numbers the choices through, counts tokens
//! and times, and holds the backend to its promises. Dropped before its end, it drops the
//! backend's events with it: the client went away and the request is cancelled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use serde::Serialize;

use crate::backend::{Event, Events, FinishReason, Piece, Refusal};
use crate::error::ApiError;
use crate::metrics::{Metrics, Outcome};

pub(crate) struct Generation<E> {
    parts: Vec<Part<E>>,
    /// Of each part.
    choices: u32,
    progress: Vec<Progress>,
    unfinished: usize,
    /// Whether any choice has a token.
    heard: bool,
    /// The part looked at first: one that always has something must not keep others waiting.
    next: usize,
    observed: BTreeMap<String, f64>,
    metrics: Arc<Metrics>,
    model: String,
    began: Instant,
    over: bool,
}

/// One prompt's.
struct Part<E> {
    /// Until its last choice is finished, or anything failed.
    events: Option<E>,
    prompt_tokens: usize,
    /// The least over its choices: those after the first find what it has computed.
    cached_tokens: Option<u32>,
}

#[derive(Clone, Default)]
struct Progress {
    tokens: usize,
    first: Option<Instant>,
    last: Option<Instant>,
    finished: bool,
}

/// What is to be told to the client.
pub(crate) enum Step {
    /// The piece's choice is numbered through all prompts.
    Piece(Piece),
    Finished {
        choice: u32,
        reason: FinishReason,
    },
    Failed(ApiError),
    /// All is told.
    End,
}

/// As in the answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct PromptTokensDetails {
    cached_tokens: u64,
}

impl<E: Events> Generation<E> {
    /// For a request that came at `began`; parts are added with [`Generation::add`].
    pub(crate) fn new(model: &str, choices: u32, began: Instant, metrics: Arc<Metrics>) -> Self {
        metrics.began(model);
        Generation {
            parts: Vec::new(),
            choices,
            progress: Vec::new(),
            unfinished: 0,
            heard: false,
            next: 0,
            observed: BTreeMap::new(),
            metrics,
            model: model.to_owned(),
            began,
            over: false,
        }
    }

    pub(crate) fn add(&mut self, events: E, prompt_tokens: usize) {
        self.parts.push(Part { events: Some(events), prompt_tokens, cached_tokens: None });
        self.progress.resize(self.parts.len() * self.choices as usize, Progress::default());
        self.unfinished += self.choices as usize;
        self.metrics.prompt(&self.model, prompt_tokens);
    }

    /// Waits for the next step.
    pub(crate) async fn step(&mut self) -> Step {
        std::future::poll_fn(|context| self.poll_step(context)).await
    }

    pub(crate) fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        let mut waiting = 0;
        while self.unfinished > 0 && waiting < self.parts.len() {
            let part = self.next;
            self.next = (part + 1) % self.parts.len();
            let polled = self.parts[part].events.as_mut().map(|events| events.poll_event(context));
            match polled.unwrap_or(Poll::Pending) {
                Poll::Pending => waiting += 1,
                Poll::Ready(None) => return Poll::Ready(self.fail(ApiError::internal("the answer broke off"))),
                Poll::Ready(Some(event)) => {
                    waiting = 0;
                    if let Some(step) = self.on_event(part, event) {
                        return Poll::Ready(step);
                    }
                }
            }
        }
        if self.unfinished > 0 {
            return Poll::Pending;
        }
        self.end(Outcome::Finished);
        Poll::Ready(Step::End)
    }

    fn on_event(&mut self, part: usize, event: Event) -> Option<Step> {
        let now = Instant::now();
        match event {
            Event::Piece(mut piece) => {
                let Some(index) = self.index(part, piece.choice) else { return Some(self.out_of_turn(piece.choice)) };
                piece.choice = index as u32;
                if !piece.token_ids.is_empty() {
                    self.count(index, piece.token_ids.len(), now);
                }
                Some(Step::Piece(piece))
            }
            Event::Finished { choice, reason, cached_tokens } => {
                let Some(index) = self.index(part, choice) else { return Some(self.out_of_turn(choice)) };
                let cached = &mut self.parts[part].cached_tokens;
                *cached = Some(cached.map_or(cached_tokens, |known| known.min(cached_tokens)));
                let progress = &mut self.progress[index];
                progress.finished = true;
                self.unfinished -= 1;
                let decode = progress.first.zip(progress.last).map(|(first, last)| last - first);
                self.metrics.choice(&self.model, reason, progress.tokens, decode);
                let choices = self.choices as usize;
                if self.progress[part * choices..][..choices].iter().all(|progress| progress.finished) {
                    self.parts[part].events = None;
                }
                Some(Step::Finished { choice: index as u32, reason })
            }
            Event::Observed(figures) => {
                self.observed.extend(figures);
                None
            }
            Event::Failed(message) => Some(self.fail(ApiError::internal(message))),
            Event::Unavailable(message) => Some(self.fail(Refusal::Unavailable(message).into())),
        }
    }

    fn count(&mut self, index: usize, tokens: usize, now: Instant) {
        if !std::mem::replace(&mut self.heard, true) {
            self.metrics.first_token(&self.model, now - self.began);
        }
        let progress = &mut self.progress[index];
        if let Some(last) = progress.last {
            self.metrics.gap(&self.model, now - last, tokens);
        }
        progress.tokens += tokens;
        progress.first.get_or_insert(now);
        progress.last = Some(now);
        self.metrics.generated(&self.model, tokens);
    }

    /// The number through all prompts of a choice that isn't finished.
    fn index(&self, part: usize, choice: u32) -> Option<usize> {
        let index = part * self.choices as usize + choice as usize;
        (choice < self.choices && !self.progress[index].finished).then_some(index)
    }

    fn out_of_turn(&mut self, choice: u32) -> Step {
        self.fail(ApiError::internal(format!("the backend told something of choice {choice}, which it must not")))
    }

    fn fail(&mut self, error: ApiError) -> Step {
        self.parts.iter_mut().for_each(|part| part.events = None);
        self.end(Outcome::Failed);
        Step::Failed(error)
    }

    fn end(&mut self, outcome: Outcome) {
        if !self.over {
            self.over = true;
            self.metrics.ended(&self.model, outcome, self.began.elapsed());
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let prompt_tokens = self.parts.iter().map(|part| part.prompt_tokens).sum::<usize>();
        let completion_tokens = self.progress.iter().map(|progress| progress.tokens).sum::<usize>();
        let cached_tokens = self.parts.iter().map(|part| u64::from(part.cached_tokens.unwrap_or(0))).sum();
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }

    pub(crate) fn observed(&self) -> &BTreeMap<String, f64> {
        &self.observed
    }

    /// The backend refused: not begun after all.
    pub(crate) fn refused(mut self) {
        self.end(Outcome::Refused);
    }

    pub(crate) fn choices_total(&self) -> usize {
        self.progress.len()
    }
}

impl<E> Drop for Generation<E> {
    fn drop(&mut self) {
        if !self.over {
            self.metrics.ended(&self.model, Outcome::Cancelled, self.began.elapsed());
        }
    }
}
