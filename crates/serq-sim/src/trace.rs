//! A trace of sessions: what each turn brings.
//!
//! ```text
//!   session,turn,new,out,think,forced      header: may be absent, columns go by place
//!   # the morning's chats                  skipped, like a blank line
//!   7,1,120,40,3.5                         forced is 0
//!   7,2,60,25,0,1
//! ```
//!
//! Rows of one session need not stand together; its turns are in file order, and
//! sessions are numbered by their first row.

use std::collections::HashMap;

/// Sessions in order of their first row; each its turns in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceFile {
    /// Per session, per turn.
    pub sessions: Vec<Vec<TraceTurn>>,
}

/// One row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceTurn {
    /// New prompt tokens.
    pub new: f64,
    /// Output tokens.
    pub out: f64,
    /// Think time after the answer.
    pub think: f64,
    /// Sixth column; 0 when absent.
    pub forced: f64,
}

/// Column names, for messages.
const COLUMNS: [&str; 6] = ["session", "turn", "new", "out", "think", "forced"];

impl TraceFile {
    /// Reads `session,turn,new,out,think[,forced]` rows.
    ///
    /// The header `session,turn,new,out,think[,forced]` may come first, columns go by place, blank lines and `#` lines are skipped.
    ///
    /// # Errors
    ///
    /// One sentence with the line number: wrong column count, not a number, negative or not finite,
    /// no rows.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut sessions: Vec<Vec<TraceTurn>> = Vec::new();
        // Looked up, never walked: the order of sessions is the file's.
        let mut number_of: HashMap<u64, usize> = HashMap::new();
        let mut header_may_come = true;
        for (line, row) in text.lines().enumerate() {
            let (line, row) = (line + 1, row.trim());
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = row.split(',').map(str::trim).collect();
            // Columns go by place, so a header in another order is a mistake, not a header.
            let named = fields.iter().zip(COLUMNS).all(|(field, name)| field.eq_ignore_ascii_case(name));
            let is_header = header_may_come && named && (5..=6).contains(&fields.len());
            header_may_come = false;
            if is_header {
                continue;
            }
            let values = numbers(&fields).map_err(|what| format!("line {line}: {what}"))?;
            let [session, _, new, out, think, forced] = values;
            let number = *number_of.entry(session.to_bits()).or_insert_with(|| {
                sessions.push(Vec::new());
                sessions.len() - 1
            });
            sessions[number].push(TraceTurn { new, out, think, forced });
        }
        if sessions.is_empty() {
            return Err("no rows: a trace has lines of `session,turn,new,out,think[,forced]`".into());
        }
        Ok(Self { sessions })
    }
}

fn numbers(fields: &[&str]) -> Result<[f64; 6], String> {
    if !(5..=6).contains(&fields.len()) {
        let columns = if fields.len() == 1 { "column" } else { "columns" };
        return Err(format!("{} {columns}, a row is `session,turn,new,out,think[,forced]`", fields.len()));
    }
    let mut values = [0.0; 6];
    for (place, field) in fields.iter().enumerate() {
        let name = COLUMNS[place];
        let value: f64 = field.parse().map_err(|_| format!("`{name}` is `{field}`, not a number"))?;
        if !value.is_finite() || value < 0.0 {
            return Err(format!("`{name}` is {field}, it must be finite and not negative"));
        }
        // -0 and 0 are one session.
        values[place] = value + 0.0;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(new: f64, out: f64, think: f64, forced: f64) -> TraceTurn {
        TraceTurn { new, out, think, forced }
    }

    #[test]
    fn sessions_are_numbered_by_their_first_row_and_keep_file_order() {
        let text =
            "session,turn,new,out,think,forced\r\n# note\r\n\r\n9,1,10,2,0.5\r\n4, 1, 7,1,0,1\r\n9,2,3,4,1e2\r\n";
        let trace = TraceFile::parse(text).unwrap();
        assert_eq!(
            trace.sessions,
            vec![vec![turn(10.0, 2.0, 0.5, 0.0), turn(3.0, 4.0, 100.0, 0.0)], vec![turn(7.0, 1.0, 0.0, 1.0)]]
        );
    }

    #[test]
    fn the_header_may_be_absent() {
        assert_eq!(TraceFile::parse("0,1,5,6,7").unwrap().sessions, vec![vec![turn(5.0, 6.0, 7.0, 0.0)]]);
    }

    #[test]
    fn a_wrong_row_is_named_by_its_line() {
        for (text, error) in [
            ("session,turn,new,out,think\n0,1,-5,6,7", "line 2: `new` is -5, it must be finite and not negative"),
            ("0,1,5,inf,7", "line 1: `out` is inf, it must be finite and not negative"),
            ("\n\n0,1,5,6,nan", "line 3: `think` is nan, it must be finite and not negative"),
            ("0,1,5,6,1e999", "line 1: `think` is 1e999, it must be finite and not negative"),
            ("0,1,x,6,7", "line 1: `new` is `x`, not a number"),
            ("0,1,5,6", "line 1: 4 columns, a row is `session,turn,new,out,think[,forced]`"),
            ("0", "line 1: 1 column, a row is `session,turn,new,out,think[,forced]`"),
            ("0,1,5,6,7,8,9", "line 1: 7 columns, a row is `session,turn,new,out,think[,forced]`"),
            ("0,1,,6,7", "line 1: `new` is ``, not a number"),
            ("a,b,c,d,e\n0,1,5,6,7", "line 1: `session` is `a`, not a number"),
            ("turn,session,new,out,think\n1,0,5,6,7", "line 1: `session` is `turn`, not a number"),
            ("0;1;5;6;7\n0,1,5,6,7", "line 1: 1 column, a row is `session,turn,new,out,think[,forced]`"),
            ("", "no rows: a trace has lines of `session,turn,new,out,think[,forced]`"),
            ("session,turn,new,out,think\n", "no rows: a trace has lines of `session,turn,new,out,think[,forced]`"),
        ] {
            assert_eq!(TraceFile::parse(text).unwrap_err(), error, "{text:?}");
        }
    }
}
