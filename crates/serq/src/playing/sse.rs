//! Server-sent events, from bytes that are cut anywhere.
//!
//! Lines end with a line feed, a carriage return or both; a blank line ends an event; `data` lines of one
//! event are joined by line feeds; other fields and comments say nothing here (the HTML standard, §9.2.6).

/// The most bytes of one event: what has more is no answer's piece.
const EVENT_MOST: usize = 4 << 20;

/// What was read so far.
#[derive(Default)]
pub(crate) struct EventReader {
    line: Vec<u8>,
    data: Vec<u8>,
    any: bool,
    after_return: bool,
}

/// An event is larger than any answer's.
#[derive(Debug, PartialEq)]
pub(crate) struct TooLarge;

impl EventReader {
    /// Reads on, and answers the data of the events that became whole.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLarge> {
        let mut events = Vec::new();
        for &byte in bytes {
            let fed = std::mem::take(&mut self.after_return) && byte == b'\n';
            match byte {
                _ if fed => {}
                b'\n' | b'\r' => {
                    self.after_return = byte == b'\r';
                    events.extend(self.end_line());
                }
                _ if self.line.len() + self.data.len() >= EVENT_MOST => return Err(TooLarge),
                _ => self.line.push(byte),
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        if self.line.is_empty() {
            let whole = std::mem::take(&mut self.any).then(|| std::mem::take(&mut self.data));
            self.data.clear();
            return whole;
        }
        if let Some(value) = self.line.strip_prefix(b"data") {
            let value = match value {
                [b':', b' ', rest @ ..] | [b':', rest @ ..] => Some(rest),
                [] => Some(value),
                _ => None,
            };
            if let Some(value) = value {
                if std::mem::replace(&mut self.any, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
        }
        self.line.clear();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b": waiting\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\ndatab: no\n\ndata\r\rdata: [DONE]\n\nrest";

    fn words(events: Vec<Vec<u8>>) -> Vec<String> {
        events.into_iter().map(|event| String::from_utf8(event).unwrap()).collect()
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let whole = words(EventReader::default().read(TEXT).unwrap());
        assert_eq!(whole, ["{\"a\":1}", "two\nlines", "", "[DONE]"]);
        for first in 0..=TEXT.len() {
            for second in first..=TEXT.len() {
                let mut reader = EventReader::default();
                let parts = [&TEXT[..first], &TEXT[first..second], &TEXT[second..]];
                let all = parts.iter().flat_map(|part| reader.read(part).unwrap()).collect();
                assert_eq!(words(all), whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut reader = EventReader::default();
        let piece = vec![b'x'; 1 << 20];
        let read: Vec<_> = (0..5).map(|_| reader.read(&piece)).collect();
        assert_eq!(read[3], Ok(Vec::new()));
        assert_eq!(read[4], Err(TooLarge));
    }
}
