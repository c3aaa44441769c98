"""vLLM on the CPU at the workloads of crates/serq-engine/examples/model_bench.rs, for benches/engine.py.

usage: vllm_peer.py FOLDER [--dtype bfloat16] [--threads 2] [--repetitions 5] [--seconds 30]

Runs with the Python of tools/vllm/install.sh on a folder of tools/vllm/convert.py. Prints one line of
JSON: tokens a second of a prompt of 512, and of one token of each of 1 and of 8 texts, 64 steps from a prompt of one
token on; the best of the repetitions, of which there are fewer where a figure takes longer than its
seconds; and the load. Prefix caching is off, tokens are not made text.

The engine and its worker are in this process. As three processes, which is vLLM's default, they wait for each
other busily, and on few cores take those their threads compute on. VLLM_CPU_OMP_THREADS_BIND is read by the
processes only, so its binding, a thread a core from core 0 on, is set here as vLLM sets it for them, for
Intel's OpenMP, which its documentation advises to preload.
"""

import argparse
import json
import os
import sys
import time

PROMPT, STEPS = 512, 64


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder")
    arguments.add_argument("--dtype", default="bfloat16")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=30)
    arguments = arguments.parse_args()
    openmp = f"{sys.prefix}/lib/libiomp5.so"
    if openmp not in os.environ.get("LD_PRELOAD", ""):
        cores = ",".join(map(str, range(arguments.threads)))
        os.environ.update(LD_PRELOAD=openmp, OMP_NUM_THREADS=str(arguments.threads), KMP_BLOCKTIME="5")
        os.environ.update(KMP_AFFINITY=f"granularity=fine,explicit,proclist=[{cores}]")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    from vllm import LLM, SamplingParams

    engine = LLM(arguments.folder, dtype=arguments.dtype, max_model_len=1024, max_num_batched_tokens=1024,
                 max_num_seqs=8, enable_prefix_caching=False, enforce_eager=True)

    def rate(texts, prompt, steps):
        """Prompt tokens a second if there is one step, else tokens answered a second."""
        prompts = [{"prompt_token_ids": [((text + at) * 7919 + 11) % 49152 for at in range(prompt)]} for text in range(texts)]
        greedy = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True, detokenize=False)
        seconds, began = [], time.monotonic()
        # The first is a warm-up, and is measured only where there is no time for a second.
        while len(seconds) <= arguments.repetitions and time.monotonic() - began < arguments.seconds:
            start = time.perf_counter()
            engine.generate(prompts, greedy, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
        return (prompt if steps == 1 else texts * steps) / min(seconds[1:] or seconds)

    found = {"prefill_512": rate(1, PROMPT, 1), "decode_1": rate(1, 1, STEPS), "decode_8": rate(8, 1, STEPS)}
    print(json.dumps({**{figure: round(value, 1) for figure, value in found.items()}, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
