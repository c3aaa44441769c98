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
                let delta = self.head.delta(&piece, first, offset);
                write_data(frame, &self.head.chunk(vec![delta]).json());
            }
            Step::Finished { choice, reason } => {
                write_data(frame, &self.head.chunk(vec![self.head.end(choice, reason)]).json());
            }
            Step::Failed(error) => {
                write_data(frame, &error.json());
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::backend::{Event, Piece};
    use crate::parameters::Endpoint;

    impl Events for UnboundedReceiver<Event> {
        fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
            self.poll_recv(context)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_comes_when_nothing_was_said_for_its_time() {
        const QUIET: Duration = Duration::from_secs(10);
        let (backend, events) = unbounded_channel();
        let mut generation = Generation::new("m", 1, std::time::Instant::now(), Arc::default());
        generation.add(events, 1);
        let (id, model) = ("id".to_owned(), "m".to_owned());
        let head = Head { endpoint: Endpoint::Chat, id, created: 0, model, return_token_ids: false };
        let mut stream = EventStream::new(generation, head, false, false, QUIET);
        let began = Instant::now();
        let mut told = Vec::new();
        for turn in 0..4 {
            if turn == 2 {
                tokio::time::sleep(QUIET / 2).await;
                backend.send(Event::Piece(Piece::default())).expect("it is listened to");
            }
            let bytes = poll_fn(|context| stream.poll_bytes(context)).await.expect("no end");
            told.push((bytes.starts_with(b": "), began.elapsed().as_secs()));
        }
        assert_eq!(told, [(true, 10), (true, 20), (false, 25), (true, 35)]);
    }
}
