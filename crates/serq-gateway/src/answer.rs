//! How answers look: bodies and the chunks of streams, of both endpoints.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::backend::{FinishReason, Logprob, Piece, TokenLogprobs};
use crate::generation::Usage;
use crate::parameters::Endpoint;

/// What no chunk of a stream changes.
pub(crate) struct Head {
    pub(crate) endpoint: Endpoint,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) return_token_ids: bool,
}

/// A body, or a chunk of a stream.
#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serq: Option<&'a BTreeMap<String, f64>>,
}

impl<'a> Answer<'a> {
    /// With what is known at the end.
    pub(crate) fn with(self, usage: Option<Usage>, observed: Option<&'a BTreeMap<String, f64>>) -> Self {
        Answer { usage, serq: observed, ..self }
    }

    pub(crate) fn json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text, numbers and names are JSON")
    }
}

#[derive(Serialize)]
pub(crate) struct Choice<'a> {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Said<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Said<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Said<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Chat {
        content: Vec<ChatLogprobs>,
    },
    Completions {
        tokens: Vec<String>,
        token_logprobs: Vec<f32>,
        top_logprobs: Vec<BTreeMap<String, f32>>,
        text_offset: Vec<usize>,
    },
}

#[derive(Serialize)]
struct ChatLogprobs {
    #[serde(flatten)]
    chosen: ChatLogprob,
    top_logprobs: Vec<ChatLogprob>,
}

#[derive(Serialize)]
struct ChatLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Head {
    pub(crate) fn body<'a>(&'a self, choices: Vec<Choice<'a>>) -> Answer<'a> {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        self.answer(object, choices)
    }

    pub(crate) fn chunk<'a>(&'a self, choices: Vec<Choice<'a>>) -> Answer<'a> {
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        };
        self.answer(object, choices)
    }

    fn answer<'a>(&'a self, object: &'static str, choices: Vec<Choice<'a>>) -> Answer<'a> {
        Answer { id: &self.id, object, created: self.created, model: &self.model, choices, usage: None, serq: None }
    }

    /// A whole choice: all it grew by, in one piece.
    pub(crate) fn choice<'a>(&self, piece: &'a Piece, reason: FinishReason) -> Choice<'a> {
        let said = Said { role: Some("assistant"), content: Some(&piece.text) };
        let choice = self.plain(piece, &mut 0);
        let choice = Choice { finish_reason: Some(name(reason)), ..choice };
        match self.endpoint {
            Endpoint::Chat => Choice { message: Some(said), ..choice },
            Endpoint::Completions => Choice { text: Some(&piece.text), ..choice },
        }
    }

    /// What a choice grew by. The first of a conversation's says who speaks; `offset` is where
    /// the next token's text begins.
    pub(crate) fn delta<'a>(&self, piece: &'a Piece, first: bool, offset: &mut usize) -> Choice<'a> {
        let said = Said { role: first.then_some("assistant"), content: Some(&piece.text) };
        let choice = self.plain(piece, offset);
        match self.endpoint {
            Endpoint::Chat => Choice { delta: Some(said), ..choice },
            Endpoint::Completions => Choice { text: Some(&piece.text), ..choice },
        }
    }

    /// The end of a choice.
    pub(crate) fn end(&self, index: u32, reason: FinishReason) -> Choice<'static> {
        let choice = Choice {
            index,
            message: None,
            delta: None,
            text: None,
            logprobs: None,
            finish_reason: Some(name(reason)),
            token_ids: None,
        };
        match self.endpoint {
            Endpoint::Chat => Choice { delta: Some(Said { role: None, content: None }), ..choice },
            Endpoint::Completions => Choice { text: Some(""), ..choice },
        }
    }

    fn plain<'a>(&self, piece: &'a Piece, offset: &mut usize) -> Choice<'a> {
        let logprobs = (!piece.logprobs.is_empty()).then(|| match self.endpoint {
            Endpoint::Chat => Logprobs::Chat { content: piece.logprobs.iter().map(chat_logprobs).collect() },
            Endpoint::Completions => completion_logprobs(&piece.logprobs, offset),
        });
        Choice {
            index: piece.choice,
            message: None,
            delta: None,
            text: None,
            logprobs,
            finish_reason: None,
            token_ids: self.return_token_ids.then_some(&piece.token_ids),
        }
    }
}

fn name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn chat_logprobs(token: &TokenLogprobs) -> ChatLogprobs {
    let one = |token: &Logprob| ChatLogprob {
        token: text(token).into_owned(),
        logprob: finite(token.logprob),
        bytes: token.bytes.clone(),
    };
    ChatLogprobs { chosen: one(&token.chosen), top_logprobs: token.top.iter().map(one).collect() }
}

fn completion_logprobs(pieces: &[TokenLogprobs], offset: &mut usize) -> Logprobs {
    let text_offset = pieces.iter().map(|token| {
        let here = *offset;
        *offset += text(&token.chosen).chars().count();
        here
    });
    Logprobs::Completions {
        text_offset: text_offset.collect(),
        tokens: pieces.iter().map(|token| text(&token.chosen).into_owned()).collect(),
        token_logprobs: pieces.iter().map(|token| finite(token.chosen.logprob)).collect(),
        top_logprobs: pieces
            .iter()
            .map(|token| token.top.iter().map(|top| (text(top).into_owned(), finite(top.logprob))).collect())
            .collect(),
    }
}

fn text(token: &Logprob) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&token.bytes)
}

/// JSON has no −∞; vLLM writes this for it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
