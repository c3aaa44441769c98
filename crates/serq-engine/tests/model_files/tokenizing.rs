//! Tokenizers, against llama.cpp and Hugging Face's.

use std::sync::Arc;

use serde::Deserialize;
use serq_engine::tokenizer::{Decoder, Markers, Specials, Tokenizer};
use serq_engine::weights::{Architecture, Checkpoint, ModelConfig};

use super::gguf_writer::{Gguf, Value};
use super::{real_model, recorded, small};

#[derive(Deserialize)]
struct Recorded {
    texts: Vec<Case>,
}

/// A vocabulary cut to its first merges.
#[derive(Deserialize)]
struct Vocabulary {
    pre: String,
    tokens: Vec<String>,
    kinds: Vec<i32>,
    merges: Vec<String>,
}

#[derive(Deserialize)]
struct OfVocabulary {
    vocabulary: Vocabulary,
    texts: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
}

/// Encodes as recorded; and decodes to the text, in pieces too.
fn check(tokenizer: &Tokenizer, cases: &[Case]) {
    assert!(cases.len() > 100, "something was recorded");
    for Case { text, ids } in cases {
        assert_eq!(&tokenizer.encode(text, Markers::Read), ids, "{text:?}");
        check_decoding(tokenizer, ids);
        assert_eq!(&tokenizer.decode(ids, Specials::Shown), text);
    }
}

/// Pieces are whole characters, and joined they are the text.
fn check_decoding(tokenizer: &Tokenizer, ids: &[u32]) {
    for specials in [Specials::Shown, Specials::Hidden] {
        let shown = |id: &&u32| specials == Specials::Shown || !tokenizer.is_special(**id);
        let bytes: Vec<u8> = ids.iter().filter(shown).flat_map(|&id| tokenizer.bytes(id)).copied().collect();
        let mut decoder = Decoder::new(specials);
        let mut joined = String::new();
        for &id in ids {
            let piece = decoder.push(tokenizer, id);
            joined += &piece;
        }
        joined += &decoder.finish();
        assert_eq!(joined, String::from_utf8_lossy(&bytes));
        assert_eq!(joined, tokenizer.decode(ids, specials));
    }
}

#[test]
fn smollm2_reads_and_writes_as_recorded() {
    let Some(model) = real_model::smollm2() else { return };
    let tokenizer = Tokenizer::of(&model).unwrap();
    check(&tokenizer, &recorded::json::<Recorded>("smollm2_tokenizer.json.gz").texts);
    assert_eq!(tokenizer.vocabulary(), model.config.vocabulary);
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.special("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.encode("<|im_end|>", Markers::Read), [2]);
    let plain = tokenizer.encode("<|im_end|>", Markers::Plain);
    assert!(plain.len() > 1 && tokenizer.decode(&plain, Specials::Hidden) == "<|im_end|>");
    assert_eq!(tokenizer.decode(&[2, 9683, 2], Specials::Hidden), tokenizer.decode(&[9683], Specials::Shown));
}

/// The pre-tokenizers of Llama 3 and Qwen, whose own files are too large to keep.
#[test]
fn llama_3_and_qwen_read_and_write_as_recorded() {
    for name in ["llama-bpe", "qwen2"] {
        let OfVocabulary { vocabulary, texts } = recorded::json(&format!("{name}_tokenizer.json.gz"));
        let Vocabulary { pre, tokens, kinds, merges } = vocabulary;
        let config = ModelConfig { vocabulary: tokens.len(), ..ModelConfig::tiny(Architecture::Llama) };
        let mut file = Gguf::of(&Checkpoint::random(config, 1));
        file.set("tokenizer.ggml.model", Value::Text("gpt2".into()));
        file.set("tokenizer.ggml.pre", Value::Text(pre));
        file.set("tokenizer.ggml.tokens", Value::Texts(tokens));
        file.set("tokenizer.ggml.token_type", Value::I32s(kinds));
        file.set("tokenizer.ggml.merges", Value::Texts(merges));
        let model = Checkpoint::of_gguf(Arc::new(file.bytes()), name).unwrap();
        check(&Tokenizer::of(&model).unwrap_or_else(|error| panic!("{error}")), &texts);
    }
}

/// Ids nobody would write in a row: characters are torn, and put together where they can be.
#[test]
fn any_ids_are_decoded() {
    let mut tokenizers = vec![Tokenizer::of(&Checkpoint::tiny(1)).unwrap()];
    tokenizers.extend(real_model::smollm2().map(|model| Tokenizer::of(&model).unwrap()));
    let mut random = 1_u64;
    for tokenizer in &tokenizers {
        for _ in 0..300 {
            let ids: Vec<u32> = (0..40)
                .map(|_| {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    // Ids without a token too.
                    (random >> 33) as u32 % (tokenizer.vocabulary() as u32 + 5)
                })
                .collect();
            check_decoding(tokenizer, &ids);
        }
    }
}

#[test]
fn the_built_in_models_tokens_are_bytes() {
    let tokenizer = Tokenizer::of(&Checkpoint::tiny(1)).unwrap();
    assert_eq!(tokenizer.encode("é<|im_end|>", Markers::Read), [0xc3, 0xa9, 258]);
    assert_eq!(tokenizer.encode("<|im_end|>", Markers::Plain).len(), 10);
    assert_eq!(tokenizer.decode(&[0xc3, 0xa9, 258], Specials::Hidden), "é");
    let mut decoder = Decoder::new(Specials::Hidden);
    let pieces = [0xc3, 0xa9, 258, 0xf0, 0x9f, 0x41].map(|id| decoder.push(&tokenizer, id));
    assert_eq!(pieces, ["", "é", "", "", "", "\u{fffd}A"]);
    assert_eq!(decoder.finish(), "");
}

#[test]
fn a_folders_tokenizer_is_read() {
    let model = Checkpoint::open(recorded::path("llama")).unwrap();
    let tokenizer = Tokenizer::of(&model).unwrap();
    assert_eq!(tokenizer.vocabulary(), 96);
    let ids = tokenizer.encode("the thing<|end|>", Markers::Read);
    assert_eq!(ids[0], tokenizer.encode("th", Markers::Read)[0], "the merge");
    assert_eq!(ids.last(), Some(&95));
    assert_eq!(tokenizer.decode(&ids, Specials::Shown), "the thing<|end|>");
    // The same, through llama.cpp's converter.
    let converted = Tokenizer::of(&recorded::gguf("gguf/llama_q8_0.gguf.gz")).unwrap();
    assert_eq!(converted.encode("the thing<|end|>", Markers::Read), ids);
    assert_eq!(converted.decode(&ids, Specials::Hidden), "the thing");
}

/// A file with a small tokenizer, and what a test changes in it.
fn with_tokenizer(change: impl FnOnce(&mut Gguf)) -> Result<Tokenizer, String> {
    let mut file = Gguf::of(&small(Architecture::Llama));
    let mut tokens: Vec<String> = (0..259).map(|id| format!("unused{id}")).collect();
    for (id, token) in ["a", "b", "ab", "Ġ", "<|mark|>", "<think>", "é", "Ã", "©"].into_iter().enumerate() {
        tokens[id] = token.into();
    }
    let mut kinds = vec![1; 259];
    (kinds[4], kinds[5]) = (3, 4);
    file.set("tokenizer.ggml.model", Value::Text("gpt2".into()));
    file.set("tokenizer.ggml.pre", Value::Text("qwen2".into()));
    file.set("tokenizer.ggml.tokens", Value::Texts(tokens));
    file.set("tokenizer.ggml.token_type", Value::I32s(kinds));
    file.set("tokenizer.ggml.merges", Value::Texts(vec!["a b".into()]));
    change(&mut file);
    let model = Checkpoint::of_gguf(Arc::new(file.bytes()), "file").unwrap();
    Tokenizer::of(&model).map_err(|error| error.to_string())
}

/// A beginning is put before a prompt once, and not before every text.
#[test]
fn a_prompt_begins_as_the_model_wants() {
    let begun = |file: &mut Gguf| {
        file.set("tokenizer.ggml.bos_token_id", Value::U32(4));
        file.set("tokenizer.ggml.add_bos_token", Value::Flag(true));
    };
    let tokenizer = with_tokenizer(begun).unwrap();
    assert_eq!(tokenizer.encode("ab", Markers::Read), [2]);
    assert_eq!(tokenizer.prompt("ab"), [4, 2]);
    assert_eq!(tokenizer.prompt("<|mark|>ab"), [4, 2]);
    let tokenizer = with_tokenizer(|file| file.set("tokenizer.ggml.bos_token_id", Value::U32(4))).unwrap();
    assert_eq!(tokenizer.prompt("ab"), [2]);
}

/// `<think>` is a token of Qwen3's that is text: always one id, and always shown.
#[test]
fn a_token_that_is_text_is_always_read_and_shown() {
    let tokenizer = with_tokenizer(|_| {}).unwrap();
    for markers in [Markers::Read, Markers::Plain] {
        assert_eq!(tokenizer.encode("a<think>b", markers), [0, 5, 1]);
    }
    assert_eq!(tokenizer.decode(&[0, 5, 4, 1], Specials::Hidden), "a<think>b");
}

/// Qwen's tokenizer composes characters first.
#[test]
fn qwen_reads_composed_characters() {
    let tokenizer = with_tokenizer(|_| {}).unwrap();
    assert_eq!(tokenizer.encode("e\u{301}", Markers::Read), tokenizer.encode("\u{e9}", Markers::Read));
    assert_eq!(tokenizer.encode("\u{e9}", Markers::Read), [7, 8]);
}

#[test]
fn a_wrong_tokenizer_is_told_in_a_sentence() {
    let text = |key: &str, value: &str| {
        with_tokenizer(|file| file.set(key, Value::Text(value.into()))).err().expect("refused")
    };
    assert_eq!(
        text("tokenizer.ggml.model", "llama"),
        "file: not supported: a tokenizer of the kind `llama`, only byte pairs (gpt2) are"
    );
    assert_eq!(
        text("tokenizer.ggml.pre", "tekken"),
        "file: not supported: the pre-tokenizer `tekken`, only smollm, llama-bpe and qwen2 are"
    );
    let merges = |merge: &str| {
        with_tokenizer(|file| file.set("tokenizer.ggml.merges", Value::Texts(vec![merge.into()])))
            .err()
            .expect("refused")
    };
    assert_eq!(merges("ab"), "file: damaged: the merge `ab` is no pair");
    assert!(merges("a z").starts_with("file: damaged: its tokenizer: "), "{}", merges("a z"));
}

/// Neither takes time that grows faster than the text.
#[test]
fn long_texts_of_one_character_are_encoded() {
    let Some(model) = real_model::smollm2() else { return };
    let tokenizer = Tokenizer::of(&model).unwrap();
    for piece in [" ", "a", "1", "\n", "中", " a"] {
        let text = piece.repeat(100_000);
        let ids = tokenizer.encode(&text, Markers::Read);
        assert_eq!(tokenizer.decode(&ids, Specials::Shown), text);
    }
}
