#!/usr/bin/env python3
"""Plain requests through prefill and decode instances: our simulator beside NVIDIA's AISimulate.

    python3 benches/aisimulate.py [--pairs 3] [--requests 10000] [--no-history] [--smoke]

2,000 tokens in and 200 out, Poisson arrivals, no prefix twice; 2P2D at 5 requests a second
and 100P100D at 250. Both get the same arrivals from a file: ours runs
benches/plain_2p2d.sq with `arrive trace` in the place of its Poisson process, the other is
the offline replay inside ai-dynamo-runtime 1.6.1, which comes from PyPI. Both run in turn on
one core.

Step times are not the same thing in both programs, so the other runs with two of its
timing models: its own (a polynomial; a decode step of 9 ms, the fewest steps) and fixed ones
nearest to ours (40 ms for the prompt, 0.2 ms a decode step, 25.6 GB/s of wire). We must be
ten times as fast as the faster of them, in requests per second of processor time. Its time
is that of the call alone; ours is the whole process, which reads the program too.

`--smoke` runs ours only, briefly, and compares nothing.
"""

import argparse
import json
import random
import resource
import statistics
import sys
from pathlib import Path

import machine

PROGRAM = machine.ROOT / "benches/plain_2p2d.sq"
FOLDER = machine.TARGET / "bench-plain"
ARRIVE = "arrive poisson(Lambda);"
RATIO_MUST = 10
# Instances of each kind, requests a second.
CLUSTERS = {"2P2D": (2, 5), "100P100D": (100, 250)}
TIMINGS = {
    "its own": {},
    "as ours": {
        "timing_model": {"type": "fixed", "prefill_ms": 40.0, "decode_ms": 0.2},
        "kv_transfer_bytes_per_token": 128_000,
        "kv_transfer_bandwidth": 25.6,
    },
}

REFERENCE = """
import json, sys, time
from dynamo._core import run_mocker_trace_replay
trace, count, timing = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
engine = dict(block_size=16, num_gpu_blocks=10000, max_num_seqs=64, max_num_batched_tokens=8192)
engine.update(enable_prefix_caching=False, **timing)
before = time.process_time()
result = run_mocker_trace_replay(
    [trace],
    prefill_engine_args={"engine": {**engine, "worker_type": "prefill"}},
    decode_engine_args={"engine": {**engine, "worker_type": "decode"}},
    num_prefill_workers=count,
    num_decode_workers=count,
    trace_block_size=512,
    capture_planner_details=False,
)
cpu = time.process_time() - before
summary = result.summary
print(json.dumps({"cpu_s": cpu, "ended": summary["completed_requests"],
                  "ttft_ms": summary["mean_ttft_ms"], "response_ms": summary["mean_e2e_latency_ms"]}))
"""


def write_inputs(rate, requests):
    """The same arrivals for both: a trace of turns for ours, Mooncake's form for the other."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    turns, mooncake = FOLDER / "arrivals.csv", FOLDER / "arrivals.jsonl"
    draws, at = random.Random(1), 0.0
    with open(turns, "w", encoding="utf-8") as ours, open(mooncake, "w", encoding="utf-8") as theirs:
        for request in range(requests):
            at += draws.expovariate(rate)
            ours.write(f"{request},1,2000,200,0,0,{at:.9f}\n")
            # Four blocks of 512 tokens that no other prompt has.
            blocks = list(range(4 * request, 4 * request + 4))
            row = {"timestamp": round(at * 1000, 6), "input_length": 2000, "output_length": 200, "hash_ids": blocks}
            theirs.write(json.dumps(row) + "\n")
    text = PROGRAM.read_text(encoding="utf-8")
    if text.count(ARRIVE) != 1:
        sys.exit(f"{PROGRAM} no longer says `{ARRIVE}` once; the bench puts `arrive trace;` there")
    text = text.replace(ARRIVE, f'arrive trace; trace "{turns.name}";').replace('"../lib', f'"{machine.ROOT}/lib')
    program = FOLDER / "plain_trace.sq"
    program.write_text(text, encoding="utf-8")
    # A minute after the last arrival everybody has been answered.
    return program, turns, mooncake, at + 60


def ours(xtask, program, turns, horizon, count):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = machine.run_json(
        [xtask, "bench", program, "--trace", turns, "--horizon", horizon, "--set", f"NP={count}", "--set", f"ND={count}"]
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return run


def rate(run):
    return run["ended"] / run["cpu_s"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=3)
    arguments.add_argument("--requests", type=int, default=10_000)
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--xtask", type=Path)
    arguments = arguments.parse_args()
    if arguments.pairs < 1 or arguments.requests < 1:
        sys.exit("--pairs and --requests are at least 1")
    requests = min(arguments.requests, 200) if arguments.smoke else arguments.requests

    xtask = arguments.xtask or machine.built("xtask")
    python = None if arguments.smoke else machine.python_with("ai-dynamo-runtime", "1.6.1")
    machine.stay_on_one_core()
    all_met = True
    for name, (count, arrivals) in CLUSTERS.items():
        program, turns, mooncake, horizon = write_inputs(arrivals, requests)
        runs, others = [], {timing: [] for timing in TIMINGS}
        for _ in range(1 if arguments.smoke else arguments.pairs):
            runs.append(ours(xtask, program, turns, horizon, count))
            for timing, engine in TIMINGS.items() if python else ():
                command = [python, "-c", REFERENCE, mooncake, count, json.dumps(engine)]
                others[timing].append(machine.run_json(command))
        everyone = runs + [run for timing in others.values() for run in timing]
        if short := [run["ended"] for run in everyone if run["ended"] != requests]:
            sys.exit(f"{name}: {short[0]} of {requests} requests were answered")
        print(f"{name:9} {arrivals:4}/s  serq {statistics.median(map(rate, runs)):10,.0f} requests per CPU second")
        if arguments.smoke:
            continue
        ratios = {}
        for timing, other in others.items():
            ratios[timing] = statistics.median(rate(a) / rate(b) for a, b in zip(runs, other))
            print(f"{'':16} AISimulate, step times {timing}: {statistics.median(map(rate, other)):8,.0f}, ratio {ratios[timing]:.1f}"
                  f" (its mean ttft {other[0]['ttft_ms']:.1f} ms, response {other[0]['response_ms']:.1f} ms)")
        least = min(ratios.values())
        all_met = all_met and least >= RATIO_MUST
        print(f"{'':16} {least:.1f} of {RATIO_MUST}: {'met' if least >= RATIO_MUST else 'missed'}", flush=True)
        if not arguments.no_history:
            machine.remember(
                bench="aisimulate",
                setting=name,
                requests=requests,
                serq_s=[run["cpu_s"] for run in runs],
                aisimulate_s={timing: [run["cpu_s"] for run in other] for timing, other in others.items()},
                ratio=round(least, 3),
            )
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
