//! Writes GGUF files, sound and unsound.

use serq_engine::weights::{Architecture, Checkpoint, LayerWeight, Weight};

/// A value of a key.
#[derive(Clone)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// A tensor of singles, or of bytes in some format.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) format: u32,
    pub(crate) bytes: Vec<u8>,
}

/// A file to be.
#[derive(Clone)]
pub(crate) struct Gguf {
    pub(crate) version: u32,
    pub(crate) keys: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Gguf {
    /// The file of a model, in singles.
    pub(crate) fn of(model: &Checkpoint) -> Self {
        let config = &model.config;
        let name = config.architecture.name();
        let sizes = [
            ("block_count", config.layers),
            ("embedding_length", config.hidden),
            ("feed_forward_length", config.feed_forward),
            ("attention.head_count", config.heads),
            ("attention.head_count_kv", config.kv_heads),
            ("attention.key_length", config.head_dim),
            ("attention.value_length", config.head_dim),
            ("context_length", config.context),
        ];
        let mut keys = vec![("general.architecture".to_owned(), Value::Text(name.into()))];
        keys.extend(sizes.map(|(key, size)| (format!("{name}.{key}"), Value::U32(size as u32))));
        keys.push((format!("{name}.attention.layer_norm_rms_epsilon"), Value::F32(config.rms_epsilon)));
        keys.push((format!("{name}.rope.freq_base"), Value::F32(config.rope_base as f32)));
        let last = config.eos.last().expect("an end");
        keys.push(("tokenizer.ggml.eos_token_id".into(), Value::U32(*last)));
        let mut tensors: Vec<Tensor> = config.weights().map(|weight| tensor(model, weight)).collect();
        if !config.rope_divisors.is_empty() {
            tensors.push(Tensor {
                name: "rope_freqs.weight".into(),
                columns: config.head_dim / 2,
                rows: 1,
                format: 0,
                bytes: config.rope_divisors.iter().flat_map(|number| number.to_le_bytes()).collect(),
            });
        }
        Self { version: 3, keys, tensors }
    }

    /// Gives a key another value, or the first one.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.keys.retain(|(name, _)| name != key);
        self.keys.push((key.into(), value));
    }

    /// The file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            text(&mut out, key);
            self::value(&mut out, value);
        }
        let mut offset = 0_u64;
        for tensor in &self.tensors {
            text(&mut out, &tensor.name);
            let sizes = if tensor.rows == 1 { vec![tensor.columns] } else { vec![tensor.columns, tensor.rows] };
            out.extend((sizes.len() as u32).to_le_bytes());
            sizes.iter().for_each(|&size| out.extend((size as u64).to_le_bytes()));
            out.extend(tensor.format.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (tensor.bytes.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    let kind = |out: &mut Vec<u8>, kind: u32| out.extend(kind.to_le_bytes());
    match value {
        Value::U32(number) => {
            kind(out, 4);
            out.extend(number.to_le_bytes());
        }
        Value::F32(number) => {
            kind(out, 6);
            out.extend(number.to_le_bytes());
        }
        Value::Flag(flag) => {
            kind(out, 7);
            out.push((*flag).into());
        }
        Value::Text(content) => {
            kind(out, 8);
            text(out, content);
        }
        Value::Texts(texts) => {
            kind(out, 9);
            kind(out, 8);
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|content| text(out, content));
        }
        Value::I32s(numbers) => {
            kind(out, 9);
            kind(out, 5);
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
        }
    }
}

fn tensor(model: &Checkpoint, weight: Weight) -> Tensor {
    let numbers = model.tensor(weight);
    let mut rows: Vec<Vec<u8>> = (0..numbers.rows())
        .map(|row| {
            let mut singles = vec![0.0; numbers.columns()];
            numbers.row_f32(row, &mut singles);
            singles.iter().flat_map(|number| number.to_le_bytes()).collect()
        })
        .collect();
    let turned = matches!(weight, Weight::Layer(_, LayerWeight::Query | LayerWeight::Key));
    if turned && model.config.architecture == Architecture::Llama {
        rows = rows.chunks(model.config.head_dim).flat_map(paired).collect();
    }
    Tensor { name: name(weight), columns: numbers.columns(), rows: numbers.rows(), format: 0, bytes: rows.concat() }
}

/// A head's rows as the converter stores them: the two halves' first rows, their second ones, …
fn paired(head: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (first, second) = head.split_at(head.len() / 2);
    first.iter().zip(second).flat_map(|(one, other)| [one.clone(), other.clone()]).collect()
}

/// A weight's name in a file.
pub(crate) fn name(weight: Weight) -> String {
    let Weight::Layer(layer, weight) = weight else {
        return match weight {
            Weight::Embedding => "token_embd.weight",
            Weight::Output => "output.weight",
            _ => "output_norm.weight",
        }
        .into();
    };
    let part = match weight {
        LayerWeight::AttentionNorm => "attn_norm",
        LayerWeight::Query => "attn_q",
        LayerWeight::Key => "attn_k",
        LayerWeight::Value => "attn_v",
        LayerWeight::AttentionOutput => "attn_output",
        LayerWeight::QueryNorm => "attn_q_norm",
        LayerWeight::KeyNorm => "attn_k_norm",
        LayerWeight::FeedForwardNorm => "ffn_norm",
        LayerWeight::Gate => "ffn_gate",
        LayerWeight::Up => "ffn_up",
        LayerWeight::Down => "ffn_down",
    };
    format!("blk.{layer}.{part}.weight")
}
