//! Paths of requests.

use crate::parameters::Endpoint;

/// Where a request goes to.
pub(crate) enum Route {
    Generate(Endpoint),
    Models,
    Model(String),
    Health,
    Metrics,
    Unknown(String),
}

impl Route {
    pub(crate) fn of(path: &str) -> Route {
        match path {
            "/v1/chat/completions" => Route::Generate(Endpoint::Chat),
            "/v1/completions" => Route::Generate(Endpoint::Completions),
            "/v1/models" => Route::Models,
            "/health" => Route::Health,
            "/metrics" => Route::Metrics,
            _ => match path.strip_prefix("/v1/models/").filter(|id| !id.is_empty()) {
                Some(id) => Route::Model(percent_decoded(id)),
                None => Route::Unknown(path.to_owned()),
            },
        }
    }

    /// For the metrics: clients can't add to these.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Route::Generate(Endpoint::Chat) => "/v1/chat/completions",
            Route::Generate(Endpoint::Completions) => "/v1/completions",
            Route::Models => "/v1/models",
            Route::Model(_) => "/v1/models/{id}",
            Route::Health => "/health",
            Route::Metrics => "/metrics",
            Route::Unknown(_) => "other",
        }
    }
}

/// `%2F` is how clients write the slash of a model's name. What isn't an escape stays as it is.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = |tail: &[u8]| u8::from_str_radix(std::str::from_utf8(tail.get(..2)?).ok()?, 16).ok();
        match escaped(tail) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
