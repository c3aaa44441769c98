#!/usr/bin/env python3
"""Peak memory of `serq run` with more and more requests.

    python3 benches/memory.py [--requests 10000,100000,1000000] [--no-history] [--smoke]

Runs benches/plain_2p2d.sq at 5 requests a second until so many have arrived and been answered,
and examples/pd-disaggregation/llmd_nixl_pull.sq to its horizon of 10,000. Pools are finite
and nothing is dumped, so what a run needs is what is in the system at once and its
statistics: it may not grow with the requests. It fails above 50 MB, or when the longest plain
run needs over 1.2 times and 1 MB more than the shortest. The peak is the operating
system's figure for the process (VmHWM, so only on Linux).

`--smoke` stops at 1,000 requests and a horizon of 100 and writes nothing.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import machine

PLAIN = machine.ROOT / "benches/plain_2p2d.sq"
SEED = machine.ROOT / "examples/pd-disaggregation/llmd_nixl_pull.sq"
LIMIT_MB = 50


def memory_peak_mb(pid):
    """The most memory a process has had so far; nothing when it is gone or the system doesn't tell."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def peak_mb(command):
    """Runs a command and answers its peak memory and processor time.

    The figure of `wait4` would begin with this Python's own memory, which the child has for
    a moment before it becomes the command. So the peak is asked while it runs: it only grows,
    and what is missed is its last two milliseconds.
    """
    peak, command = 0.0, [str(part) for part in command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                break
            peak = max(peak, memory_peak_mb(process.pid) or 0.0)
            time.sleep(0.002)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return peak, usage.ru_utime + usage.ru_stime


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", default="10000,30000,100000,300000,1000000")
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--serq", type=Path, help="this build instead of a new optimised one")
    arguments = arguments.parse_args()
    counts = [100, 1_000] if arguments.smoke else [int(count) for count in arguments.requests.split(",")]
    serq = arguments.serq or machine.built("serq")
    if memory_peak_mb(os.getpid()) is None:
        sys.exit("this system has no /proc/PID/status with VmHWM: run it on Linux")

    print(f"{'program':16} {'requests':>10} {'peak MB':>8} {'CPU s':>8}")
    plain = []
    for count in counts:
        # Far beyond the last arrival: the run ends when the last has ended.
        peak, cpu = peak_mb([serq, "run", PLAIN, "--arrivals", count, "--horizon", count, "--warmup", 0])
        plain.append(peak)
        print(f"{'plain_2p2d':16} {count:10,} {peak:8.1f} {cpu:8.2f}", flush=True)
    horizon = 100 if arguments.smoke else 10_000
    seed, cpu = peak_mb([serq, "run", SEED, "--horizon", horizon, "--warmup", horizon / 10])
    print(f"{'llmd_nixl_pull':16} {f'horizon {horizon}':>10} {seed:8.1f} {cpu:8.2f}")

    flat = plain[-1] <= max(plain[0] * 1.2, plain[0] + 1)
    small = max(plain + [seed]) < LIMIT_MB
    print(f"{'met' if small else 'missed'}: below {LIMIT_MB} MB; {'flat' if flat else 'grows with the requests'}")
    if not arguments.no_history and not arguments.smoke:
        machine.remember(bench="memory", requests=counts, peak_mb=plain, llmd_nixl_pull_mb=seed)
    return 0 if flat and small else 1


if __name__ == "__main__":
    sys.exit(main())
