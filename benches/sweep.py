#!/usr/bin/env python3
"""`serq sweep` on two cores and on one: how much sooner, and the same bytes.

    python3 benches/sweep.py [--pairs 3] [--seeds 1..8] [--no-history] [--smoke]

Eight cells (four thresholds, two loads) of the seed's program, each with every seed. Wall
time, `--jobs 1` and `--jobs 2` in turn, median of the pairs. It fails when an output differs, or
when two cores are less than 1.8 times as fast as one. Whether the machine has two cores to
give is measured too: the same work as two commands at once, half of the cells each, with
`--jobs 1`. They share nothing, so no sweep can be expected to beat them. `--smoke` compares
the outputs only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine

PROGRAM = machine.ROOT / "examples/pd-disaggregation/llmd_nixl_pull.sq"
RATIO_MUST = 1.8


def command(serq, jobs, thresholds, seeds, horizon):
    words = [serq, "sweep", PROGRAM, "--sweep", f"thr={thresholds}", "--sweep", "Lambda=0.6,1.2"]
    words += ["--seeds", seeds, "--horizon", horizon, "--warmup", horizon / 10, "--csv", "--jobs", jobs]
    return [str(word) for word in words]


def swept(serq, jobs, seeds, horizon):
    """Seconds of wall time, of processor time, and the output of a sweep."""
    wall, times = time.monotonic(), os.times()
    run = subprocess.run(command(serq, jobs, "1,512,2048,inf", seeds, horizon), capture_output=True)
    wall, after = time.monotonic() - wall, os.times()
    if run.returncode:
        sys.exit(run.stderr.decode())
    cpu = after.children_user + after.children_system - times.children_user - times.children_system
    return wall, cpu, run.stdout


def apart(serq, seeds, horizon):
    """Seconds of wall time of the two halves at once, as processes that share nothing."""
    wall = time.monotonic()
    halves = [
        subprocess.Popen(command(serq, 1, thresholds, seeds, horizon), stdout=subprocess.DEVNULL)
        for thresholds in ("1,512", "2048,inf")
    ]
    if any([half.wait() for half in halves]):
        sys.exit("half of the sweep failed")
    return time.monotonic() - wall


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=3)
    arguments.add_argument("--seeds", default="1..8")
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--serq", type=Path, help="this build instead of a new optimised one")
    arguments = arguments.parse_args()
    if arguments.pairs < 1:
        sys.exit("--pairs is at least 1")
    seeds, horizon = ("1..2", 20) if arguments.smoke else (arguments.seeds, 2_000)
    serq = arguments.serq or machine.built("serq")

    one, two, halves = [], [], []
    for pair in range(1 if arguments.smoke else arguments.pairs):
        for jobs in (1, 2) if pair % 2 == 0 else (2, 1):
            (one if jobs == 1 else two).append(swept(serq, jobs, seeds, horizon))
        halves.append(apart(serq, seeds, horizon))
    if len({output for _, _, output in one + two}) != 1:
        sys.exit("the output depends on --jobs")
    print(f"8 cells, seeds {seeds}: the same {len(one[0][2])} bytes with --jobs 1 and 2")
    if arguments.smoke:
        return 0
    ratio = statistics.median(a[0] / b[0] for a, b in zip(one, two))
    for jobs, runs in ((1, one), (2, two)):
        wall, cpu = (statistics.median(run[part] for run in runs) for part in (0, 1))
        print(f"  --jobs {jobs}: {wall:6.2f} s of wall time, {cpu:6.2f} s of processor time, {cpu / wall:.2f} cores")
    possible = statistics.median(a[0] / b for a, b in zip(one, halves))
    print(f"  two commands: {statistics.median(halves):6.2f} s of wall time, {possible:.2f} times as fast as one")
    verdict = "met" if ratio >= RATIO_MUST else "missed"
    print(f"two cores are {ratio:.2f} times as fast, of {RATIO_MUST}: {verdict} (load {machine.load()})")
    if not arguments.no_history:
        machine.remember(
            bench="sweep",
            seeds=seeds,
            wall_s={"1": [run[0] for run in one], "2": [run[0] for run in two]},
            cpu_s={"1": [run[1] for run in one], "2": [run[1] for run in two]},
            apart_s=halves,
            ratio=round(ratio, 3),
            possible=round(possible, 3),
        )
    return 0 if ratio >= RATIO_MUST else 1


if __name__ == "__main__":
    sys.exit(main())
