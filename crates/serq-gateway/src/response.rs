//! Responses as hyper sends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

use crate::backend::Events;
use crate::stream::EventStream;

pub(crate) const JSON: &str = "application/json";

/// A response with all of its body.
pub(crate) fn whole<E>(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<ResponseBody<E>> {
    let mut response = Response::new(ResponseBody::Whole(Some(body.into())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What goes out after the head.
pub(crate) enum ResponseBody<E> {
    Whole(Option<Bytes>),
    Stream(Box<EventStream<E>>),
}

impl<E: Events> Body for ResponseBody<E> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match self.get_mut() {
            ResponseBody::Whole(bytes) => bytes.take(),
            ResponseBody::Stream(stream) => std::task::ready!(stream.poll_bytes(context)),
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ResponseBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            ResponseBody::Stream(_) => SizeHint::default(),
        }
    }
}
