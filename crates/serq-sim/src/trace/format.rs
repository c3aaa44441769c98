//! One row of each format: text to numbers, or what is wrong with it.
//!
//! ```text
//!   session,turn,new,out,think,forced,at     header: may be absent, columns go by place
//!   # the morning's chats                    skipped, like a blank line
//!   7,1,120,40,3.5                           forced is 0; no arrival time
//!   7,1,120,40,3.5,0,12.25                   with one, in clock units
//!
//!   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}
//!
//!   TIMESTAMP,ContextTokens,GeneratedTokens
//!   2023-11-16 18:15:46.6805900,374,44
//! ```
//!
//! Timestamps are whole ticks (of a microsecond in Mooncake's, of 100 ns in Azure's), so that
//! the difference of two is exact and is rounded once, when it becomes seconds.
//!
//! The formats are those of the traces released with Mooncake [Qin FAST'25] and
//! Splitwise [Patel ISCA'24].

use serde::Deserialize;

use super::{Format, MOONCAKE_BLOCK, TraceTurn};

/// Column names, for headers and messages.
const TURNS: [&str; 7] = ["session", "turn", "new", "out", "think", "forced", "at"];
const AZURE: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
const TURNS_ROW: &str = "a row is `session,turn,new,out,think[,forced[,at]]`";
const AZURE_ROW: &str = "a row is `TIMESTAMP,ContextTokens,GeneratedTokens`";

/// Ticks of a second.
const MOONCAKE_TICKS: f64 = 1e6;
const AZURE_TICKS: f64 = 1e7;
/// 285 years of microseconds; a double has every whole number up to here.
const MOONCAKE_TICKS_MAX: f64 = 9_007_199_254_740_992.0;

/// A row as it stands.
pub(super) struct Row {
    /// The session's number in the file; `None`: a row is a session.
    pub(super) session: Option<u64>,
    pub(super) turn: TraceTurn,
    pub(super) at: At,
    pub(super) blocks: Vec<u64>,
}

/// When a row's session came.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum At {
    /// There is no such column.
    Nothing,
    /// The column is there and empty.
    Empty,
    /// In clock units.
    Time(f64),
    /// A timestamp in ticks.
    Ticks(i64),
}

impl Format {
    /// The format of a file whose first row this is.
    pub(super) fn of(first: &str) -> Self {
        if first.starts_with('{') {
            return Self::Mooncake;
        }
        let fields = fields(first);
        let stamped = fields.len() == AZURE.len() && ticks(fields[0]).is_some();
        if stamped || is_header(&fields, &AZURE, AZURE.len()) { Self::Azure } else { Self::Turns }
    }

    /// Whether a first row names the columns.
    pub(super) fn has_header(self, first: &str) -> bool {
        match self {
            Self::Turns => is_header(&fields(first), &TURNS, 5),
            Self::Azure => is_header(&fields(first), &AZURE, AZURE.len()),
            Self::Mooncake => false,
        }
    }

    /// Reads a row.
    pub(super) fn row(self, text: &str) -> Result<Row, String> {
        match self {
            Self::Turns => turns_row(&fields(text)),
            Self::Azure => azure_row(&fields(text)),
            Self::Mooncake => mooncake_row(text),
        }
    }

    /// Ticks of a second.
    pub(super) fn ticks(self) -> f64 {
        if self == Self::Mooncake { MOONCAKE_TICKS } else { AZURE_TICKS }
    }
}

fn fields(row: &str) -> Vec<&str> {
    row.split(',').map(str::trim).collect()
}

/// Columns go by place, so a header in another order is a mistake, not a header.
fn is_header(fields: &[&str], names: &[&str], least: usize) -> bool {
    (least..=names.len()).contains(&fields.len())
        && fields.iter().zip(names).all(|(field, name)| field.eq_ignore_ascii_case(name))
}

fn turns_row(fields: &[&str]) -> Result<Row, String> {
    if !(5..=7).contains(&fields.len()) {
        return Err(format!("{}, {TURNS_ROW}", columns(fields.len())));
    }
    let mut values = [0.0; 7];
    for (place, field) in fields.iter().enumerate() {
        // A session arrives once: its later turns need no time.
        if place < 6 || !field.is_empty() {
            values[place] = amount(TURNS[place], field)?;
        }
    }
    let [session, _, new, out, think, forced, at] = values;
    let at = match fields.get(6) {
        None => At::Nothing,
        Some(&"") => At::Empty,
        Some(_) => At::Time(at),
    };
    let turn = TraceTurn { new, out, think, forced };
    Ok(Row { session: Some(session.to_bits()), turn, at, blocks: Vec::new() })
}

fn azure_row(fields: &[&str]) -> Result<Row, String> {
    let [time, input, output] = fields else {
        return Err(format!("{}, {AZURE_ROW}", columns(fields.len())));
    };
    let ticks = ticks(time)
        .ok_or_else(|| format!("`TIMESTAMP` is `{time}`, not a time such as `2023-11-16 18:15:46.6805900`"))?;
    let turn = TraceTurn { new: amount(AZURE[1], input)?, out: amount(AZURE[2], output)?, ..TraceTurn::default() };
    Ok(Row { session: None, turn, at: At::Ticks(ticks), blocks: Vec::new() })
}

/// Other fields are not read.
#[derive(Deserialize)]
struct MooncakeRow {
    timestamp: f64,
    input_length: f64,
    output_length: f64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

fn mooncake_row(text: &str) -> Result<Row, String> {
    let row: MooncakeRow = serde_json::from_str(text).map_err(|error| {
        let all = error.to_string();
        let what = all.split(" at line ").next().unwrap_or(&all);
        format!("column {}: {what}", error.column())
    })?;
    let ticks = (finite("timestamp", row.timestamp)? * (MOONCAKE_TICKS / 1e3)).round();
    if ticks > MOONCAKE_TICKS_MAX {
        return Err(format!("`timestamp` is {}, milliseconds are meant", row.timestamp));
    }
    let (new, out) = (finite("input_length", row.input_length)?, finite("output_length", row.output_length)?);
    let blocks = row.hash_ids;
    if blocks.len() as f64 > (new / MOONCAKE_BLOCK).ceil() {
        return Err(format!(
            "`hash_ids` has {} blocks of {MOONCAKE_BLOCK} tokens, and `input_length` is {new}",
            blocks.len()
        ));
    }
    let turn = TraceTurn { new, out, ..TraceTurn::default() };
    Ok(Row { session: None, turn, at: At::Ticks(ticks as i64), blocks })
}

fn columns(count: usize) -> String {
    format!("{count} {}", if count == 1 { "column" } else { "columns" })
}

fn amount(name: &str, field: &str) -> Result<f64, String> {
    let value: f64 = field.parse().map_err(|_| format!("`{name}` is `{field}`, not a number"))?;
    if !value.is_finite() || value < 0.0 {
        return Err(format!("`{name}` is {field}, it must be finite and not negative"));
    }
    // -0 and 0 are one session.
    Ok(value + 0.0)
}

fn finite(name: &str, value: f64) -> Result<f64, String> {
    if !value.is_finite() || value < 0.0 {
        return Err(format!("`{name}` is {value}, it must be finite and not negative"));
    }
    Ok(value + 0.0)
}

/// `2023-11-16 18:15:46[.6805900][Z or +hh:mm]` in ticks of 100 ns from 1970; a `T` may stand for the space.
fn ticks(text: &str) -> Option<i64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-')?;
    let zone = time.find(['Z', '+', '-']).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':')?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let stands = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=month_days[month as usize - 1]).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !stands || fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let years = year - 1;
    let leaps_before = years / 4 - years / 100 + years / 400;
    // 719 162 days from the first of year 1 to that of 1970.
    let days = years * 365 + leaps_before - 719_162 + month_days[..month as usize - 1].iter().sum::<i64>() + day - 1;
    // A digit behind the seventh is below a tick.
    let fraction: i64 = format!("{fraction:0<7.7}").parse().ok()?;
    let offset = match zone {
        "" | "Z" => 0,
        _ => {
            let [hours, minutes] = numbers(&zone[1..], ':')?;
            if hours >= 24 || minutes >= 60 {
                return None;
            }
            (hours * 60 + minutes) * if zone.starts_with('-') { -1 } else { 1 }
        }
    };
    let seconds = ((days * 24 + hour) * 60 + minute - offset) * 60 + second;
    Some(seconds * AZURE_TICKS as i64 + fraction)
}

/// So many numbers of a few digits.
fn numbers<const N: usize>(text: &str, sign: char) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    let mut fields = text.split(sign);
    for number in &mut numbers {
        let field = fields.next()?;
        if field.is_empty() || field.len() > 4 || !field.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = field.parse().ok()?;
    }
    fields.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_ticks_from_1970() {
        for (text, seconds, fraction) in [
            ("1970-01-01 00:00:00", 0, 0),
            ("1972-03-01 00:00:01.5", 68_256_001, 5_000_000),
            ("2000-02-29 23:59:59.0000001", 951_868_799, 1),
            ("2023-11-16 18:15:46.6805900", 1_700_158_546, 6_805_900),
            ("2023-11-16T18:15:46.68059009Z", 1_700_158_546, 6_805_900),
            ("2023-11-16 20:15:46.6805900+02:00", 1_700_158_546, 6_805_900),
            ("2023-11-16 16:45:46.6805900-01:30", 1_700_158_546, 6_805_900),
        ] {
            assert_eq!(ticks(text), Some(seconds * 10_000_000 + fraction), "{text}");
        }
        for wrong in [
            "",
            "2023-11-16",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-00-01 00:00:00",
            "2023-01-00 00:00:00",
            "1969-12-31 23:59:59",
            "2023-11-16 24:00:00",
            "2023-11-16 18:15",
            "2023-11-16 18:15:46.",
            "2023-11-16 18:15:46.5é",
            "2023-11-16 18:15:46+2",
            "2023-11-16 18:15:46Z5",
            "2023-11-16 18:15:46 ",
            "99999-01-01 00:00:00",
            "12,5",
        ] {
            assert_eq!(ticks(wrong), None, "{wrong}");
        }
    }
}
