//! `serq plan`: arithmetic with a catalogue of models and accelerators, no program needed.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::plan::catalogue::{self, Checked, Model};
use crate::plan::quantity::{self, Accelerators, Link, number, part, share, time, tokens, tokens_or_none};
use crate::plan::shape::{Kept, Shape};
use crate::plan::{lists, ratio, text, transfer};

/// What moves at a hand-over and how many instances a load needs, by formula
#[derive(Args)]
pub(crate) struct Plan {
    #[command(subcommand)]
    about: About,
}

#[derive(Subcommand)]
enum About {
    Transfer(Box<Transfer>),
    Ratio(Box<Ratio>),
    /// The models that `transfer` and `ratio` know, with where each row is from
    Models(List),
    /// The accelerators that `--on` knows, with where each row is from
    Accelerators(List),
}

/// The KV of a prompt, its transfer, and how much of it hides behind the prefill
#[derive(Args)]
struct Transfer {
    /// A model of `serq plan models`, by its name or its hub's
    #[arg(value_name = "MODEL", required_unless_present = "layers", conflicts_with = "layers")]
    model: Option<String>,

    #[command(flatten)]
    own: OwnFields,

    /// Parameters of a token's way, in units (70.55e9); replaces the catalogue's
    #[arg(long, value_name = "COUNT", value_parser = number, allow_negative_numbers = true)]
    params: Option<f64>,

    /// Bytes of a KV number: 2 is bf16, 1 is fp8
    #[arg(long, value_name = "BYTES", value_parser = number, default_value = "2", allow_negative_numbers = true)]
    bytes: f64,

    /// Tokens of the prompt
    #[arg(long, value_name = "TOKENS", value_parser = tokens, default_value = "4096", allow_negative_numbers = true)]
    prompt: u64,

    /// Of these, tokens the decode instance already has
    #[arg(long, value_name = "TOKENS", value_parser = tokens_or_none, default_value = "0", allow_negative_numbers = true)]
    cached: u64,

    /// Tokens of a KV block: whole ones move
    #[arg(long, value_name = "TOKENS", value_parser = tokens, default_value = "1", allow_negative_numbers = true)]
    block: u64,

    /// A link, or several side by side: 400Gb/s, 50GB/s, 8x400Gb/s; may be repeated
    #[arg(long, value_name = "RATE", value_parser = quantity::link, default_values = ["400Gb/s", "8x400Gb/s"], allow_hyphen_values = true)]
    link: Vec<Link>,

    /// Share of the line rate that a transfer gets: 85% or 0.85
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "1", allow_hyphen_values = true)]
    efficiency: f64,

    /// Time before the first byte: 10.5ms
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    latency: Option<f64>,

    /// Ranks of tensor parallelism on both sides; each has its own link
    #[arg(long, value_name = "PREFILL:DECODE", value_parser = quantity::ranks, allow_hyphen_values = true)]
    tp: Option<(u32, u32)>,

    #[command(flatten)]
    compute: Compute,

    /// Count attention's own operations in the prefill too
    #[arg(long, requires = "on")]
    attention: bool,

    /// Every figure as one JSON object
    #[arg(long)]
    json: bool,
}

/// What computes the prompt.
#[derive(Args)]
struct Compute {
    /// Where the prompt is computed: 8xh100-sxm, or a speed, 8x989TFLOP/s
    #[arg(long, value_name = "ACCELERATORS", value_parser = quantity::accelerators, allow_hyphen_values = true)]
    on: Option<Accelerators>,

    /// Share of the peak that a prefill uses: 50% or 0.5
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "50%", requires = "on", allow_hyphen_values = true)]
    mfu: f64,
}

/// A model that is not in the catalogue; names of its `config.json` in brackets.
#[derive(Args)]
struct OwnFields {
    /// Layers that keep KV [num_hidden_layers]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    layers: Option<u32>,

    /// Heads of keys and values [num_key_value_heads]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536), requires_all = ["layers", "head_dim"])]
    kv_heads: Option<u32>,

    /// Numbers of a head [head_dim]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536), requires_all = ["layers", "kv_heads"])]
    head_dim: Option<u32>,

    /// MLA: numbers of the latent [kv_lora_rank]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536), requires_all = ["layers", "rope_dim"], conflicts_with = "kv_heads")]
    latent: Option<u32>,

    /// MLA: numbers with the position [qk_rope_head_dim]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=65_536), requires_all = ["layers", "latent"])]
    rope_dim: Option<u32>,

    /// Heads of queries, for what attention takes [num_attention_heads]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "layers")]
    heads: Option<u32>,

    /// Of the layers, those that keep a window only
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536), requires_all = ["layers", "window"])]
    window_layers: Option<u32>,

    /// Tokens of that window [sliding_window]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), requires_all = ["layers", "window_layers"])]
    window: Option<u32>,
}

/// Prefill and decode instances for a load (xPyD)
#[derive(Args)]
struct Ratio {
    /// Requests a second
    #[arg(long, value_name = "REQUESTS", value_parser = number, allow_negative_numbers = true)]
    rate: f64,

    /// Mean tokens of a prompt; several with commas
    #[arg(long, value_name = "TOKENS", value_parser = tokens, value_delimiter = ',', required = true, allow_negative_numbers = true)]
    prompt: Vec<u64>,

    /// Mean tokens of an answer
    #[arg(long, value_name = "TOKENS", value_parser = tokens, allow_negative_numbers = true)]
    output: u64,

    /// Prompt tokens a second of one prefill instance
    #[arg(long, value_name = "TOKENS", value_parser = number, required_unless_present = "on", conflicts_with = "on", allow_negative_numbers = true)]
    prefill_rate: Option<f64>,

    /// Output tokens a second of one decode instance, within its TPOT
    #[arg(long, value_name = "TOKENS", value_parser = number, allow_negative_numbers = true)]
    decode_rate: f64,

    /// Instead of --prefill-rate, with --on: a model of `serq plan models`
    #[arg(long, value_name = "MODEL", requires = "on", conflicts_with = "params")]
    model: Option<String>,

    /// Or its parameters, in units (70.55e9)
    #[arg(long, value_name = "COUNT", value_parser = number, requires = "on", allow_negative_numbers = true)]
    params: Option<f64>,

    #[command(flatten)]
    compute: Compute,

    /// Part of a prompt that the prefill instance has cached: 30% or 0.3
    #[arg(long, value_name = "PART", value_parser = part, default_value = "0", allow_hyphen_values = true)]
    hit: f64,

    /// Part of an instance to leave idle: 20% or 0.2
    #[arg(long, value_name = "PART", value_parser = part, default_value = "0", allow_hyphen_values = true)]
    headroom: f64,

    /// KV tokens one decode instance holds; with --tpot, memory counts too
    #[arg(long, value_name = "TOKENS", value_parser = tokens, requires = "tpot", allow_negative_numbers = true)]
    decode_pool: Option<u64>,

    /// Time between two tokens of a request: 50ms
    #[arg(long, value_name = "TIME", value_parser = time, requires = "decode_pool", allow_hyphen_values = true)]
    tpot: Option<f64>,

    /// Every figure as one JSON object
    #[arg(long)]
    json: bool,
}

/// How a list is printed.
#[derive(Args)]
struct List {
    /// Every field as one JSON array
    #[arg(long)]
    json: bool,
}

impl Plan {
    /// Computes and prints.
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let width = output::width();
        output::print(&match self.about {
            About::Transfer(asked) => asked.text(width)?,
            About::Ratio(asked) => asked.text(width)?,
            About::Models(List { json: true }) => json(&catalogue::models()),
            About::Models(_) => lists::models(&catalogue::models(), width),
            About::Accelerators(List { json: true }) => json(&catalogue::accelerators()),
            About::Accelerators(_) => lists::accelerators(&catalogue::accelerators(), width),
        })
    }
}

impl Transfer {
    fn text(self, width: usize) -> Result<String, Failure> {
        let model = self.model.as_deref().map(catalogue::model).transpose().map_err(Failure::Usage)?;
        let mut shape = match &model {
            Some(model) => model.shape(),
            None => self.own.shape()?,
        };
        shape.params_active = self.params.or(shape.params_active);
        if let Some(sentence) = self.tp.and_then(|ranks| transfer::refuse_ranks(&shape, ranks)) {
            return Err(Failure::Usage(sentence));
        }
        if self.compute.on.is_some() && shape.params_active.is_none() {
            return Err(Failure::Usage("--on needs the model's parameters: write --params 70.55e9".into()));
        }
        if self.attention && shape.flop_attention(1).is_none() {
            return Err(Failure::Usage("--attention needs --heads, and is not for a latent of your own".into()));
        }
        let attention = self.attention;
        let question = transfer::Question {
            shape,
            tokens: self.prompt,
            tokens_cached: self.cached,
            block: self.block,
            bytes: self.bytes,
            links: self.link,
            efficiency: self.efficiency,
            latency_s: self.latency.unwrap_or(0.0),
            ranks: self.tp,
            prefill: self.compute.on.map(|on| transfer::Prefill { on, mfu: self.compute.mfu, attention }),
        };
        let answer = transfer::answer(&question);
        let name = model.as_ref().map_or("own fields", |model| &model.name);
        if self.json {
            return Ok(json(&Transferred {
                model: name,
                checked: model.as_ref().map(|model| model.checked),
                source: model.as_ref().map(|model| &model.source[..]),
                shape: &question.shape,
                tokens: question.tokens,
                answer: &answer,
            }));
        }
        let source = model.as_ref().map_or_else(|| "fields: as given.".into(), text::source_of);
        Ok(text::transfer(name, &source, &question, &answer, width))
    }
}

#[derive(Serialize)]
struct Transferred<'a> {
    model: &'a str,
    checked: Option<Checked>,
    source: Option<&'a str>,
    shape: &'a Shape,
    tokens: u64,
    #[serde(flatten)]
    answer: &'a transfer::Answer,
}

impl OwnFields {
    fn shape(&self) -> Result<Shape, Failure> {
        let kept = match (self.kv_heads, self.head_dim, self.latent, self.rope_dim) {
            (Some(kv_heads), Some(head_dim), ..) => Kept::Heads { kv_heads, head_dim },
            (.., Some(kv_lora_rank), Some(qk_rope_head_dim)) => {
                Kept::Latent { kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim: None, v_head_dim: None }
            }
            _ => {
                let write = "write --kv-heads 8 --head-dim 128, or --latent 512 --rope-dim 64";
                return Err(Failure::Usage(format!("--layers needs what a layer keeps of a token: {write}")));
            }
        };
        let (layers, window_layers) = (self.layers.unwrap_or(1), self.window_layers.unwrap_or(0));
        if window_layers > layers {
            return Err(Failure::Usage(format!("--window-layers {window_layers} is more than --layers {layers}")));
        }
        Ok(Shape {
            layers,
            window_layers,
            window: self.window.unwrap_or(0),
            kept,
            heads: self.heads,
            params_active: None,
        })
    }
}

impl Ratio {
    fn text(self, width: usize) -> Result<String, Failure> {
        let (prefill_rate, formula) = self.prefill_rate()?;
        let question = ratio::Question {
            rate: self.rate,
            prompts: self.prompt,
            output: self.output,
            prefill_rate,
            decode_rate: self.decode_rate,
            hit: self.hit,
            headroom: self.headroom,
            memory: self.decode_pool.zip(self.tpot).map(|(pool, tpot_s)| ratio::Memory { pool, tpot_s }),
        };
        let answers = ratio::answers(&question);
        if self.json {
            return Ok(json(&answers));
        }
        Ok(text::ratio(&question, formula.as_deref(), &answers, width))
    }

    /// Given, or a prompt token's share of what the accelerators do in a second, with its formula.
    fn prefill_rate(&self) -> Result<(f64, Option<String>), Failure> {
        let Some(on) = &self.compute.on else {
            return self.prefill_rate.map(|rate| (rate, None)).ok_or_else(|| {
                Failure::Usage("the rate of a prefill instance is missing: write --prefill-rate 20000".into())
            });
        };
        let model: Option<Model> = self.model.as_deref().map(catalogue::model).transpose().map_err(Failure::Usage)?;
        let Some(params) = self.params.or(model.and_then(|model| model.shape().params_active)) else {
            return Err(Failure::Usage("--on needs --model, or --params 70.55e9".into()));
        };
        let rate = transfer::prefill_rate(on, self.compute.mfu, params);
        Ok((rate, Some(text::prefill_rate(on, self.compute.mfu, params, rate))))
    }
}

fn json(answer: &impl Serialize) -> String {
    serde_json::to_string_pretty(answer).expect("names and numbers") + "\n"
}
