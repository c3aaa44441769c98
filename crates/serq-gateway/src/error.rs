//! Errors as OpenAI's clients read them.
//!
//! ```json
//! {"error": {"message": "…", "type": "invalid_request_error", "param": "top_p", "code": "invalid_value"}}
//! ```
//!
//! The message is one sentence. `type` follows from the status; `code` is stable and listed in
//! `docs/gateway.md`; `param` is the field to be changed, where it is one.

use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;

use crate::backend::Refusal;
use crate::service::short;

/// An answer that is an error.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
    /// For the header of that name.
    pub(crate) allow: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, code, param: None, message: message.into(), retry_after: None, allow: None }
    }

    /// A field that must be changed.
    pub(crate) fn field(code: &'static str, param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = ApiError::new(StatusCode::BAD_REQUEST, code, message);
        ApiError { param: Some(param.into()), ..error }
    }

    pub(crate) fn model_not_found(name: &str) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", format!("no model is named `{}`", short(name)))
    }

    /// A failure of ours.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// As JSON, for a body or an event of a stream.
    pub(crate) fn json(&self) -> Vec<u8> {
        let error = Inner { message: &self.message, kind: self.kind(), param: self.param.as_deref(), code: self.code };
        serde_json::to_vec(&Outer { error }).expect("strings are JSON")
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid { param, message } => {
                ApiError { param, ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
            }
            Refusal::Full { retry_after, message } => ApiError {
                retry_after: Some(retry_after),
                ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            },
            Refusal::Unavailable(message) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            }
            Refusal::Failed(message) => ApiError::internal(message),
        }
    }
}

#[derive(Serialize)]
struct Outer<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: &'static str,
}
