//! JSON at the border: numbers that may be infinite, printing, reading back.
//!
//! JSON has no infinity, so an infinite constant is the string `"inf"` or `"-inf"`.
//! Everything finite is a JSON number that reads back to the same double.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::program::{IR_VERSION, Program};

/// A double that is never NaN.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Number(pub f64);

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self(value)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == f64::INFINITY {
            serializer.serialize_str("inf")
        } else if self.0 == f64::NEG_INFINITY {
            serializer.serialize_str("-inf")
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"inf\" or \"-inf\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Number, E> {
                match value {
                    "inf" => Ok(Number(f64::INFINITY)),
                    "-inf" => Ok(Number(f64::NEG_INFINITY)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Number {
    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number" }, { "enum": ["inf", "-inf"] }] })
    }
}

/// The program as indented JSON.
pub fn print(program: &Program) -> String {
    let mut text = serde_json::to_string_pretty(program).expect("a program has only JSON's types");
    text.push('\n');
    text
}

/// Reads a printed program back and verifies it.
///
/// # Errors
///
/// One sentence: not JSON, not this IR's shape (with line and column), another
/// version, or a program [`crate::verify::verify`] refuses.
pub fn read(text: &str) -> Result<Program, String> {
    #[derive(Deserialize)]
    struct Version {
        ir_version: u32,
    }
    let version: Version = serde_json::from_str(text).map_err(|e| format!("not a serq IR: {e}"))?;
    if version.ir_version != IR_VERSION {
        return Err(format!("IR version {}, this serq reads version {IR_VERSION}", version.ir_version));
    }
    if depth(text) > JSON_DEPTH_MAX {
        return Err(format!("not a serq IR: nested more than {JSON_DEPTH_MAX} deep"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let program = Program::deserialize(&mut reader)
        .and_then(|program| reader.end().map(|()| program))
        .map_err(|e| format!("not a serq IR: {e}"))?;
    crate::verify::verify(&program)?;
    Ok(program)
}

/// Deepest nesting of JSON that is read. A program at [`crate::program::DEPTH_MAX`] has
/// four levels a block and two a node of an expression, 1,200.
const JSON_DEPTH_MAX: usize = 2_048;

/// How deep brackets and braces nest, those in strings left out.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => _ = bytes.next(),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

/// The JSON Schema of [`Program`], as shipped in `docs/ir.schema.json`.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Program);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    text.push('\n');
    text
}
