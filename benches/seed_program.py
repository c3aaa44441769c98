#!/usr/bin/env python3
"""The seed's program, 10 000 s, seed 1: our simulator beside pyserq 0.1.2.

    python3 benches/seed_program.py [--pairs 5] [--horizon 10000] [--no-history]

Both run in turn on one core, pair after pair, so that what slows the machine slows
both. Measured is processor time of the run alone: starting a process, reading and
linking the program are not in it. The result is the median over the pairs of their
ratio; it fails below 3. A line goes to benches/history.jsonl: commit, machine, raw samples.

pyserq comes from PyPI into target/bench-venv and is run as it is; it reads our text of
the program, which is the seed's (tests/pd/seed_identity.json).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "examples/pd-disaggregation/llmd_nixl_pull.sq"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
RATIO_MIN = 3.0

REFERENCE = """
import sys, time, pyserq
path, horizon = sys.argv[1], float(sys.argv[2])
program = pyserq.compile(path=path, seed=1, horizon=horizon, warmup=horizon / 10)
before = time.process_time()
pyserq.run(program)
print(time.process_time() - before)
"""


def reference_python():
    """A Python with pyserq 0.1.2."""
    folder = TARGET / "bench-venv"
    python = folder / "bin/python"
    if subprocess.run([python, "-c", "import pyserq"], capture_output=True).returncode if python.exists() else True:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pyserq==0.1.2"], check=True)
    return python


def processor():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit():
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout.strip() or "unknown"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--horizon", type=float, default=10_000)
    arguments.add_argument("--no-history", action="store_true")
    arguments = arguments.parse_args()

    python = reference_python()
    subprocess.run(["cargo", "build", "--release", "--quiet", "--package", "xtask"], cwd=ROOT, check=True)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    horizon = str(arguments.horizon)
    ours_command = [TARGET / "release/xtask", "bench", PROGRAM, "--horizon", horizon]
    ours_command += ["--warmup", str(arguments.horizon / 10)]

    ours, theirs = [], []
    for pair in range(arguments.pairs):
        def run_ours():
            run = subprocess.run(ours_command, check=True, capture_output=True, text=True)
            ours.append(json.loads(run.stdout)["cpu_s"])

        def run_theirs():
            command = [python, "-c", REFERENCE, PROGRAM, horizon]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            theirs.append(float(run.stdout))

        # Who is first alternates too.
        for run in (run_ours, run_theirs) if pair % 2 == 0 else (run_theirs, run_ours):
            run()
        print(f"pair {pair + 1}: serq {ours[-1]:.3f} s, pyserq {theirs[-1]:.3f} s, {theirs[-1] / ours[-1]:.2f} x", flush=True)

    ratio = statistics.median(t / o for o, t in zip(ours, theirs))
    print(f"median: serq {statistics.median(ours):.3f} s, pyserq {statistics.median(theirs):.3f} s of processor time")
    print(f"serq is {ratio:.2f} times as fast (at least {RATIO_MIN:.0f})")
    if not arguments.no_history:
        line = {
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": commit(),
            "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            "horizon": arguments.horizon,
            "serq_s": ours,
            "pyserq_0.1.2_s": theirs,
            "ratio": round(ratio, 3),
        }
        with open(ROOT / "benches/history.jsonl", "a", encoding="utf-8") as history:
            history.write(json.dumps(line) + "\n")
    return 0 if ratio >= RATIO_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
