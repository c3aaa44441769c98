"""Records what SmolLM2 answers: the GGUF's weights, dequantised to singles, in transformers' model.

usage: smollm2.py MODEL.gguf LLAMA_CPP_BIN
"""

import sys

import gguf
import numpy as np
import torch
from common import OUT, LlamaCpp, fingerprint, short, unpaired, write
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import texts

TOKENS = 48
KEPT = 50
# Logits of every so many ids are kept, so that those nobody would pick are looked at too.
STRIDE = 512
# Layers whose bits are kept.
LOOKED_AT = ("blk.0.", "blk.15.", "blk.29.")

PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(path):
    """The model in singles, its tokenizer, and the bits of some tensors."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
    weights, prints = {}, {}
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.name):
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match tensor.name.split("."):
            case ["token_embd", _]:
                name = "model.embed_tokens"
            case ["output_norm", _]:
                name = "model.norm"
            case ["blk", layer, part, _]:
                if part in ("attn_q", "attn_k"):
                    numbers = unpaired(numbers, heads if part == "attn_q" else kv_heads)
                name = f"model.layers.{layer}.{PARTS[part]}"
        numbers = np.ascontiguousarray(numbers)
        weights[f"{name}.weight"] = torch.from_numpy(numbers)
        if not tensor.name.startswith("blk.") or tensor.name.startswith(LOOKED_AT):
            prints[tensor.name] = fingerprint(numbers)
    config = LlamaConfig(
        vocab_size=len(keys["tokenizer.ggml.tokens"]),
        hidden_size=keys["llama.embedding_length"],
        intermediate_size=keys["llama.feed_forward_length"],
        num_hidden_layers=keys["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=keys["llama.context_length"],
        rms_norm_eps=keys["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": keys["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()

    vocabulary = keys["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(vocabulary, keys["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=vocabulary[keys["tokenizer.ggml.bos_token_id"]],
        eos_token=vocabulary[keys["tokenizer.ggml.eos_token_id"]],
    )
    fast.chat_template = keys["tokenizer.chat_template"]
    return model, fast, prints


@torch.no_grad()
def greedy(model, ids):
    """What the model goes on with, never stopping, and how its logits were."""
    chosen, margins, sums, kept, strided = [], [], [], {}, None
    cache, fed = None, torch.tensor([ids])
    for step in range(TOKENS):
        answer = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = answer.past_key_values, answer.logits[0, -1].double()
        top = torch.topk(logits, KEPT)
        chosen.append(int(top.indices[0]))
        margins.append(short(top.values[0] - top.values[1]))
        sums.append(short(torch.logsumexp(logits, 0)))
        if step in (0, 1, TOKENS - 1):
            kept[step] = [[int(i), short(v)] for i, v in zip(top.indices, top.values)]
        if step == 0:
            strided = [short(v) for v in logits[::STRIDE]]
        fed = torch.tensor([[chosen[-1]]])
    return {"greedy": chosen, "margins": margins, "log_sums": sums, "top": kept, "strided": strided}


def main():
    path, llama = sys.argv[1], LlamaCpp(sys.argv[2])
    model, tokenizer, prints = load(path)

    def ids(text):
        # llama.cpp's tokenizer and Hugging Face's are written apart: what they agree on is kept.
        mine = tokenizer.encode(text, add_special_tokens=False)
        theirs = llama.ids(path, text)
        if mine != theirs:
            print(f"not kept, {text!r}: {mine} here, {theirs} by llama.cpp")
            return None
        return mine

    tokenized = [{"text": text, "ids": ids(text)} for text in texts.PLAIN + texts.MARKERS + texts.mixtures(250, 1)]
    chats, prompts = [], [(name, text) for name, text in texts.PROMPTS]
    for name, messages in texts.CHATS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        plain = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        chats.append({"name": name, "messages": messages, "prompt": text, "record": plain})
        prompts.append((f"chat: {name}", text))
    kept = [case for case in tokenized if case["ids"] is not None]
    print(f"{len(kept)} of {len(tokenized)} texts kept")
    write(OUT / "smollm2_tokenizer.json.gz", {"texts": kept, "chats": chats})

    recorded = []
    for name, text in prompts:
        prompt = ids(text)
        assert prompt, name
        answer = greedy(model, prompt)
        recorded.append({"name": name, "text": text, "ids": prompt, **answer})
        print(f"{name}: {len(prompt)} tokens, {tokenizer.decode(answer['greedy'])[:60]!r}", flush=True)
    write(OUT / "smollm2.json.gz", {"stride": STRIDE, "tensors": prints, "prompts": recorded})


if __name__ == "__main__":
    main()
