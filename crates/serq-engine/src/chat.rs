//! A conversation to the text the model was trained on, by the template in its files.
//!
//! Templates are Jinja, and are run as transformers runs them: blocks' line ends are trimmed,
//! Python's string methods are there, `tojson` writes as Python does, and `raise_exception` and
//! `strftime_now` may be called [transformers: `chat_template_utils.py`]. Objects keep the order of
//! their keys, if they are read as [`Value`].
//!
//! # Invariants
//!
//! - A template does so many operations at most, whatever it says.
//! - One conversation, one text: only `strftime_now` looks at the clock, which is an argument.

mod calendar;
mod python;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

pub use minijinja::Value;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::weights::gguf::Gguf;
use crate::weights::{Checkpoint, Texts, Trouble, WeightsError, json};

/// Whoever may have said something.
const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

/// Operations of a template, which are many more than long conversations need.
const OPERATIONS_MAX: u64 = 20_000_000;

/// ChatML, as SmolLM2 and Qwen have it; the built-in model's.
const CHAT_ML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                       + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                       {% endif %}";

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    specials: Specials,
}

/// Texts of special tokens, which a template knows by these names.
#[derive(Serialize)]
struct Specials {
    bos_token: String,
    eos_token: String,
}

/// One thing that was said. A request's own type may stand for it, if it has these fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// By whom: `system`, `user`, `assistant`, …
    pub role: String,
    /// What.
    pub content: String,
}

/// How to write a conversation out.
pub struct ChatOptions {
    /// Whether the text ends where the assistant is to speak.
    pub add_generation_prompt: bool,
    /// More for the template to know, `tools` or `enable_thinking`, say.
    pub variables: BTreeMap<String, Value>,
    /// What a template that writes the date takes for now.
    pub now: SystemTime,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, variables: BTreeMap::new(), now: SystemTime::now() }
    }
}

/// Why a conversation was not written out.
#[derive(Debug)]
pub enum ChatError {
    /// Nobody is called that.
    Role(String),
    /// The template does not take such a conversation, in its own words.
    Refused(String),
    /// The template went wrong.
    Failed(String),
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "no role is called `{role}`: there are {}", ROLES.join(", ")),
            Self::Refused(why) => write!(f, "the model's chat template refuses the conversation: {why}"),
            Self::Failed(why) => write!(f, "the model's chat template failed: {why}"),
        }
    }
}

impl Error for ChatError {}

impl ChatTemplate {
    /// The template in a model's files, if it has one.
    pub fn of(model: &Checkpoint) -> Result<Option<Self>, WeightsError> {
        match &model.texts {
            Texts::BuiltIn => Ok(Some(Self::new(CHAT_ML, "", "<|im_end|>").expect("the template is a constant"))),
            Texts::Gguf { path, keys } => of_gguf(keys).map_err(|trouble| trouble.of(path)),
            Texts::Folder(folder) => of_folder(folder),
        }
    }

    /// A template by itself; the texts of two special tokens are what it knows them by.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, Trouble> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        environment.set_fuel(Some(OPERATIONS_MAX));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        // Nothing is not a list of nothing in Python.
        environment.add_test("iterable", |value: Value| {
            value.as_str().is_some() || value.try_iter().is_ok() && !value.is_none()
        });
        environment.add_filter("tojson", |value: Value, options: Kwargs| python::json(&value, &options));
        environment.add_function("raise_exception", |why: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(why)))
        });
        let template = environment.add_template_owned("chat", source.to_owned());
        template.map_err(|error| Trouble::Damaged(format!("its chat template: {}", sentence(&error))))?;
        let specials = Specials { bos_token: bos_token.into(), eos_token: eos_token.into() };
        Ok(Self { environment, specials })
    }

    /// A conversation as text.
    pub fn render<M: Serialize>(&self, messages: &[M], options: &ChatOptions) -> Result<String, ChatError> {
        let messages = Value::from(Serde(messages));
        for message in messages.try_iter().into_iter().flatten() {
            let role = message.get_attr("role").unwrap_or_default();
            if !role.as_str().is_some_and(|role| ROLES.contains(&role)) {
                return Err(ChatError::Role(role.to_string()));
            }
        }
        let now = options.now;
        let strftime_now = Value::from_function(move |format: String| calendar::strftime(now, &format));
        let known = minijinja::context! {
            messages,
            tools => Value::from(()),
            documents => Value::from(()),
            add_generation_prompt => options.add_generation_prompt,
            strftime_now,
            ..Value::from(Serde(&self.specials)),
        };
        // What the caller says goes before what is the same for all.
        let context = minijinja::context! { ..Value::from(Serde(&options.variables)), ..known };
        let template = self.environment.get_template("chat").expect("added when this was made");
        template.render(context).map_err(|error| match raised(&error) {
            Some(why) => ChatError::Refused(why.to_owned()),
            None => ChatError::Failed(sentence(&error)),
        })
    }
}

/// What a template called `raise_exception` with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Raised {}

fn raised(error: &minijinja::Error) -> Option<&str> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(why)) = error.downcast_ref() {
            return Some(why);
        }
        cause = error.source();
    }
    None
}

/// What went wrong and in which line.
fn sentence(error: &minijinja::Error) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what}, in line {line}"),
        None => what,
    }
}

fn of_gguf(keys: &Gguf) -> Result<Option<ChatTemplate>, Trouble> {
    let Some(source) = keys.text("tokenizer.chat_template")? else { return Ok(None) };
    let tokens = keys.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let token = |key: &str| -> Result<String, Trouble> {
        let id = keys.size(key)?;
        Ok(id.and_then(|id| tokens.get(id)).map_or(String::new(), |text| (*text).to_owned()))
    };
    let (bos, eos) = (token("tokenizer.ggml.bos_token_id")?, token("tokenizer.ggml.eos_token_id")?);
    ChatTemplate::new(source, &bos, &eos).map(Some)
}

/// `tokenizer_config.json`, as far as it is about templates.
#[derive(Default, Deserialize)]
struct FolderConfig {
    chat_template: Option<OneOrNamed>,
    bos_token: Option<Token>,
    eos_token: Option<Token>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrNamed {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Described { content: String },
}

impl Token {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Described { content: text } => text,
        }
    }
}

fn of_folder(folder: &Path) -> Result<Option<ChatTemplate>, WeightsError> {
    let config: FolderConfig = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let path = folder.join("chat_template.jinja");
    // The file of its own is the newer way, and goes before the other.
    let source = if path.exists() {
        Some(std::fs::read_to_string(&path).map_err(|cause| Trouble::Unreadable(cause).of(&path))?)
    } else {
        match config.chat_template {
            Some(OneOrNamed::One(source)) => Some(source),
            Some(OneOrNamed::Named(all)) => {
                all.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
            None => None,
        }
    };
    let Some(source) = source else { return Ok(None) };
    let text = |token: Option<Token>| token.map_or(String::new(), Token::text);
    let (bos, eos) = (text(config.bos_token), text(config.eos_token));
    ChatTemplate::new(&source, &bos, &eos).map(Some).map_err(|trouble| trouble.of(folder))
}
