//! A client's connection as hyper wants it: bytes and timers, and a client that doesn't read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{ReadBufCursor, Sleep, Timer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that breaks when what is written isn't taken in time.
///
/// Hyper takes events for an answer while its buffer has room, then writes all of it and
/// flushes. From the first write that finds no room until that flush is the time a client has
/// for one buffer: one that trickles is late as one that reads nothing is. Broken, the
/// connection drops the answer, and with it what is generated for it.
pub(crate) struct Connection<S> {
    stream: S,
    write_time: Duration,
    late: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(stream: S, write_time: Duration) -> Self {
        Connection { stream, write_time, late: None }
    }

    fn written(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() && self.late.is_none() {
            self.late = Some(Box::pin(tokio::time::sleep(self.write_time)));
        }
        let over = self.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_ready());
        if over {
            Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client doesn't read")))
        } else {
            written
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> hyper::rt::Read for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // By way of a buffer of our own: to read into hyper's would be `unsafe`.
        let mut bytes = [0; 8192];
        let room = into.remaining().min(bytes.len());
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        into.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> hyper::rt::Write for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.late = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Tokio's clock for hyper's time limits.
#[derive(Clone, Copy)]
pub(crate) struct TokioTimer;

impl Timer for TokioTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(TokioSleep(Box::pin(tokio::time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(TokioSleep(Box::pin(tokio::time::sleep_until(deadline.into()))))
    }
}

struct TokioSleep(Pin<Box<tokio::time::Sleep>>);

impl Future for TokioSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl Sleep for TokioSleep {}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use hyper::rt::Write as _;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    const WRITE_TIME: Duration = Duration::from_secs(30);

    /// Writes as hyper does: all of a buffer, then a flush.
    async fn write(connection: &mut Connection<tokio::io::DuplexStream>, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            left -= poll_fn(|context| Pin::new(&mut *connection).poll_write(context, &vec![0; left])).await?;
        }
        poll_fn(|context| Pin::new(&mut *connection).poll_flush(context)).await
    }

    /// What becomes of 300 bytes and then 200, where 100 have room, if the client takes so many
    /// each second.
    async fn write_while_read(bytes_a_second: usize) -> (io::Result<()>, Duration) {
        let (ours, mut theirs) = duplex(100);
        let began = tokio::time::Instant::now();
        let reading = tokio::spawn(async move {
            let mut bytes = vec![0; bytes_a_second];
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let _ = theirs.read(&mut bytes).await;
            }
        });
        let mut connection = Connection::new(ours, WRITE_TIME);
        let mut written = write(&mut connection, 300).await;
        if written.is_ok() {
            written = write(&mut connection, 200).await;
        }
        reading.abort();
        (written, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_has_its_time_for_all_of_a_buffer() {
        let (written, time) = write_while_read(0).await;
        assert_eq!((written.unwrap_err().kind(), time), (io::ErrorKind::TimedOut, WRITE_TIME), "reads nothing");
        let (written, time) = write_while_read(6).await;
        assert_eq!((written.unwrap_err().kind(), time), (io::ErrorKind::TimedOut, WRITE_TIME), "trickles");
        let (written, time) = write_while_read(10).await;
        assert!(written.is_ok(), "twice 200 bytes had no room, 20 seconds made it for each");
        assert_eq!(time, Duration::from_secs(40));
    }
}
