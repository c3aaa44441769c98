//! JSON as Python's `json.dumps` writes it.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// A value as JSON; `indent` spreads it over lines.
pub(super) fn json(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // The others change no byte of what templates write.
    for other in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = options.get(other)?;
    }
    options.assert_all_used()?;
    let mut bytes = Vec::new();
    let written = match indent {
        Some(indent) => {
            let spaces = vec![b' '; indent.min(16)];
            value.serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(&spaces)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let text = String::from_utf8(bytes).expect("JSON is text");
    Ok(Value::from_safe_string(text))
}

/// On one line, with a space after each comma and colon.
struct Spaced;

impl Spaced {
    fn comma<W: ?Sized + Write>(writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
}

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        Self::comma(writer, first)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        Self::comma(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
