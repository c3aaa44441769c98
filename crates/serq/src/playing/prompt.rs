//! Prompts of exactly so many tokens, that begin alike where the program says so.
//!
//! A prompt is what a conversation said so far and new tokens behind it:
//!
//! ```text
//!   ├── the group's or the trace's ──┤── own, of the turns before, answers too ──┤── new ──┤
//! ```
//!
//! A token is a function of the seed, of where it comes from and of its place, so sessions of one group
//! begin with the same ones, and a run with the same seed asks the same.
//!
//! # Invariants
//!
//! - A prompt has the tokens it is drawn with, whatever the conversation was.
//! - A prompt at least as long as the conversation begins with it, unless the program says that it
//!   begins with something else.

use std::ops::Range;

use serq_kernel::Begins;

/// How tokens are told to the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Alphabet {
    /// As ids, of this range.
    Ids(Range<u32>),
    /// As words with a space before them, each one token; a text has some tokens beside them.
    Words { words: Vec<String>, beside: usize },
}

/// A prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Ids(Vec<u32>),
    Text(String),
}

/// What was said in a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    ids: Vec<u32>,
    text: String,
    /// Of the text, as the server counts.
    tokens: usize,
}

/// Whose tokens are meant: no two of them have the same.
#[derive(Clone, Copy)]
enum Source {
    Group(u64),
    Trace(u64),
    /// The session, and how many requests it has made.
    Own(u64, u64),
}

/// Writes prompts.
pub(crate) struct Writer {
    seed: u64,
    pub(crate) alphabet: Alphabet,
}

impl Writer {
    pub(crate) fn new(seed: u64, alphabet: Alphabet) -> Self {
        Self { seed, alphabet }
    }

    /// The next prompt of a session: so many tokens, with what all its prompts begin with.
    pub(crate) fn prompt(
        &self,
        length: usize,
        begins: &Begins<'_>,
        conversation: &Conversation,
        session: u64,
        nth: u64,
    ) -> Prompt {
        let alike = (begins.tokens.floor() as usize).min(length);
        let beginning = (0..alike).map(|place| match begins.block_ids {
            [] => (Source::Group(begins.group), place),
            ids => {
                let block = begins.block.max(1.0) as usize;
                (Source::Trace(ids[(place / block).min(ids.len() - 1)]), place % block)
            }
        });
        let beginning: Vec<u64> = beginning.map(|(source, place)| self.number(source, place)).collect();
        let own = |from: usize, upto: usize| (from..upto).map(|place| self.number(Source::Own(session, nth), place));
        match &self.alphabet {
            Alphabet::Ids(range) => {
                let id = |number: u64| range.start + (number % u64::from(range.end - range.start)) as u32;
                let beginning: Vec<u32> = beginning.into_iter().map(id).collect();
                let said = &conversation.ids[..conversation.ids.len().min(length)];
                let mut ids = match said.starts_with(&beginning[..beginning.len().min(said.len())]) && !said.is_empty()
                {
                    true => said.to_vec(),
                    false => Vec::new(),
                };
                ids.extend_from_slice(beginning.get(ids.len()..).unwrap_or_default());
                ids.extend(own(ids.len(), length).map(id));
                Prompt::Ids(ids)
            }
            Alphabet::Words { words, beside } => {
                let length = length.saturating_sub(*beside);
                let write = |numbers: &mut dyn Iterator<Item = u64>| {
                    numbers
                        .fold(String::new(), |text, number| text + " " + &words[(number % words.len() as u64) as usize])
                };
                let beginning = write(&mut beginning.into_iter().take(length));
                let said = conversation.tokens.saturating_sub(*beside);
                let goes_on = said <= length && said > 0 && conversation.text.starts_with(&beginning);
                let (mut text, there) =
                    if goes_on { (conversation.text.clone(), said) } else { (beginning, alike.min(length)) };
                text += &write(&mut own(there, length));
                Prompt::Text(text)
            }
        }
    }

    /// What was asked is answered: the conversation is both. Without the answer's ids, others stand in
    /// their place.
    pub(crate) fn answered(
        &self,
        prompt: Prompt,
        ids: Vec<u32>,
        text: &str,
        tokens: (usize, usize),
        whose: (u64, u64),
    ) -> Conversation {
        match (prompt, &self.alphabet) {
            (Prompt::Ids(mut all), Alphabet::Ids(range)) => {
                if ids.len() == tokens.1 {
                    all.extend(ids);
                } else {
                    let from = all.len();
                    let place = |place| self.number(Source::Own(whose.0, whose.1), place);
                    let width = u64::from(range.end - range.start);
                    all.extend((from..from + tokens.1).map(|at| range.start + (place(at) % width) as u32));
                }
                Conversation { ids: all, ..Conversation::default() }
            }
            (Prompt::Text(asked), _) => {
                Conversation { text: asked + text, tokens: tokens.0 + tokens.1, ids: Vec::new() }
            }
            (Prompt::Ids(ids), _) => Conversation { ids, ..Conversation::default() },
        }
    }

    fn number(&self, source: Source, place: usize) -> u64 {
        let (kind, a, b) = match source {
            Source::Group(group) => (1, group, 0),
            Source::Trace(block) => (2, block, 0),
            Source::Own(session, nth) => (3, session, nth),
        };
        [kind, a, b, place as u64].into_iter().fold(mixed(self.seed), |state, part| mixed(state ^ mixed(part)))
    }
}

/// A step of SplitMix64 [Steele OOPSLA'14].
fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Begins<'_> = Begins { group: 0, tokens: 0.0, block_ids: &[], block: 0.0 };

    fn ids(writer: &Writer, length: usize, begins: &Begins<'_>, said: &Conversation, whose: (u64, u64)) -> Vec<u32> {
        match writer.prompt(length, begins, said, whose.0, whose.1) {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => panic!("{text}"),
        }
    }

    #[test]
    fn a_conversation_goes_on_where_the_drawn_length_allows_it() {
        let writer = Writer::new(1, Alphabet::Ids(100..1000));
        let first = ids(&writer, 10, &NOTHING, &Conversation::default(), (7, 0));
        assert!(first.len() == 10 && first.iter().all(|id| (100..1000).contains(id)));
        let said = writer.answered(Prompt::Ids(first.clone()), vec![1, 2, 3], "", (10, 3), (7, 0));
        let second = ids(&writer, 20, &NOTHING, &said, (7, 1));
        assert_eq!((second.len(), &second[..10], &second[10..13]), (20, &first[..], &[1, 2, 3][..]));
        // A shorter one is as much of the conversation as fits.
        assert_eq!(ids(&writer, 12, &NOTHING, &said, (7, 1)), second[..12]);
        // Where the server says no ids, others stand there.
        let unsaid = writer.answered(Prompt::Ids(first.clone()), Vec::new(), "", (10, 3), (7, 0));
        let third = ids(&writer, 20, &NOTHING, &unsaid, (7, 1));
        assert!(third[..10] == first && third[10..13] != [1, 2, 3]);
        // Another session says something else, and the same seed the same.
        assert_ne!(ids(&writer, 10, &NOTHING, &Conversation::default(), (8, 0)), first);
        let again = Writer::new(1, Alphabet::Ids(100..1000));
        assert_eq!(ids(&again, 10, &NOTHING, &Conversation::default(), (7, 0)), first);
    }

    #[test]
    fn groups_and_traces_begin_alike() {
        let writer = Writer::new(1, Alphabet::Ids(0..50_000));
        let begins = |tokens| Begins { group: 3, tokens, block_ids: &[], block: 0.0 };
        let none = Conversation::default();
        let (a, b) = (ids(&writer, 20, &begins(8.0), &none, (1, 0)), ids(&writer, 15, &begins(6.0), &none, (2, 0)));
        assert_eq!(a[..6], b[..6]);
        assert_ne!(a[6], b[6]);
        // The same group goes on with the conversation, another begins anew.
        let said = writer.answered(Prompt::Ids(a.clone()), vec![9], "", (20, 1), (1, 0));
        assert_eq!(ids(&writer, 30, &begins(8.0), &said, (1, 1))[..20], a);
        let other = Begins { group: 4, ..begins(8.0) };
        assert_ne!(ids(&writer, 30, &other, &said, (1, 1))[..8], a[..8]);
        let traced = |block_ids| Begins { group: 0, tokens: 10.0, block_ids, block: 4.0 };
        let (a, b) = (
            ids(&writer, 12, &traced(&[5, 6, 7]), &none, (1, 0)),
            ids(&writer, 12, &traced(&[5, 6, 8]), &none, (2, 0)),
        );
        assert_eq!(a[..8], b[..8]);
        assert!(a[8] != b[8] && a[10] != b[10]);
    }

    #[test]
    fn words_are_as_many_as_the_server_counts() {
        let words = ["the", "of", "and"].map(str::to_owned).to_vec();
        let writer = Writer::new(1, Alphabet::Words { words, beside: 1 });
        let Prompt::Text(first) = writer.prompt(10, &NOTHING, &Conversation::default(), 1, 0) else { panic!() };
        assert_eq!(first.split(' ').count(), 1 + 9);
        let said = writer.answered(Prompt::Text(first.clone()), Vec::new(), " and of", (10, 2), (1, 0));
        let Prompt::Text(second) = writer.prompt(15, &NOTHING, &said, 1, 1) else { panic!() };
        assert!(second.starts_with(&(first + " and of")));
        assert_eq!(second.split(' ').count(), 1 + 14);
    }
}
