//! An answer as it is generated: server-sent events.
//!
//! ```text
//! data: {"id":…,"choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},…}]}
//!
//! data: {"id":…,"choices":[{"index":0,"delta":{},"finish_reason":"stop",…}]}
//!
//! data: {"id":…,"choices":[],"usage":{…}}
//!
//! data: [DONE]
//! ```
//!
//! Events are taken from the backend when the connection has room for them, so a client that
//! reads slowly has none of them pile up here. While there is nothing to tell, a comment goes
//! out now and then: connections that look idle are cut on the way, and writing is how a client
//! that vanished without a word is noticed.
//!
//! A failure on the way is an event with an `error` in it, and then there is no `[DONE]`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::{Instant, Sleep};

use crate::answer::Head;
use crate::backend::Events;
use crate::error::ApiError;
use crate::generation::{Generation, Step};

/// So much is put into one frame when it is there already.
const FRAME_BYTES: usize = 16 * 1024;

pub(crate) struct EventStream<E> {
    generation: Generation<E>,
    head: Head,
    include_usage: bool,
    observe: bool,
    /// Per choice: whether it was heard of, and where its next token's text begins.
    begun: Vec<(bool, usize)>,
    quiet: Duration,
    comment: Pin<Box<Sleep>>,
    over: bool,
}

impl<E: Events> EventStream<E> {
    pub(crate) fn new(
        generation: Generation<E>,
        head: Head,
        include_usage: bool,
        observe: bool,
        quiet: Duration,
    ) -> Self {
        let begun = vec![(false, 0); generation.choices_total()];
        let comment = Box::pin(tokio::time::sleep(quiet));
        EventStream { generation, head, include_usage, observe, begun, quiet, comment, over: false }
    }

    /// The next bytes; `None` at the end.
    pub(crate) fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut frame = Vec::new();
        while !self.over && frame.len() < FRAME_BYTES {
            match self.generation.poll_step(context) {
                Poll::Pending => break,
                Poll::Ready(step) => self.write(step, &mut frame),
            }
        }
        if frame.is_empty() {
            if self.over {
                return Poll::Ready(None);
            }
            std::task::ready!(self.comment.as_mut().poll(context));
            frame.extend_from_slice(b": waiting\n\n");
        }
        self.comment.as_mut().reset(Instant::now() + self.quiet);
        Poll::Ready(Some(frame.into()))
    }

    fn write(&mut self, step: Step, frame: &mut Vec<u8>) {
        match step {
            Step::Piece(piece) => {
                let (begun, offset) = &mut self.begun[piece.choice as usize];
                let first = !std::mem::replace(begun, true);
                if first || !piece.text.is_empty() || !piece.token_ids.is_empty() {
                    let delta = self.head.delta(&piece, first, offset);
                    write_data(frame, &self.head.chunk(vec![delta]).json());
                }
            }
            Step::Finished { choice, reason } => {
                write_data(frame, &self.head.chunk(vec![self.head.end(choice, reason)]).json());
            }
            Step::Failed(message) => {
                write_data(frame, &ApiError::internal(message).json());
                self.over = true;
            }
            Step::End => {
                if self.include_usage || self.observe {
                    let usage = self.include_usage.then(|| self.generation.usage());
                    let observed = self.observe.then(|| self.generation.observed());
                    write_data(frame, &self.head.chunk(Vec::new()).with(usage, observed).json());
                }
                write_data(frame, b"[DONE]");
                self.over = true;
            }
        }
    }
}

/// One line: JSON as serde writes it has no line ends.
fn write_data(frame: &mut Vec<u8>, data: &[u8]) {
    frame.extend_from_slice(b"data: ");
    frame.extend_from_slice(data);
    frame.extend_from_slice(b"\n\n");
}
