//! Reads a trace line by line.
//!
//! The first line that is neither blank nor begins with `#` says which format the file has
//! ([`Format::of`]). Only the numbers are kept, and one line at a time, so a file needs
//! about its own size in memory, however long it is.
//!
//! # Invariants
//!
//! - A wrong row is told with its line, never guessed at. Ten are told, all are counted.
//! - A row that is skipped leaves nothing: no session, no arrival, no block.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Read};

use super::format::{At, Row};
use super::{Format, TraceFile, TraceTurn};

/// Longest line that is read. A prompt of a million tokens has 2,000 blocks, 20 kB of ids.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Wrong rows that are told one by one.
const TOLD_MAX: usize = 10;

/// What is done about rows that are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BadRows {
    /// The file is refused, with what is wrong.
    #[default]
    Refuse,
    /// They are left out and counted.
    Skip,
}

/// Why a trace was not read.
#[derive(Debug)]
pub enum TraceError {
    /// The file could not be read; not text is [`io::ErrorKind::InvalidData`].
    Unreadable(io::Error),
    /// Rows are wrong.
    Wrong {
        /// `line 3: what is wrong`, the first ten.
        first: Vec<String>,
        /// How many more there are.
        more: u64,
    },
    /// There is no row.
    Empty,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Wrong { first, more: 0 } if first.len() == 1 => f.write_str(&first[0]),
            Self::Wrong { first, more } => {
                write!(f, "{} rows are wrong", first.len() as u64 + more)?;
                first.iter().try_for_each(|one| write!(f, "\n  {one}"))?;
                if *more > 0 { write!(f, "\n  and {more} more") } else { Ok(()) }
            }
            Self::Empty => f.write_str("no rows: a trace has lines of `session,turn,new,out,think[,forced[,at]]`"),
        }
    }
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

impl TraceFile {
    /// Reads a trace in any of the [formats](Format).
    ///
    /// # Errors
    ///
    /// [`TraceError`]: unreadable, wrong rows with their lines, no rows.
    pub fn read(mut input: impl BufRead, bad_rows: BadRows) -> Result<Self, TraceError> {
        let mut reading = Reading::default();
        let mut line = Vec::new();
        let mut number = 0u64;
        loop {
            line.clear();
            if input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            number += 1;
            if line.len() as u64 > LINE_BYTES_MAX {
                let message = format!("line {number} is longer than {} MiB", LINE_BYTES_MAX >> 20);
                return Err(io::Error::other(message).into());
            }
            let text = str::from_utf8(&line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let text = if number == 1 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            if let Err(what) = reading.line(text) {
                reading.wrong += 1;
                if reading.told.len() < TOLD_MAX {
                    reading.told.push(format!("line {number}: {what}"));
                }
            }
        }
        reading.finish(bad_rows)
    }
}

/// What was read so far.
#[derive(Default)]
struct Reading {
    format: Option<Format>,
    rows: Vec<TraceTurn>,
    /// Of each row, where a session may have several.
    session_of: Vec<u32>,
    /// Looked up, never walked: the order of sessions is the file's.
    number_of: HashMap<u64, u32>,
    sessions: u32,
    arrivals: Vec<f64>,
    /// The first timestamp.
    origin: Option<i64>,
    blocks: Vec<u64>,
    block_ends: Vec<usize>,
    told: Vec<String>,
    wrong: u64,
}

impl Reading {
    fn line(&mut self, text: &str) -> Result<(), String> {
        let format = match self.format {
            Some(format) => format,
            None => {
                let format = *self.format.insert(Format::of(text));
                if format.has_header(text) {
                    return Ok(());
                }
                format
            }
        };
        let Row { session: name, turn, at, blocks } = format.row(text)?;
        if self.rows.len() >= u32::MAX as usize {
            return Err(format!("a trace has at most {} rows", u32::MAX));
        }
        let known = name.and_then(|name| self.number_of.get(&name).copied());
        let session = match known {
            Some(session) => session,
            None => {
                let arrival = self.arrival(format, at)?;
                self.arrivals.extend(arrival);
                self.sessions += 1;
                self.sessions - 1
            }
        };
        if let Some(name) = name {
            self.number_of.insert(name, session);
            self.session_of.push(session);
        }
        self.rows.push(turn);
        if format == Format::Mooncake {
            self.blocks.extend(blocks);
            self.block_ends.push(self.blocks.len());
        }
        Ok(())
    }

    /// When a session that begins here came.
    fn arrival(&mut self, format: Format, at: At) -> Result<Option<f64>, String> {
        let first = self.sessions == 0;
        let timed = !self.arrivals.is_empty();
        let time = match at {
            At::Nothing if first || !timed => return Ok(None),
            At::Nothing => return Err("no `at`, and the sessions above have one".into()),
            At::Empty => return Err("`at` is empty in the first row of its session".into()),
            At::Time(_) if !first && !timed => return Err("`at` is given, and the sessions above have none".into()),
            At::Time(time) => time,
            At::Ticks(ticks) => (ticks - *self.origin.get_or_insert(ticks)) as f64 / format.ticks(),
        };
        match self.arrivals.last() {
            Some(&last) if time < last => {
                Err(format!("it arrives {} before the session above: sort the file by time", last - time))
            }
            _ => Ok(Some(time)),
        }
    }

    fn finish(self, bad_rows: BadRows) -> Result<TraceFile, TraceError> {
        if self.wrong > 0 && bad_rows == BadRows::Refuse {
            let more = self.wrong - self.told.len() as u64;
            return Err(TraceError::Wrong { first: self.told, more });
        }
        let Some(format) = self.format.filter(|_| !self.rows.is_empty()) else {
            return Err(TraceError::Empty);
        };
        let (starts, order) = match format {
            Format::Turns => by_session(&self.session_of, self.sessions),
            Format::Mooncake | Format::Azure => ((0..=self.sessions).collect(), Vec::new()),
        };
        Ok(TraceFile {
            rows: self.rows,
            starts,
            order,
            arrivals: self.arrivals,
            blocks: self.blocks,
            block_ends: self.block_ends,
            format,
            skipped: self.wrong,
        })
    }
}

/// Where each session's turns begin, and which row each turn is; no rows where that is the file's order.
fn by_session(session_of: &[u32], sessions: u32) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; sessions as usize + 1];
    for &session in session_of {
        starts[session as usize + 1] += 1;
    }
    for session in 0..sessions as usize {
        starts[session + 1] += starts[session];
    }
    if session_of.is_sorted() {
        return (starts, Vec::new());
    }
    let mut next = starts.clone();
    let mut order = vec![0u32; session_of.len()];
    for (row, &session) in session_of.iter().enumerate() {
        let at = &mut next[session as usize];
        order[*at as usize] = row as u32;
        *at += 1;
    }
    (starts, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TraceFile, String> {
        TraceFile::read(text.as_bytes(), BadRows::Refuse).map_err(|error| error.to_string())
    }

    fn sessions(trace: &TraceFile) -> Vec<Vec<[f64; 4]>> {
        let turn = |session, turn| {
            let TraceTurn { new, out, think, forced } = trace.turn(session, turn).unwrap();
            [new, out, think, forced]
        };
        (0..trace.sessions())
            .map(|session| (0..u64::from(trace.turns(session))).map(|at| turn(session, at)).collect())
            .collect()
    }

    #[test]
    fn sessions_are_numbered_by_their_first_row_and_keep_file_order() {
        let text =
            "session,turn,new,out,think,forced\r\n# note\r\n\r\n9,1,10,2,0.5\r\n4, 1, 7,1,0,1\r\n9,2,3,4,1e2\r\n";
        let trace = read(text).unwrap();
        assert_eq!(
            sessions(&trace),
            vec![vec![[10.0, 2.0, 0.5, 0.0], [3.0, 4.0, 100.0, 0.0]], vec![[7.0, 1.0, 0.0, 1.0]]]
        );
        assert_eq!((trace.arrivals(), trace.block(), trace.turn(1, 1)), (None, None, None));
    }

    #[test]
    fn the_header_may_be_absent() {
        assert_eq!(sessions(&read("0,1,5,6,7").unwrap()), vec![vec![[5.0, 6.0, 7.0, 0.0]]]);
    }

    #[test]
    fn a_session_arrives_with_its_first_row() {
        let trace = read(
            "session,turn,new,out,think,forced,at\n5,1,1,1,0,0,2.5\n6,1,1,1,0,0,2.5\n5,2,1,1,0,0,\n7,1,1,1,0,0,9\n",
        );
        assert_eq!(trace.unwrap().arrivals(), Some(&[2.5, 2.5, 9.0][..]));
    }

    #[test]
    fn mooncake_rows_are_sessions_of_one_turn_with_blocks() {
        let text = "\
            {\"timestamp\": 1000, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [7, 8, 9]}\n\
            {\"timestamp\": 1000, \"input_length\": 0, \"output_length\": 1, \"hash_ids\": []}\n\
            {\"timestamp\": 1001, \"input_length\": 512, \"output_length\": 2, \"type\": \"chat\", \"hash_ids\": [7]}\n";
        let trace = read(text).unwrap();
        assert_eq!(trace.format(), Format::Mooncake);
        assert_eq!(trace.arrivals(), Some(&[0.0, 0.0, 0.001][..]));
        assert_eq!(trace.block(), Some(512.0));
        assert_eq!(sessions(&trace)[0], [[1300.0, 5.0, 0.0, 0.0]]);
        let blocks: Vec<&[u64]> = (0..3).map(|session| trace.blocks(session, 0)).collect();
        assert_eq!(blocks, [&[7, 8, 9][..], &[], &[7]]);
        assert_eq!(trace.blocks(0, 1), &[] as &[u64]);
    }

    #[test]
    fn azure_rows_are_sessions_of_one_turn() {
        let rows = "2023-11-16 23:59:59.9000000,374,44\r\n2023-11-17 00:00:00.1234567,396,109\r\n";
        for text in [rows.to_owned(), format!("TIMESTAMP,ContextTokens,GeneratedTokens\r\n{rows}")] {
            let trace = read(&text).unwrap();
            assert_eq!((trace.format(), trace.block()), (Format::Azure, None));
            assert_eq!(trace.arrivals(), Some(&[0.0, 0.223_456_7][..]));
            assert_eq!(sessions(&trace), vec![vec![[374.0, 44.0, 0.0, 0.0]], vec![[396.0, 109.0, 0.0, 0.0]]]);
        }
    }

    #[test]
    fn a_wrong_row_is_named_by_its_line() {
        let row = "a row is `session,turn,new,out,think[,forced[,at]]`";
        let none = "no rows: a trace has lines of `session,turn,new,out,think[,forced[,at]]`";
        for (text, error) in [
            ("session,turn,new,out,think\n0,1,-5,6,7", "line 2: `new` is -5, it must be finite and not negative"),
            ("0,1,5,inf,7", "line 1: `out` is inf, it must be finite and not negative"),
            ("\n\n0,1,5,6,nan", "line 3: `think` is nan, it must be finite and not negative"),
            ("0,1,5,6,1e999", "line 1: `think` is 1e999, it must be finite and not negative"),
            ("0,1,x,6,7", "line 1: `new` is `x`, not a number"),
            ("0,1,5,6", &format!("line 1: 4 columns, {row}")),
            ("0", &format!("line 1: 1 column, {row}")),
            ("0,1,5,6,7,8,9,0", &format!("line 1: 8 columns, {row}")),
            ("0,1,,6,7", "line 1: `new` is ``, not a number"),
            ("a,b,c,d,e\n0,1,5,6,7", "line 1: `session` is `a`, not a number"),
            ("turn,session,new,out,think\n1,0,5,6,7", "line 1: `session` is `turn`, not a number"),
            ("0;1;5;6;7\n0,1,5,6,7", &format!("line 1: 1 column, {row}")),
            ("0,1,5,6,7,0,x", "line 1: `at` is `x`, not a number"),
            ("0,1,5,6,7,0,", "line 1: `at` is empty in the first row of its session"),
            ("0,1,5,6,7\n1,1,5,6,7,0,3", "line 2: `at` is given, and the sessions above have none"),
            ("0,1,5,6,7,0,3\n1,1,5,6,7", "line 2: no `at`, and the sessions above have one"),
            (
                "0,1,5,6,7,0,3\n1,1,5,6,7,0,2.5",
                "line 2: it arrives 0.5 before the session above: sort the file by time",
            ),
            ("", none),
            ("session,turn,new,out,think\n", none),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", none),
            (
                "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3",
                "line 2: `TIMESTAMP` is `1`, not a time such as `2023-11-16 18:15:46.6805900`",
            ),
            ("2023-11-16 18:15:46,3", &format!("line 1: 2 columns, {row}")),
            (
                "2023-11-16 18:15:46,3,4\n2023-11-16 18:15:46,3",
                "line 2: 2 columns, a row is `TIMESTAMP,ContextTokens,GeneratedTokens`",
            ),
            (
                "2023-11-16 18:15:46,3,4\n2023-11-16 18:15:44,3,4",
                "line 2: it arrives 2 before the session above: sort the file by time",
            ),
            ("{\"timestamp\": 1}", "line 1: column 16: missing field `input_length`"),
            ("{\"timestamp\": 1, ", "line 1: column 16: EOF while parsing a value"),
            (
                "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}",
                "line 1: `timestamp` is -1, it must be finite and not negative",
            ),
            (
                "{\"timestamp\": 1e16, \"input_length\": 1, \"output_length\": 1}",
                "line 1: `timestamp` is 10000000000000000, milliseconds are meant",
            ),
            (
                "{\"timestamp\": 1, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2]}",
                "line 1: `hash_ids` has 2 blocks of 512 tokens, and `input_length` is 512",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), error, "{text:?}");
        }
    }

    #[test]
    fn ten_wrong_rows_are_told_and_all_are_counted_or_skipped() {
        let text: String = (0..24).map(|at| if at % 2 == 0 { "0,1,5,6,7\n" } else { "0,1,5,6,x\n" }).collect();
        let error = read(&text).unwrap_err();
        assert!(error.starts_with("12 rows are wrong\n  line 2: `think` is `x`, not a number\n"), "{error}");
        assert!(error.ends_with("  line 20: `think` is `x`, not a number\n  and 2 more"), "{error}");
        let trace = TraceFile::read(text.as_bytes(), BadRows::Skip).unwrap();
        assert_eq!((trace.skipped(), trace.rows(), trace.turns(0)), (12, 12, 12));
        assert!(matches!(TraceFile::read(&b"x\ny\n"[..], BadRows::Skip), Err(TraceError::Empty)));
    }

    /// A wrong first row of a session leaves the session to its next row.
    #[test]
    fn a_skipped_row_leaves_nothing() {
        let text = "\
            {\"timestamp\": 500, \"input_length\": 1, \"output_length\": 5, \"hash_ids\": [1, 2]}\n\
            {\"timestamp\": 2000, \"input_length\": 900, \"output_length\": 5, \"hash_ids\": [3, 4]}\n\
            {\"timestamp\": 1000, \"input_length\": 900, \"output_length\": 5, \"hash_ids\": [5, 6]}\n\
            {\"timestamp\": 4000, \"input_length\": 900, \"output_length\": 5, \"hash_ids\": [3, 8]}\n";
        let trace = TraceFile::read(text.as_bytes(), BadRows::Skip).unwrap();
        assert_eq!((trace.skipped(), trace.sessions()), (2, 2));
        assert_eq!(trace.arrivals(), Some(&[0.0, 2.0][..]));
        assert_eq!((trace.blocks(0, 0), trace.blocks(1, 0)), (&[3, 4][..], &[3, 8][..]));
    }

    #[test]
    fn what_is_no_text_or_has_no_line_ends_is_refused() {
        let kind = |bytes: &[u8]| match TraceFile::read(bytes, BadRows::Skip) {
            Err(TraceError::Unreadable(error)) => error.kind(),
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(b"0,1,5,6,7\n\xff\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&vec![b'1'; LINE_BYTES_MAX as usize + 1]), io::ErrorKind::Other);
    }
}
