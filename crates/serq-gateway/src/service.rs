//! From one HTTP request to its response.
//!
//! ```text
//!   head ─▶ path, method, media type ─▶ body ─▶ parameters ─▶ token ids ─▶ backend ─▶ answer
//!             404     405      415       413      400            400      429, 503
//! ```
//!
//! The future of a response is dropped when the client goes away, and so is a body: either has
//! the generation in it, which is thereby cancelled.

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use crate::Options;
use crate::answer::Head;
use crate::backend::{self, Backend, FinishReason, Model, Piece};
use crate::body::Body;
use crate::error::ApiError;
use crate::generation::{Generation, Step};
use crate::metrics::Metrics;
use crate::parameters::{Endpoint, Parameters};
use crate::path::Route;
use crate::response::{self, JSON, ResponseBody};
use crate::stream::EventStream;

/// A body too large is read on up to so many times the limit, so that the client, which doesn't
/// listen while it sends, gets to read why.
const OVERSIZE: usize = 8;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const OBSERVE: HeaderName = HeaderName::from_static("x-serq-observe");

/// What all connections share.
pub(crate) struct Service<B> {
    backend: Arc<B>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    draining: AtomicBool,
    /// Ids are this and a running number.
    process: u64,
    requests: AtomicU64,
}

/// Of a request, what is known from its head.
struct Arrival {
    began: Instant,
    /// The client's id, or ours.
    id: String,
    observe: bool,
}

impl<B: Backend> Service<B> {
    pub(crate) fn new(backend: Arc<B>, options: Options) -> Self {
        Service {
            backend,
            options,
            metrics: Arc::default(),
            draining: AtomicBool::new(false),
            process: std::hash::RandomState::new().build_hasher().finish(),
            requests: AtomicU64::new(0),
        }
    }

    /// From now on nothing new is begun.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody<B::Events>>, Infallible> {
        let (head, body) = request.into_parts();
        let route = Route::of(head.uri.path());
        let own_id = format!("{:016x}{:08x}", self.process, self.requests.fetch_add(1, Ordering::Relaxed));
        let arrival = Arrival {
            began: Instant::now(),
            id: client_id(&head.headers).map_or(own_id.clone(), str::to_owned),
            observe: head.headers.get(OBSERVE).is_some_and(|value| value == "1"),
        };
        let echo = HeaderValue::from_str(&arrival.id);
        let path = route.name();
        let response = self.respond(route, &head.method, &head.headers, body, arrival).await;
        let mut response = response.unwrap_or_else(|error| self.error(&error));
        if let Ok(id) = echo {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        self.metrics.response(path, response.status());
        Ok(response)
    }

    async fn respond(
        &self,
        route: Route,
        method: &Method,
        headers: &HeaderMap,
        body: Incoming,
        arrival: Arrival,
    ) -> Result<Response<ResponseBody<B::Events>>, ApiError> {
        // Bodies are read whatever the answer will be: a client that is still sending reads none.
        let body = self.read(body).await;
        let endpoint = match (&route, method) {
            (Route::Unknown(path), _) => {
                let message = format!("there is no `{}` here", short(path));
                return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_path", message));
            }
            (Route::Generate(endpoint), &Method::POST) => *endpoint,
            (Route::Generate(_), _) => return Err(method_not_allowed("POST")),
            (_, &Method::GET | &Method::HEAD) => return self.look(&route),
            _ => return Err(method_not_allowed("GET, HEAD")),
        };
        check_media(headers)?;
        self.ready(self.backend.ready())?;
        let parameters = Parameters::read(endpoint, Body::parse(&body?)?, self.backend.models())?;
        self.generate(parameters, arrival).await
    }

    fn ready(&self, backend: Result<(), String>) -> Result<(), ApiError> {
        let unavailable = |code, message| Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message));
        if self.draining.load(Ordering::Relaxed) {
            return unavailable("shutting_down", "the server is shutting down".to_owned());
        }
        backend.or_else(|why| unavailable("not_ready", why))
    }

    /// The pages that only show something.
    fn look(&self, route: &Route) -> Result<Response<ResponseBody<B::Events>>, ApiError> {
        let page = match route {
            Route::Health => {
                self.ready(self.backend.healthy())?;
                json!({"status": "ok"})
            }
            Route::Metrics => {
                let text = self.metrics.render(&self.backend.gauges());
                return Ok(response::whole(
                    StatusCode::OK,
                    "text/plain; version=0.0.4; charset=utf-8",
                    text.into_bytes(),
                ));
            }
            Route::Model(id) => {
                let model = self.backend.models().into_iter().find(|model| model.id == *id);
                model_page(&model.ok_or_else(|| ApiError::model_not_found(id))?)
            }
            _ => {
                let models: Vec<_> = self.backend.models().iter().map(model_page).collect();
                json!({"object": "list", "data": models})
            }
        };
        Ok(response::whole(StatusCode::OK, JSON, page.to_string().into_bytes()))
    }

    async fn generate(
        &self,
        mut parameters: Parameters,
        arrival: Arrival,
    ) -> Result<Response<ResponseBody<B::Events>>, ApiError> {
        let prompts = std::mem::take(&mut parameters.prompts);
        if arrival.observe && prompts.len() > 1 {
            let message = "the header `x-serq-observe` needs a single prompt";
            return Err(ApiError::field("invalid_value", "prompt", message));
        }
        let prompts = self.prepare(&parameters.model, prompts).await?;
        let requests: Vec<_> = prompts
            .into_iter()
            .enumerate()
            .map(|(index, prompt)| request(&parameters, prompt, format!("{}-{index}", arrival.id)))
            .collect::<Result<_, _>>()?;
        let name = &parameters.model.id;
        let mut generation = Generation::new(name, parameters.choices, arrival.began, self.metrics.clone());
        for request in requests {
            let prompt_tokens = request.prompt.len();
            match self.backend.submit(request).await {
                Ok(events) => generation.add(events, prompt_tokens),
                Err(refusal) => {
                    generation.refused();
                    return Err(refusal.into());
                }
            }
        }
        let prefix = match parameters.endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completions => "cmpl",
        };
        let head = Head {
            endpoint: parameters.endpoint,
            id: format!("{prefix}-{}", arrival.id),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            return_token_ids: parameters.return_token_ids,
            model: parameters.model.id,
        };
        if parameters.stream {
            let quiet = self.options.comment_time;
            let stream = EventStream::new(generation, head, parameters.include_usage, arrival.observe, quiet);
            let mut response = Response::new(ResponseBody::Stream(Box::new(stream)));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            return Ok(response);
        }
        let body = whole(generation, &head, arrival.observe).await?;
        Ok(response::whole(StatusCode::OK, JSON, body))
    }

    /// Tokenizing a long prompt takes a while, which other connections don't wait for.
    async fn prepare(&self, model: &Model, prompts: Vec<backend::Prompt>) -> Result<Vec<Vec<u32>>, ApiError> {
        let (backend, model) = (self.backend.clone(), model.id.clone());
        let prepare = move || -> Result<Vec<_>, _> {
            prompts.into_iter().map(|prompt| backend.prepare(&model, prompt)).collect()
        };
        match tokio::task::spawn_blocking(prepare).await {
            Ok(prepared) => Ok(prepared?),
            Err(_) => Err(ApiError::internal("the prompt could not be tokenized")),
        }
    }

    /// A whole body, within limits of size and time.
    async fn read(&self, mut body: Incoming) -> Result<Vec<u8>, ApiError> {
        let most = self.options.body_bytes;
        let mut bytes = Vec::new();
        let mut length = 0;
        let read = async {
            while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let Some(data) = frame.ok().map(Frame::into_data) else {
                    let message = "the body broke off";
                    return Err(ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", message));
                };
                let Ok(data) = data else { continue };
                length += data.len();
                if length <= most {
                    bytes.extend_from_slice(&data);
                } else if length > most.saturating_mul(OVERSIZE) {
                    break;
                }
            }
            Ok(())
        };
        match tokio::time::timeout(self.options.read_time, read).await {
            Ok(read) => read?,
            Err(_) => {
                let message = format!("the body took longer than {} s", self.options.read_time.as_secs_f64());
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message));
            }
        }
        if length > most {
            let message = format!("the body has more than {most} bytes");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message));
        }
        Ok(bytes)
    }

    fn error(&self, error: &ApiError) -> Response<ResponseBody<B::Events>> {
        self.metrics.error(error.code);
        let mut response = response::whole(error.status, JSON, error.json());
        let headers = response.headers_mut();
        if let Some(time) = error.retry_after {
            // Whole seconds, and not at once.
            let seconds = time.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(methods) = error.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}

/// What the backend is asked for one prompt.
fn request(parameters: &Parameters, prompt: Vec<u32>, id: String) -> Result<backend::Request, ApiError> {
    Ok(backend::Request {
        id,
        model: parameters.model.id.clone(),
        choices: parameters.choices,
        max_tokens: parameters.max_tokens(prompt.len())?,
        min_tokens: parameters.min_tokens,
        stop_strings: parameters.stop_strings.clone(),
        stop_token_ids: parameters.stop_token_ids.clone(),
        ignore_eos: parameters.ignore_eos,
        sampling: parameters.sampling.clone(),
        logprobs: parameters.logprobs,
        prompt,
    })
}

/// The answer in one body, when all of it is there.
async fn whole<E: backend::Events>(
    mut generation: Generation<E>,
    head: &Head,
    observe: bool,
) -> Result<Vec<u8>, ApiError> {
    let mut choices: Vec<(Piece, FinishReason)> = Vec::new();
    for index in 0..generation.choices_total() {
        choices.push((Piece { choice: index as u32, ..Piece::default() }, FinishReason::Stop));
    }
    loop {
        match generation.step().await {
            Step::Piece(piece) => {
                let whole = &mut choices[piece.choice as usize].0;
                whole.text.push_str(&piece.text);
                whole.token_ids.extend(piece.token_ids);
                whole.logprobs.extend(piece.logprobs);
            }
            Step::Finished { choice, reason } => choices[choice as usize].1 = reason,
            Step::Failed(error) => return Err(error),
            Step::End => break,
        }
    }
    let body = head.body(choices.iter().map(|(piece, reason)| head.choice(piece, *reason)).collect());
    Ok(body.with(Some(generation.usage()), observe.then(|| generation.observed())).json())
}

fn model_page(model: &Model) -> serde_json::Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "serq",
        "max_model_len": model.context_tokens,
        "vocab_size": model.vocabulary_tokens,
    })
}

fn method_not_allowed(allow: &'static str) -> ApiError {
    let message = format!("the method must be {}", allow.replace(", ", " or "));
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
    ApiError { allow: Some(allow), ..error }
}

fn check_media(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    let message = match headers.get(header::CONTENT_ENCODING) {
        _ if !kind.eq_ignore_ascii_case("application/json") => "the header `content-type` must be `application/json`",
        Some(encoding) if encoding != "identity" => "the body must come without a `content-encoding`",
        _ => return Ok(()),
    };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// An id from the client, if it is fit to be written anywhere.
fn client_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    ((1..=128).contains(&id.len()) && id.bytes().all(plain)).then_some(id)
}

/// What a client wrote, as far as an error repeats it.
pub(crate) fn short(text: &str) -> String {
    const CHARACTERS: usize = 100;
    match text.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
