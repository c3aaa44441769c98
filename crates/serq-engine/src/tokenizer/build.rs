//! Tokenizers from a model's files.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::{Pairs, Tokenizer, Tokens};
use crate::weights::gguf::{CONTROL, Gguf, USER_DEFINED};
use crate::weights::{Checkpoint, TINY_SPECIALS, Texts, Trouble, WeightsError, json};

/// A model's tokenizer.
pub(super) fn tokenizer(model: &Checkpoint) -> Result<Tokenizer, WeightsError> {
    match &model.texts {
        Texts::BuiltIn => Ok(bytes()),
        Texts::Gguf { path, keys } => of_gguf(keys).map_err(|trouble| trouble.of(path)),
        Texts::Folder(path) => of_folder(path, model.config.vocabulary),
    }
}

/// Bytes and the built-in model's special tokens.
fn bytes() -> Tokenizer {
    let mut tokens = Tokens::default();
    for byte in 0..=255 {
        tokens.push(&[byte], false);
    }
    for (id, text) in TINY_SPECIALS {
        assert_eq!(id, tokens.len(), "special tokens follow the bytes");
        tokens.push(text.as_bytes(), true);
    }
    Tokenizer { pairs: Pairs::Bytes, tokens, bos: None }
}

fn of_gguf(keys: &Gguf) -> Result<Tokenizer, Trouble> {
    let missing = |key: &str| Trouble::Damaged(format!("the key `{key}` is missing"));
    let kind = keys.text("tokenizer.ggml.model")?.ok_or_else(|| missing("tokenizer.ggml.model"))?;
    if kind != "gpt2" {
        return Err(Trouble::Unsupported(format!("a tokenizer of the kind `{kind}`, only byte pairs (gpt2) are")));
    }
    let texts = keys.texts("tokenizer.ggml.tokens")?.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
    let kinds = keys.integers("tokenizer.ggml.token_type")?.unwrap_or_default();
    let kind = |id: usize| kinds.get(id).copied();
    let merges = keys.texts("tokenizer.ggml.merges")?.ok_or_else(|| missing("tokenizer.ggml.merges"))?;
    let merges = merges.into_iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(Trouble::Damaged(format!("the merge `{merge}` is no pair"))),
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let vocabulary: Vocab = texts.iter().enumerate().map(|(id, text)| ((*text).to_owned(), id as u32)).collect();
    let pre = keys.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        // Llama 3 looks a whole word up before it merges [llama.cpp: `llama-vocab.cpp`].
        .ignore_merges(pre == "llama-bpe")
        .build()
        .map_err(|error| Trouble::Damaged(format!("its tokenizer: {error}")))?;
    let mut reading = tokenizers::Tokenizer::new(model);
    pre_tokenize(&mut reading, pre)?;

    let mut tokens = Tokens::default();
    let alphabet = alphabet();
    for (id, text) in texts.iter().enumerate() {
        match kind(id) {
            Some(CONTROL | USER_DEFINED) => tokens.push(text.as_bytes(), kind(id) == Some(CONTROL)),
            _ => tokens.push(&bytes_of(text, &alphabet), false),
        }
    }
    let added = |wanted: i128, special: bool| {
        let texts = texts.iter().enumerate().filter(move |(id, text)| kind(*id) == Some(wanted) && !text.is_empty());
        texts.map(move |(_, text)| AddedToken::from(*text, special).normalized(false))
    };
    reading.add_special_tokens(added(CONTROL, true)).map_err(refuse)?;
    reading.add_tokens(added(USER_DEFINED, false)).map_err(refuse)?;
    let add_bos = match keys.flag("tokenizer.ggml.add_bos_token")? {
        Some(add) => add,
        // What llama.cpp does for this one when the key is not there.
        None => pre == "llama-bpe",
    };
    let bos = keys.size("tokenizer.ggml.bos_token_id")?.filter(|_| add_bos);
    if bos.is_some_and(|id| id >= texts.len()) {
        return Err(Trouble::Damaged("the token that prompts begin with is outside the vocabulary".into()));
    }
    Ok(Tokenizer { pairs: merged(reading), tokens, bos: bos.map(|id| id as u32) })
}

/// How a text is cut before bytes are merged, by the name llama.cpp gave it. The expressions are
/// those in the models' own `tokenizer.json` [Llama 3, Qwen 2 and SmolLM2, on Hugging Face].
fn pre_tokenize(tokenizer: &mut tokenizers::Tokenizer, name: &str) -> Result<(), Trouble> {
    let split = |expression: &str| -> Result<Sequence, Trouble> {
        let pattern = SplitPattern::Regex(expression.into());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(refuse)?;
        Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]))
    };
    let sequence = match name {
        "smollm" => {
            let parts: [PreTokenizerWrapper; 2] = [Digits::new(true).into(), ByteLevel::new(false, true, true).into()];
            Sequence::new(parts.into())
        }
        "llama-bpe" => split(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ))?,
        "qwen2" => {
            tokenizer.with_normalizer(Some(NFC)).map_err(refuse)?;
            split(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
                r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ))?
        }
        _ => {
            let only = "only smollm, llama-bpe and qwen2 are";
            return Err(Trouble::Unsupported(format!("the pre-tokenizer `{name}`, {only}")));
        }
    };
    tokenizer.with_pre_tokenizer(Some(sequence));
    Ok(())
}

/// What `tokenizer_config.json` says of a prompt's beginning.
#[derive(Default, serde::Deserialize)]
struct FolderConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<serde_json::Value>,
}

fn of_folder(folder: &Path, vocabulary: usize) -> Result<Tokenizer, WeightsError> {
    let path = folder.join("tokenizer.json");
    let config = json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(cause) => return Err(Trouble::Unreadable(cause).of(path)),
    };
    of_json(&text, config, vocabulary).map_err(|trouble| trouble.of(path))
}

fn of_json(text: &[u8], config: FolderConfig, vocabulary: usize) -> Result<Tokenizer, Trouble> {
    let mut reading = tokenizers::Tokenizer::from_bytes(text).map_err(|error| Trouble::Damaged(error.to_string()))?;
    match reading.get_model() {
        ModelWrapper::BPE(model) if model.get_unk_token().is_none() => {}
        _ => return Err(Trouble::Unsupported("a tokenizer that is not byte pairs without an unknown token".into())),
    }
    if !matches!(reading.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
        return Err(Trouble::Unsupported("a tokenizer whose decoder is not byte-level".into()));
    }
    reading.with_truncation(None).map_err(refuse)?;
    reading.with_padding(None);

    let count = reading.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    if count > vocabulary {
        let what = format!("it has tokens up to {count}, and the embedding has {vocabulary} rows");
        return Err(Trouble::Damaged(what));
    }
    let mut tokens = Tokens::default();
    let (alphabet, added) = (alphabet(), reading.get_added_tokens_decoder());
    for id in 0..count as u32 {
        match (added.get(&id), reading.id_to_token(id)) {
            (Some(token), _) => tokens.push(token.content.as_bytes(), token.special),
            (None, Some(text)) => tokens.push(&bytes_of(&text, &alphabet), false),
            (None, None) => tokens.push(&[], false),
        }
    }
    let bos = match config.add_bos_token {
        Some(false) => None,
        Some(true) => {
            let token = config.bos_token.unwrap_or_default();
            let text = token.as_str().or(token.get("content").and_then(serde_json::Value::as_str));
            let id = text.and_then(|text| reading.token_to_id(text));
            Some(id.ok_or_else(|| Trouble::Damaged("prompts are to begin with a token that is not named".into()))?)
        }
        None => {
            // Whatever is put around a text is put around none.
            let around = reading.encode("", true).map_err(refuse)?;
            match around.get_ids() {
                [] => None,
                [bos] => Some(*bos),
                ids => {
                    let count = ids.len();
                    return Err(Trouble::Unsupported(format!("a tokenizer that puts {count} tokens around a text")));
                }
            }
        }
    };
    Ok(Tokenizer { pairs: merged(reading), tokens, bos })
}

fn merged(reading: tokenizers::Tokenizer) -> Pairs {
    Pairs::Merged { reading: Box::new(reading), plain: Default::default() }
}

fn refuse(error: Box<dyn std::error::Error + Send + Sync>) -> Trouble {
    Trouble::Damaged(format!("its tokenizer: {error}"))
}

/// The letters that stand for bytes: a printable byte of Latin-1 for itself, the others, in order,
/// from U+0100 on [GPT-2: `encoder.py`, `bytes_to_unicode`].
fn alphabet() -> HashMap<char, u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let own = (0..=255).filter(printable).map(|byte| (char::from(byte), byte));
    let others = ('\u{100}'..).zip((0..=255).filter(|byte| !printable(byte)));
    own.chain(others).collect()
}

/// A token's bytes. One that is not in the letters is text as it stands.
fn bytes_of(token: &str, alphabet: &HashMap<char, u8>) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|letter| alphabet.get(&letter).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}
