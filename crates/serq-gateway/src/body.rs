//! A request's JSON, read field by field.
//!
//! Each reader names the field it refuses, says what is there and what would do. `null` is as
//! good as nothing: clients write it for what they leave out.

use std::fmt::Display;
use std::ops::RangeInclusive;

use hyper::StatusCode;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// The JSON object of a request.
pub(crate) struct Body {
    fields: Map<String, Value>,
}

impl Body {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Body, ApiError> {
        let invalid = |why: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", why);
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Body { fields }),
            Ok(other) => Err(invalid(format!("the body must be a JSON object, not {}", kind(&other)))),
            Err(error) => Err(invalid(format!("the body is not JSON: {error}"))),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.get(name).map(|value| integer(name, value, range)).transpose()
    }

    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        self.get(name).map(|value| number(name, value, range)).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(wrong_type(name, "true or false", value)),
        }
    }
}

pub(crate) fn integer(name: &str, value: &Value, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    match value.as_i64() {
        Some(integer) if range.contains(&integer) => Ok(integer),
        _ if value.is_i64() || value.is_u64() => Err(out_of_range(name, value, range.start(), range.end())),
        _ => Err(wrong_type(name, "an integer", value)),
    }
}

pub(crate) fn number(name: &str, value: &Value, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
    match value.as_f64() {
        // Narrowing a number in a range of plain bounds keeps it there.
        Some(number) if range.contains(&number) => Ok(number as f32),
        Some(_) => Err(out_of_range(name, value, range.start(), range.end())),
        None => Err(wrong_type(name, "a number", value)),
    }
}

pub(crate) fn list<'a>(name: &str, value: &'a Value, most: usize) -> Result<&'a [Value], ApiError> {
    let Value::Array(list) = value else { return Err(wrong_type(name, "a list", value)) };
    if list.len() > most {
        let message = format!("`{name}` has {} entries, but may have at most {most}", list.len());
        return Err(ApiError::field("invalid_value", name, message));
    }
    Ok(list)
}

pub(crate) fn missing(name: &str) -> ApiError {
    ApiError::field("missing_required_parameter", name, format!("`{name}` is missing"))
}

pub(crate) fn wrong_type(name: &str, expected: &str, value: &Value) -> ApiError {
    ApiError::field("invalid_type", name, format!("`{name}` must be {expected}, not {}", kind(value)))
}

pub(crate) fn out_of_range(name: &str, value: impl Display, low: impl Display, high: impl Display) -> ApiError {
    ApiError::field("invalid_value", name, format!("`{name}` is {value}, but must be from {low} to {high}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a decimal number",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
