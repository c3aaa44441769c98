"""Whether vLLM on a folder that convert.py made says what the engine's reference says, token for token.

usage: check.py FOLDER [PROMPTS]

The folder is converted to float32: the reference is transformers on the same weights, in singles
(tests/engine/smollm2.json.gz). Prints a line a prompt; the status is 1 where a token differs.
"""

import gzip
import json
import os
import sys
from pathlib import Path

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")

from vllm import LLM, SamplingParams  # noqa: E402

RECORDED = Path(__file__).resolve().parents[2] / "tests/engine/smollm2.json.gz"


def main():
    prompts = json.loads(gzip.decompress(RECORDED.read_bytes()))["prompts"]
    prompts = prompts[: int(sys.argv[2])] if len(sys.argv) > 2 else prompts
    engine = LLM(sys.argv[1], dtype="float32", max_model_len=2048, max_num_seqs=8, enforce_eager=True)
    greedy = SamplingParams(temperature=0, max_tokens=len(prompts[0]["greedy"]), ignore_eos=True, detokenize=False)
    answers = engine.generate([{"prompt_token_ids": prompt["ids"]} for prompt in prompts], greedy, use_tqdm=False)
    same = 0
    for prompt, answer in zip(prompts, answers):
        pairs = list(zip(prompt["greedy"], answer.outputs[0].token_ids, strict=True))
        parted = next((at for at, (theirs, ours) in enumerate(pairs) if theirs != ours), None)
        same += parted is None
        if parted is None:
            print(f"{prompt['name']}: the same {len(pairs)} tokens")
        else:
            print(f"{prompt['name']}: another token at {parted}, where the margin is {prompt['margins'][parted]}")
    print(f"{same} of {len(prompts)} prompts")
    sys.exit(same < len(prompts))


if __name__ == "__main__":
    main()
