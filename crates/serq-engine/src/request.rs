//! What is asked of the instances, and what they answer.

use std::collections::BTreeMap;

use crate::sampler::{Logprobs, Sampling};

/// One text to go on with.
pub struct Request {
    /// Its tokens, at least one.
    pub prompt: Vec<u32>,
    /// The answer gets no longer.
    pub max_tokens: usize,
    /// One answer for each of these.
    pub choices: Vec<Choice>,
}

/// One answer that is wanted.
pub struct Choice {
    /// How its tokens are chosen.
    pub sampling: Sampling,
    /// Texts that end it.
    pub stops: Vec<String>,
    /// Makes its text of its tokens.
    pub voice: Box<dyn Voice>,
}

/// Makes text of tokens, one after another.
pub trait Voice: Send {
    /// The text that is certain once this token has come.
    fn say(&mut self, token: u32) -> String;

    /// What is left of it at the end.
    fn rest(&mut self) -> String;
}

/// Tells nothing: for those who look at tokens only.
pub struct Mute;

impl Voice for Mute {
    fn say(&mut self, _: u32) -> String {
        String::new()
    }

    fn rest(&mut self) -> String {
        String::new()
    }
}

/// What happens to a request. After the last [`Event::Finished`] of its choices nothing does.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token came.
    Token {
        /// Which answer's.
        choice: usize,
        /// Its id.
        token: u32,
        /// The text that became certain with it: none, where it may be a stop's beginning.
        text: String,
        /// Where they were asked for.
        logprobs: Option<Logprobs>,
    },
    /// An answer is over.
    Finished {
        /// Which.
        choice: usize,
        /// Why.
        finish: Finish,
        /// What was held back of its text.
        text: String,
        /// Figures of it.
        figures: Figures,
    },
}

/// Why an answer is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or one of the request's stops came: which id or text.
    Stop(Option<Stop>),
    /// It got as long as it may.
    Length,
    /// No instance can ever serve it, or the program's route ended without an answer.
    Refused(String),
    /// Whom it needs is not there.
    Unavailable(String),
    /// Something that should work did not.
    Failed(String),
}

/// What ended an answer, beside the model's own end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An id of [`Sampling::ends`].
    Token(u32),
    /// One of [`Choice::stops`].
    Text(String),
}

/// What is known of an answer in the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Tokens of the prompt that were found in the first instance's memory.
    pub tokens_cached: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Tokens whose KV was copied from one instance to another.
    pub tokens_moved: usize,
    /// Of these, tokens that went while later ones were computed.
    pub tokens_early: usize,
    /// Bytes of them.
    pub kv_bytes_moved: u64,
    /// Seconds that the request waited for copies: from when it had all of the prompt's KV to read.
    pub transfer_wait: f64,
    /// How often it was routed again, after an instance was gone or a copy had failed.
    pub retries: u32,
    /// What the program observed of it, in clock units.
    pub observed: BTreeMap<String, f64>,
}

/// Finds stops in a text that comes piece by piece, and holds back what may become one.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    pub(crate) fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new() }
    }

    /// The text that is certain, and the stop that came.
    pub(crate) fn next(&mut self, piece: &str) -> (String, Option<String>) {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            let stop = stop.clone();
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return (text, Some(stop));
        }
        // The longest end of the text that a stop begins with.
        let held = &self.held;
        let from = (0..held.len())
            .filter(|&at| held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&held[at..])))
            .unwrap_or(held.len());
        let rest = self.held.split_off(from);
        (std::mem::replace(&mut self.held, rest), None)
    }

    pub(crate) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_found_wherever_the_pieces_are_cut_and_nothing_of_it_is_told() {
        let text = "one two END three";
        for cut in 0..=text.len() {
            for other in cut..=text.len() {
                let mut stops = Stops::new(vec!["ENDE".into(), "END".into(), String::new()]);
                let mut told = String::new();
                let mut found = None;
                for piece in [&text[..cut], &text[cut..other], &text[other..]] {
                    let (certain, stop) = stops.next(piece);
                    told += &certain;
                    if stop.is_some() {
                        found = stop;
                        break;
                    }
                }
                assert_eq!((told.as_str(), found.as_deref()), ("one two ", Some("END")), "{cut} {other}");
            }
        }
    }

    #[test]
    fn what_did_not_become_a_stop_is_told_in_the_end() {
        let mut stops = Stops::new(vec!["\n\n".into(), "ü!".into()]);
        assert_eq!(stops.next("a\n"), ("a".into(), None));
        assert_eq!(stops.next("bü"), ("\nb".into(), None));
        assert_eq!(stops.rest(), "ü");
    }
}
