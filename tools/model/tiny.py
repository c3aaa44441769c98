"""Records what tiny random models answer: Hugging Face folders, and GGUF files made of them by
llama.cpp's converter and quantiser, whose numbers gguf-py reads.

usage: tiny.py LLAMA_CPP_SOURCE LLAMA_CPP_BIN
"""

import gzip
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import torch
from common import OUT, LlamaCpp, fingerprint, short, unpaired, write
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from smollm2 import PARTS

VOCABULARY = 96
END = VOCABULARY - 1
# As Llama 3.1's, with an old context so short that the longer of the texts is beyond it.
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def shape(**others):
    """A configuration's words, the same for both architectures."""
    return {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": END,
        "attn_implementation": "eager",
        **others,
    }


def llama(**others):
    return LlamaForCausalLM(LlamaConfig(**shape(rms_norm_eps=1e-5, **others)))


def qwen3(**others):
    return Qwen3ForCausalLM(Qwen3Config(**shape(rms_norm_eps=1e-6, **others)))


def fill(model, seed):
    """Weights so large that every part of the model shows in its logits."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.copy_(1 + 0.3 * torch.randn(weight.shape, generator=draw))
            elif "embed" in name:
                weight.copy_(torch.randn(weight.shape, generator=draw))
            else:
                weight.copy_(1.5 * torch.randn(weight.shape, generator=draw) / weight.shape[1] ** 0.5)
    return model.eval()


def tokens(length, seed):
    return np.random.default_rng(seed).integers(0, VOCABULARY - 1, length).tolist()


@torch.no_grad()
def logits(model, lengths=((24, 1), (90, 6))):
    """Logits in singles: of texts of so many tokens, at every so many positions and the last."""
    recorded = []
    for seed, (length, stride) in enumerate(lengths):
        ids = tokens(length, seed)
        answer = model.float()(torch.tensor([ids])).logits[0]
        positions = sorted({*range(0, length, stride), length - 1})
        rows = [[short(number) for number in answer[position]] for position in positions]
        recorded.append({"ids": ids, "positions": positions, "logits": rows})
    return recorded


def tokenizer():
    """Printable ASCII, one merge, one special token."""
    letters = ["Ġ"] + [chr(code) for code in range(33, 126)]
    vocabulary = {token: i for i, token in enumerate([*letters, "th", "<|end|>"])}
    assert len(vocabulary) == VOCABULARY
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<|end|>")


def folder(name, model, **saving):
    """A Hugging Face folder with its logits beside it."""
    path = OUT / name
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path, **saving)
    tokenizer().save_pretrained(path)
    # Read back: a model that was made bfloat16 has its rotary frequencies rounded, too.
    again = type(model).from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    write(path / "logits.json.gz", logits(again))
    for file in sorted(path.iterdir()):
        print(f"  {file.name}: {file.stat().st_size} bytes")


def weights(path):
    """A GGUF file's weights in singles, in transformers' order and by its names."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    name = keys["general.architecture"]
    found, prints = {}, {}
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match tensor.name.split("."):
            case ["rope_freqs", _]:
                continue
            case ["token_embd", _]:
                to = "model.embed_tokens"
            case ["output_norm", _]:
                to = "model.norm"
            case ["output", _]:
                to = "lm_head"
            case ["blk", layer, part, _]:
                if name == "llama" and part in ("attn_q", "attn_k"):
                    heads = keys[f"{name}.attention.head_count" + ("" if part == "attn_q" else "_kv")]
                    numbers = unpaired(numbers, heads)
                parts = {**PARTS, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
                to = f"model.layers.{layer}.{parts[part]}"
        found[f"{to}.weight"] = torch.from_numpy(np.ascontiguousarray(numbers))
        prints[tensor.name] = {"format": tensor.tensor_type.name, "sha256": fingerprint(numbers)}
    return found, prints


def quantised(source, programs, model, kinds, name):
    """The model through llama.cpp's converter and quantiser, a file a format."""
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        model.save_pretrained(work / "model")
        tokenizer().save_pretrained(work / "model")
        convert = [sys.executable, pathlib.Path(__file__).with_name("convert.py"), source, "smollm"]
        convert += [work / "model", "--outtype", "f32", "--outfile", work / "f32.gguf"]
        subprocess.run(convert, check=True)
        for kind in kinds:
            file = work / f"{kind}.gguf"
            programs.quantize(work / "f32.gguf", file, "COPY" if kind == "F32" else kind)
            found, prints = weights(file)
            formats = {entry["format"] for entry in prints.values()}
            matrix = kind.removesuffix("_S")
            assert formats == {"F32", matrix}, f"{kind}: {formats}"
            missing, unexpected = model.load_state_dict(found, strict=False)
            assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
            target = OUT / "gguf" / f"{name}_{matrix.lower()}"
            target.parent.mkdir(exist_ok=True)
            packed = gzip.compress(file.read_bytes(), compresslevel=9, mtime=0)
            target.with_suffix(".gguf.gz").write_bytes(packed)
            print(f"{target.name}: {len(packed)} bytes")
            write(target.with_suffix(".json.gz"), {"tensors": prints, "texts": logits(model, ((12, 3), (40, 39)))})


def main():
    source, programs = sys.argv[1], LlamaCpp(sys.argv[2])
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    plain = {"rope_type": "default", "rope_theta": 1e6}
    untied = llama(**small, **heads, rope_parameters=LLAMA_3, tie_word_embeddings=False)
    folder("llama", fill(untied, 1))
    tied = qwen3(**small, **heads, rope_parameters=plain, tie_word_embeddings=True)
    folder("qwen3", fill(tied, 2).to(torch.bfloat16), max_shard_size="20KB")

    shutil.rmtree(OUT / "gguf", ignore_errors=True)
    narrow = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = fill(llama(**narrow, **heads, rope_parameters=LLAMA_3, tie_word_embeddings=False), 3)
    quantised(source, programs, model, ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"], "llama")
    model = fill(qwen3(**narrow, **heads, rope_parameters=plain, tie_word_embeddings=True), 4)
    quantised(source, programs, model, ["Q8_0"], "qwen3")
    # Blocks of 256 want every row to be that long.
    wide = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1}
    model = fill(llama(**wide, **heads, rope_parameters=plain, tie_word_embeddings=True), 5)
    quantised(source, programs, model, ["Q4_K_S", "Q6_K"], "llama")


if __name__ == "__main__":
    main()
