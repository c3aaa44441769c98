//! What a request's body asks for.
//!
//! Fields are OpenAI's, and vLLM's where those have none. Three kinds of others: those that
//! would change the answer and aren't supported are refused unless they ask for nothing
//! ([`UNSUPPORTED`]); all the rest is ignored, as vLLM does.
//!
//! Counts have limits so that no body, small as it is, asks for much work before the backend
//! can refuse it.

use serde_json::Value;

use crate::backend::{Message, Model, Prompt, Role, Sampling};
use crate::body::{self, Body};
use crate::error::ApiError;

/// Answers of one HTTP request: prompts × `n`.
const CHOICES_MAX: usize = 128;
const STOP_STRINGS_MAX: usize = 16;
const STOP_STRING_BYTES_MAX: usize = 1024;
const STOP_TOKEN_IDS_MAX: usize = 128;
const LOGIT_BIAS_MAX: usize = 1024;
const TOP_LOGPROBS_MAX: i64 = 20;
const MESSAGES_MAX: usize = 4096;
/// Tokens of an answer where a completion's body doesn't say, as OpenAI has it.
const COMPLETION_TOKENS: u32 = 16;
/// The least `top_p` and `repetition_penalty`: above 0, in single precision too.
const LEAST: f64 = 1e-6;

/// Which of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
}

/// A body, read.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(crate) endpoint: Endpoint,
    pub(crate) model: Model,
    pub(crate) prompts: Vec<Prompt>,
    /// For each prompt.
    pub(crate) choices: u32,
    /// `None`: what the context has room for.
    pub(crate) max_tokens: Option<(&'static str, u32)>,
    pub(crate) min_tokens: u32,
    pub(crate) stop_strings: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) sampling: Sampling,
    pub(crate) logprobs: Option<u32>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) return_token_ids: bool,
}

/// Fields that would change the answer, and the values, as JSON, that ask for nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("add_generation_prompt", &["true"]),
    ("allowed_token_ids", &[]),
    ("audio", &[]),
    ("bad_words", &["[]"]),
    ("chat_template", &[]),
    ("chat_template_kwargs", &["{}"]),
    ("continue_final_message", &["false"]),
    ("documents", &["[]"]),
    ("echo", &["false"]),
    ("function_call", &[r#""none""#, r#""auto""#]),
    ("functions", &["[]"]),
    ("guided_choice", &[]),
    ("guided_grammar", &[]),
    ("guided_json", &[]),
    ("guided_regex", &[]),
    ("include_stop_str_in_output", &["false"]),
    ("kv_transfer_params", &["{}"]),
    ("logits_processors", &["[]"]),
    ("modalities", &[r#"["text"]"#]),
    ("prediction", &[]),
    ("prompt_embeds", &[]),
    ("prompt_logprobs", &[]),
    ("reasoning_effort", &[r#""none""#]),
    ("response_format", &[r#"{"type":"text"}"#]),
    ("skip_special_tokens", &["true"]),
    ("structured_outputs", &[]),
    ("suffix", &[r#""""#]),
    ("tool_choice", &[r#""none""#, r#""auto""#]),
    ("tools", &["[]"]),
    ("truncate_prompt_tokens", &[]),
    ("use_beam_search", &["false"]),
    ("web_search_options", &[]),
];

impl Parameters {
    pub(crate) fn read(endpoint: Endpoint, mut body: Body, models: Vec<Model>) -> Result<Parameters, ApiError> {
        let model = model(&body, models)?;
        for (name, harmless) in UNSUPPORTED {
            if body.get(name).is_some_and(|value| !harmless.contains(&value.to_string().as_str())) {
                let message = match harmless {
                    [] => format!("`{name}` is not supported"),
                    _ => format!("`{name}` is supported as {} only", harmless.join(" or ")),
                };
                return Err(ApiError::field("unsupported_parameter", *name, message));
            }
        }
        let choices = body.integer("n", 1..=CHOICES_MAX as i64)?.unwrap_or(1) as u32;
        if body.integer("best_of", 1..=CHOICES_MAX as i64)?.is_some_and(|best_of| best_of != i64::from(choices)) {
            return Err(ApiError::field("unsupported_parameter", "best_of", "`best_of` must be as `n`"));
        }
        let prompts = match endpoint {
            Endpoint::Chat => vec![Prompt::Chat(messages(&mut body)?)],
            Endpoint::Completions => prompts(&mut body, &model)?,
        };
        if prompts.len() * choices as usize > CHOICES_MAX {
            let message = format!("{} prompts with `n` {choices} are more than {CHOICES_MAX} answers", prompts.len());
            return Err(ApiError::field("invalid_value", "n", message));
        }
        let max_tokens = max_tokens(endpoint, &body)?;
        let stream = body.flag("stream")?;
        Ok(Parameters {
            endpoint,
            choices,
            max_tokens,
            min_tokens: body.integer("min_tokens", 0..=i64::from(u32::MAX))?.unwrap_or(0) as u32,
            stop_strings: stop_strings(&body)?,
            stop_token_ids: match body.get("stop_token_ids") {
                None => Vec::new(),
                Some(value) => token_ids("stop_token_ids", value, STOP_TOKEN_IDS_MAX, &model)?,
            },
            ignore_eos: body.flag("ignore_eos")?,
            sampling: sampling(&body, &model)?,
            logprobs: logprobs(endpoint, &body)?,
            stream,
            include_usage: include_usage(&body, stream)?,
            return_token_ids: body.flag("return_token_ids")?,
            prompts,
            model,
        })
    }

    /// The most tokens an answer to a prompt may have.
    pub(crate) fn max_tokens(&self, prompt_tokens: usize) -> Result<u32, ApiError> {
        let context = self.model.context_tokens;
        let (field, what) = match self.endpoint {
            Endpoint::Chat => ("messages", "messages"),
            Endpoint::Completions => ("prompt", "prompt"),
        };
        if prompt_tokens == 0 {
            return Err(ApiError::field("invalid_value", field, format!("the {what} must have at least one token")));
        }
        let room = u32::try_from(prompt_tokens).map_or(0, |tokens| context.saturating_sub(tokens));
        let (param, asked) = match self.max_tokens {
            _ if room == 0 => (field, 1),
            Some((param, asked)) if asked > room => (param, asked),
            Some((_, asked)) => return self.at_least_min_tokens(asked),
            None => return self.at_least_min_tokens(room),
        };
        let message = format!(
            "the {what} of {prompt_tokens} tokens and an answer of {asked} are more than the model's context of \
             {context} tokens"
        );
        Err(ApiError::field("context_length_exceeded", param, message))
    }

    fn at_least_min_tokens(&self, max_tokens: u32) -> Result<u32, ApiError> {
        if self.min_tokens > max_tokens {
            return Err(body::out_of_range("min_tokens", self.min_tokens, 0, max_tokens));
        }
        Ok(max_tokens)
    }
}

fn model(body: &Body, models: Vec<Model>) -> Result<Model, ApiError> {
    match body.get("model") {
        None => Err(body::missing("model")),
        Some(Value::String(name)) => models.into_iter().find(|model| model.id == *name).ok_or_else(|| {
            let error = ApiError::model_not_found(name);
            ApiError { param: Some("model".to_owned()), ..error }
        }),
        Some(value) => Err(body::wrong_type("model", "a string", value)),
    }
}

/// A conversation.
fn messages(body: &mut Body) -> Result<Vec<Message>, ApiError> {
    let messages = body.take("messages").ok_or_else(|| body::missing("messages"))?;
    let messages = body::list("messages", &messages, MESSAGES_MAX)?;
    if messages.is_empty() {
        return Err(ApiError::field("invalid_value", "messages", "`messages` must have at least one message"));
    }
    messages.iter().enumerate().map(|(index, message)| read_message(&format!("messages[{index}]"), message)).collect()
}

fn read_message(at: &str, message: &Value) -> Result<Message, ApiError> {
    let Value::Object(fields) = message else { return Err(body::wrong_type(at, "an object", message)) };
    let role = match fields.get("role") {
        None => return Err(body::missing(&format!("{at}.role"))),
        Some(Value::String(role)) => match role.as_str() {
            "system" => Role::System,
            "developer" => Role::Developer,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => {
                let param = format!("{at}.role");
                let message = format!("`{param}` must be `system`, `developer`, `user` or `assistant`");
                return Err(ApiError::field("unsupported_value", param, message));
            }
        },
        Some(value) => return Err(body::wrong_type(&format!("{at}.role"), "a string", value)),
    };
    for name in ["tool_calls", "function_call", "audio"] {
        if fields.get(name).is_some_and(|value| !value.is_null() && value != &Value::Array(Vec::new())) {
            let message = format!("`{at}.{name}` is not supported");
            return Err(ApiError::field("unsupported_parameter", format!("{at}.{name}"), message));
        }
    }
    let at = format!("{at}.content");
    let content = match fields.get("content") {
        None | Some(Value::Null) => return Err(body::missing(&at)),
        Some(Value::String(content)) => content.clone(),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate().map(|(index, part)| text_part(&format!("{at}[{index}]"), part));
            parts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(value) => return Err(body::wrong_type(&at, "a string or a list of text parts", value)),
    };
    Ok(Message { role, content })
}

fn text_part<'a>(at: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    if !part.is_object() {
        return Err(body::wrong_type(at, "an object", part));
    }
    match (&part["type"], &part["text"]) {
        (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text),
        (Value::String(kind), Value::Null) if kind == "text" => Err(body::missing(&format!("{at}.text"))),
        (Value::String(kind), other) if kind == "text" => {
            Err(body::wrong_type(&format!("{at}.text"), "a string", other))
        }
        (Value::String(_), _) => {
            let message = format!("`{at}` is no text: this server reads text only");
            Err(ApiError::field("unsupported_value", format!("{at}.type"), message))
        }
        (Value::Null, _) => Err(body::missing(&format!("{at}.type"))),
        (other, _) => Err(body::wrong_type(&format!("{at}.type"), "a string", other)),
    }
}

/// A string, strings, token ids, or lists of token ids.
fn prompts(body: &mut Body, model: &Model) -> Result<Vec<Prompt>, ApiError> {
    let list = match body.take("prompt") {
        None => return Err(body::missing("prompt")),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(list)) => list,
        Some(value) => return Err(body::wrong_type("prompt", "a string or a list", &value)),
    };
    match list.first() {
        None => return Err(ApiError::field("invalid_value", "prompt", "`prompt` must not be an empty list")),
        Some(Value::String(_) | Value::Array(_)) => {}
        // Its length is for the context to judge.
        Some(_) => return Ok(vec![Prompt::Ids(token_ids("prompt", &Value::Array(list), usize::MAX, model)?)]),
    }
    if list.len() > CHOICES_MAX {
        let message = format!("`prompt` has {} prompts, but may have at most {CHOICES_MAX}", list.len());
        return Err(ApiError::field("invalid_value", "prompt", message));
    }
    let read = |(index, prompt)| match prompt {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(_) => Ok(Prompt::Ids(token_ids(&format!("prompt[{index}]"), &prompt, usize::MAX, model)?)),
        other => Err(body::wrong_type(&format!("prompt[{index}]"), "a string or a list of token ids", &other)),
    };
    list.into_iter().enumerate().map(read).collect()
}

fn token_ids(at: &str, value: &Value, most: usize, model: &Model) -> Result<Vec<u32>, ApiError> {
    let last = i64::from(model.vocabulary_tokens) - 1;
    let ids = body::list(at, value, most)?.iter().enumerate();
    // The name is written for the one that is refused only.
    ids.map(|(index, id)| match id.as_i64() {
        Some(id) if (0..=last).contains(&id) => Ok(id as u32),
        _ => body::integer(&format!("{at}[{index}]"), id, 0..=last).map(|id| id as u32),
    })
    .collect()
}

fn max_tokens(endpoint: Endpoint, body: &Body) -> Result<Option<(&'static str, u32)>, ApiError> {
    let read = |name: &'static str| {
        let tokens = body.integer(name, 1..=i64::from(u32::MAX))?;
        Ok::<_, ApiError>(tokens.map(|tokens| (name, tokens as u32)))
    };
    let old = read("max_tokens")?;
    match endpoint {
        Endpoint::Completions => Ok(Some(old.unwrap_or(("max_tokens", COMPLETION_TOKENS)))),
        Endpoint::Chat => match (old, read("max_completion_tokens")?) {
            (Some(_), Some(_)) => {
                let message = "`max_tokens` and `max_completion_tokens` are two names of one thing: give one of them";
                Err(ApiError::field("invalid_value", "max_tokens", message))
            }
            (old, new) => Ok(new.or(old)),
        },
    }
}

fn stop_strings(body: &Body) -> Result<Vec<String>, ApiError> {
    let one = |at: &str, value: &Value| match value {
        Value::String(text) if (1..=STOP_STRING_BYTES_MAX).contains(&text.len()) => Ok(text.clone()),
        Value::String(_) => {
            let message = format!("`{at}` must have from 1 to {STOP_STRING_BYTES_MAX} bytes");
            Err(ApiError::field("invalid_value", at, message))
        }
        other => Err(body::wrong_type(at, "a string", other)),
    };
    match body.get("stop") {
        None => Ok(Vec::new()),
        Some(value @ Value::Array(_)) => {
            let list = body::list("stop", value, STOP_STRINGS_MAX)?;
            list.iter().enumerate().map(|(index, value)| one(&format!("stop[{index}]"), value)).collect()
        }
        Some(value @ Value::String(_)) => Ok(vec![one("stop", value)?]),
        Some(value) => Err(body::wrong_type("stop", "a string or a list of strings", value)),
    }
}

fn sampling(body: &Body, model: &Model) -> Result<Sampling, ApiError> {
    let default = Sampling::default();
    Ok(Sampling {
        temperature: body.number("temperature", 0.0..=2.0)?.unwrap_or(default.temperature),
        top_p: body.number("top_p", LEAST..=1.0)?.unwrap_or(default.top_p),
        // vLLM's clients write -1 or 0 for all.
        top_k: body.integer("top_k", -1..=i64::from(u32::MAX))?.filter(|k| *k > 0).map(|k| k as u32),
        min_p: body.number("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
        presence_penalty: body.number("presence_penalty", -2.0..=2.0)?.unwrap_or(default.presence_penalty),
        frequency_penalty: body.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(default.frequency_penalty),
        repetition_penalty: body.number("repetition_penalty", LEAST..=100.0)?.unwrap_or(default.repetition_penalty),
        seed: body.integer("seed", i64::MIN..=i64::MAX)?,
        logit_bias: logit_bias(body, model)?,
    })
}

fn logit_bias(body: &Body, model: &Model) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = match body.get("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(value) => return Err(body::wrong_type("logit_bias", "an object", value)),
    };
    if map.len() > LOGIT_BIAS_MAX {
        let message = format!("`logit_bias` has {} entries, but may have at most {LOGIT_BIAS_MAX}", map.len());
        return Err(ApiError::field("invalid_value", "logit_bias", message));
    }
    let mut biases = Vec::with_capacity(map.len());
    for (token, bias) in map {
        let id = token.parse().ok().filter(|id| *id < model.vocabulary_tokens).ok_or_else(|| {
            let last = i64::from(model.vocabulary_tokens) - 1;
            let message = format!("the keys of `logit_bias` must be token ids from 0 to {last}");
            ApiError::field("invalid_value", "logit_bias", message)
        })?;
        biases.push((id, body::number(&format!("logit_bias.{id}"), bias, -100.0..=100.0)?));
    }
    biases.sort_by_key(|(id, _)| *id);
    // "7" and "07" are one token.
    biases.dedup_by_key(|(id, _)| *id);
    Ok(biases)
}

fn logprobs(endpoint: Endpoint, body: &Body) -> Result<Option<u32>, ApiError> {
    match endpoint {
        Endpoint::Completions => Ok(body.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?.map(|top| top as u32)),
        Endpoint::Chat => {
            let wanted = body.flag("logprobs")?;
            let top = body.integer("top_logprobs", 0..=TOP_LOGPROBS_MAX)?.unwrap_or(0) as u32;
            if top > 0 && !wanted {
                let message = "`top_logprobs` needs `logprobs` to be true";
                return Err(ApiError::field("invalid_value", "top_logprobs", message));
            }
            Ok(wanted.then_some(top))
        }
    }
}

fn include_usage(body: &Body, stream: bool) -> Result<bool, ApiError> {
    match body.get("stream_options") {
        None => Ok(false),
        Some(_) if !stream => {
            let message = "`stream_options` needs `stream` to be true";
            Err(ApiError::field("invalid_value", "stream_options", message))
        }
        Some(Value::Object(options)) => match options.get("include_usage") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(include)) => Ok(*include),
            Some(value) => Err(body::wrong_type("stream_options.include_usage", "true or false", value)),
        },
        Some(value) => Err(body::wrong_type("stream_options", "an object", value)),
    }
}
