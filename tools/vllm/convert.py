"""SmolLM2's GGUF as a Hugging Face folder that vLLM reads: weights dequantised, tokenizer, chat template.

usage: convert.py MODEL.gguf OUT [bfloat16|float32]

Weights and tokenizer are those the engine's references are recorded with (tools/model/smollm2.py): in
float32 bit for bit, in bfloat16, which is the default, rounded to nearest.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))

import smollm2  # noqa: E402


def main():
    source, out, dtype = (sys.argv[1:] + ["bfloat16"])[:3]
    model, tokenizer, _ = smollm2.load(source)
    model.to(getattr(torch, dtype))
    # Where a text begins and ends is the tokenizer's here; a server reads it from the model's files.
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    parameters = sum(tensor.numel() for tensor in model.parameters())
    print(f"{out}: {parameters / 1e6:.1f} million parameters in {dtype}")


if __name__ == "__main__":
    main()
