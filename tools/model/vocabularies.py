"""Records how llama.cpp tokenizes with Llama 3's and Qwen 2's vocabularies, cut to their first merges.

usage: vocabularies.py LLAMA_CPP_SOURCE LLAMA_CPP_BIN
"""

import pathlib
import sys
import tempfile
import unicodedata

import gguf
from common import OUT, LlamaCpp, write

import texts

MERGES = 6000
# Tokens that no merge here makes, so that it shows who looks a whole word up first.
WHOLE = 400
MARKERS = [
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "a<|eot_id|>b<|endoftext|>c <|im_end|> d",
]


def cut(keys):
    """A vocabulary's first merges, the tokens they make, and its special tokens."""
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    kept = {token for token in tokens if len(token) == 1}
    known, merges = set(tokens), []
    for merge in keys["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        if left in kept and right in kept and left + right in known:
            kept.add(left + right)
            merges.append(merge)
        if len(merges) == MERGES:
            break
    whole = [token for token, kind in zip(tokens, kinds) if kind == 1 and token not in kept and len(token) > 6]
    kept |= set(whole[:WHOLE])
    special = [(token, kind) for token, kind in zip(tokens, kinds) if kind != 1 and "reserved" not in token][:40]
    left = [(token, 1) for token, kind in zip(tokens, kinds) if kind == 1 and token in kept] + special
    return [token for token, _ in left], [kind for _, kind in left], merges


def main():
    source, llama = pathlib.Path(sys.argv[1]), LlamaCpp(sys.argv[2])
    for name, pre in [("llama-bpe", "llama-bpe"), ("qwen2", "qwen2")]:
        reader = gguf.GGUFReader(source / "models" / f"ggml-vocab-{name}.gguf")
        keys = {key: field.contents() for key, field in reader.fields.items()}
        assert keys["tokenizer.ggml.pre"] == pre
        tokens, kinds, merges = cut(keys)
        architecture = keys["general.architecture"]
        with tempfile.TemporaryDirectory() as work:
            path = f"{work}/{name}.gguf"
            writer = gguf.GGUFWriter(path, architecture)
            for key, field in reader.fields.items():
                if key.startswith(f"{architecture}.") and not key.endswith("vocab_size"):
                    writer.add_key_value(key, field.contents(), field.types[0])
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list(tokens)
            writer.add_token_types(kinds)
            writer.add_token_merges(merges)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
            cases = texts.PLAIN + texts.MARKERS + MARKERS + texts.mixtures(250, 2)
            if name == "qwen2":
                # Qwen's own tokenizer composes characters first; llama.cpp does not.
                cases = [text for text in cases if unicodedata.normalize("NFC", text) == text]
            recorded = [{"text": text, "ids": llama.ids(path, text)} for text in cases]
        vocabulary = {"pre": pre, "tokens": tokens, "kinds": kinds, "merges": merges}
        write(OUT / f"{name}_tokenizer.json.gz", {"vocabulary": vocabulary, "texts": recorded})


if __name__ == "__main__":
    main()
