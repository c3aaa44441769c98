#!/usr/bin/env python3
"""The seed's program in eight settings: our simulator beside pyserq 0.1.2.

    python3 benches/settings.py [--only first,omega] [--pairs 5] [--no-history] [--smoke]
                                [--profile-guided]

Counted are turns per second of processor time. Processor time is that of the run alone:
starting a process, reading and linking the program are not in it. A turn is one request of
a session; all of a run are counted, on both sides, without a warm-up. Both programs run in
turn on one core, pair after pair, so that what slows the machine slows both; the results
are the medians over the pairs. A setting is missed when the rate or the ratio is below its
bar: then the script fails.

pyserq takes longer than linear in the instances, so it runs a shorter horizon (a column of
SETTINGS), also from empty, and rates are compared. It comes from PyPI into the target folder and is run as
it is; it reads our text of the program, which is the seed's (tests/pd/seed_identity.json).

A line per setting goes to benches/history.jsonl: commit, machine, raw samples. `--smoke`
runs every setting for a moment, ours only, compares nothing and writes nothing: it tells
that the bench still works. `--xtask FILE` takes that build instead of a new optimised one;
`--profile-guided` one that benches/profile_guided.py makes.
"""

import argparse
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import machine
import profile_guided

PROGRAM = machine.ROOT / "examples/pd-disaggregation/llmd_nixl_pull.sq"
SMOKE_HORIZON = 2


@dataclass(frozen=True)
class Setting:
    name: str
    text: str
    sets: tuple
    horizon: float
    reference_horizon: float | None  # None: pyserq refuses the program
    must: float  # thousand turns per processor second
    aim: float
    ratio_must: float | None
    leap: bool = True


def pods(count, rate):
    return (f"NP={count}", f"ND={count}", f"Lambda={rate}")


# The 1000P1000D program is refused by pyserq because its gauges write out 6,000 terms.
SETTINGS = [
    Setting("first", "2P2D, 0.6/s (as written)", (), 10_000, 2_000, 350, 600, 50),
    Setting("load", "2P2D, 1.2/s", ("Lambda=1.2",), 10_000, 1_000, 280, 480, 45),
    Setting("blocks", "2P2D, 0.6/s, blocksD 1100", ("blocksD=1100",), 10_000, 2_000, 300, 530, 48),
    Setting("8p8d", "8P8D, 2.4/s", pods(8, 2.4), 5_000, 400, 200, 350, 90),
    Setting("100p100d", "100P100D, 30/s", pods(100, 30), 600, 10, 65, 120, 850),
    Setting("1000p1000d", "1000P1000D, 300/s", pods(1000, 300), 100, None, 20, 40, None),
    Setting("omega", "2P2D, 1.2/s, steps of 20 ms", ("omega=0.02", "Lambda=1.2"), 10_000, 2_000, 150, 230, 14),
    Setting("no-leap", "2P2D, 0.6/s, --no-leap", (), 10_000, 2_000, 80, 130, 12, leap=False),
]

REFERENCE = """
import json, sys, time, pyserq
program = pyserq.compile(path=sys.argv[1], seed=1, horizon=float(sys.argv[2]), warmup=0)
before = time.process_time()
report = pyserq.run(program)
print(json.dumps({"cpu_s": time.process_time() - before, "turns": report.turns}))
"""


def ours(xtask, setting, horizon):
    command = [xtask, "bench", PROGRAM, "--horizon", horizon, "--warmup", 0]
    command += [word for assignment in setting.sets for word in ("--set", assignment)]
    return machine.run_json(command + ([] if setting.leap else ["--no-leap"]))


def theirs(python, setting):
    return machine.run_json([python, "-c", REFERENCE, written_out(setting), setting.reference_horizon])


def written_out(setting):
    """The program with the setting's numbers in its text: pyserq can't set how many instances there are."""
    text = PROGRAM.read_text(encoding="utf-8").replace('"../../lib', f'"{machine.ROOT}/lib')
    for assignment in setting.sets:
        constant, value = assignment.split("=")
        text, count = re.subn(rf"^let {constant} = [^;]+;", f"let {constant} = {value};", text, flags=re.MULTILINE)
        if count != 1:
            sys.exit(f"{PROGRAM} has no `let {constant}`")
    file = machine.TARGET / f"bench-settings/{setting.name}.sq"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def rate(run):
    """Thousand turns per second of processor time."""
    return run["turns"] / run["cpu_s"] / 1000


def measure(xtask, python, setting, pairs):
    """Pairs of runs, ours and pyserq's; who is first alternates."""
    runs, reference_runs = [], []
    for pair in range(pairs):
        both = [lambda: runs.append(ours(xtask, setting, setting.horizon))]
        if setting.reference_horizon is not None:
            both.append(lambda: reference_runs.append(theirs(python, setting)))
        for run in both if pair % 2 == 0 else reversed(both):
            run()
    return runs, reference_runs


def against(value, must, aim=None):
    """How a figure stands to its bar, in words."""
    if aim is not None and value >= aim:
        return "aim met"
    if value >= must:
        return "met"
    return f"missed, {value / must:.0%} of {must:g}"


def report(setting, runs, reference_runs):
    """Prints a row; whether its bars are met."""
    ours_rate = statistics.median(map(rate, runs))
    memory = max(run["memory_peak_mb"] or 0 for run in runs)
    row = f"{setting.text:28} {ours_rate:8.1f} {setting.must:6g} {setting.aim:6g}"
    met = ours_rate >= setting.must
    ratio = None
    if reference_runs:
        ratio = statistics.median(rate(a) / rate(b) for a, b in zip(runs, reference_runs))
        row += f" {statistics.median(map(rate, reference_runs)):9.3f} {ratio:8.1f} {setting.ratio_must:6g}"
        met = met and ratio >= setting.ratio_must
    else:
        row += f" {'–':>9} {'–':>8} {'–':>6}"
    row += f" {memory:7.1f}   rate {against(ours_rate, setting.must, setting.aim)}"
    if ratio is not None:
        row += f"; ratio {against(ratio, setting.ratio_must)}"
    print(row, flush=True)
    return met, ratio


def main():
    names = [setting.name for setting in SETTINGS]
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", help=f"settings, by comma: {', '.join(names)}")
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--xtask", type=Path)
    arguments.add_argument("--profile-guided", action="store_true")
    arguments = arguments.parse_args()
    chosen = arguments.only.split(",") if arguments.only else names
    if unknown := [name for name in chosen if name not in names]:
        sys.exit(f"no setting is named {unknown[0]}: write some of {', '.join(names)}")
    if arguments.pairs < 1:
        sys.exit("--pairs is at least 1")
    settings = [setting for setting in SETTINGS if setting.name in chosen]

    if arguments.profile_guided:
        xtask = profile_guided.programs() / "xtask"
    else:
        xtask = arguments.xtask or machine.built("xtask")
    if arguments.smoke:
        for setting in settings:
            run = ours(xtask, setting, SMOKE_HORIZON)
            if not run["turns"]:
                sys.exit(f"{setting.text}: no turn in {SMOKE_HORIZON} s")
            print(f"{setting.text:28} {run['turns']} turns, {run['events']} events")
        return 0

    python = machine.python_with("pyserq", "0.1.2")
    machine.stay_on_one_core()
    print(f"{machine.name()}, load {machine.load()}, commit {machine.commit()}; {arguments.pairs} pairs")
    print(f"{'thousand turns per CPU second':28} {'serq':>8} {'must':>6} {'aim':>6} {'pyserq':>9} {'ratio':>8} {'must':>6} {'MB':>7}")
    all_met = True
    for setting in settings:
        runs, reference_runs = measure(xtask, python, setting, arguments.pairs)
        met, ratio = report(setting, runs, reference_runs)
        all_met = all_met and met
        if not arguments.no_history:
            machine.remember(
                bench="settings",
                profile_guided=profile_guided.FOLDER.resolve() in xtask.resolve().parents,
                setting=setting.name,
                horizon=setting.horizon,
                reference_horizon=setting.reference_horizon,
                turns=[run["turns"] for run in runs],
                events=[run["events"] for run in runs],
                serq_s=[run["cpu_s"] for run in runs],
                memory_peak_mb=[run["memory_peak_mb"] for run in runs],
                reference_turns=[run["turns"] for run in reference_runs],
                **{"pyserq_0.1.2_s": [run["cpu_s"] for run in reference_runs]},
                ratio=ratio and round(ratio, 3),
            )
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
