#!/usr/bin/env python3
"""serq built with a profile of its own runs: the same bits, a seventh faster.

    python3 benches/profile_guided.py [--smoke --xtask FILE]

Most of a run's code is met once a turn, 60 kB of it, and does not fit a processor's first
instruction cache; with a profile the compiler puts what runs often side by side, the rest
elsewhere, and copies into its caller what is worth it. It is also built for the processor at hand,
which is worth two in a hundred, and need not run on another one. The programs are `serq` and `xtask`
in target/profile-guided/use/release.

The profile is of the example programs and of the P/D program in settings that no bench
measures, at another seed than the benches'. It is made with the compiler at hand, as a
profile of another one is worth nothing, and needs `llvm-profdata`: `rustup component add
llvm-tools`, or Debian's llvm-19 or newer. `--smoke` runs what the profile is of, for a
moment each, and builds nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import machine

FOLDER = machine.TARGET / "profile-guided"
EXAMPLES = machine.ROOT / "examples"
PD = EXAMPLES / "pd-disaggregation/llmd_nixl_pull.sq"
SEED = 7
# P/D settings, with the time that is simulated of each.
PD_SETTINGS = [
    (("NP=1", "ND=1", "Lambda=0.4"), 3_000),
    (("NP=3", "ND=2", "Lambda=1.0", "blocksD=1200"), 2_000),
    (("NP=5", "ND=6", "Lambda=1.6"), 1_000),
    (("NP=40", "ND=40", "Lambda=12"), 60),
    (("NP=300", "ND=300", "Lambda=90"), 20),
    (("omega=0.01", "Lambda=0.9"), 2_000),
    (("thr=1", "Lambda=0.8"), 1_000),
]


def profile_reader():
    """llvm-profdata: the toolchain's own, else the newest on this machine."""
    root = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    own = sorted(Path(root).glob("lib/rustlib/*/bin/llvm-profdata"))
    debian = sorted(Path("/usr/lib").glob("llvm-*/bin/llvm-profdata"), key=lambda file: int(file.parts[3][5:]))
    found = own + debian[::-1]
    if found:
        return found[0]
    if on_path := shutil.which("llvm-profdata"):
        return on_path
    sys.exit("llvm-profdata is missing: write `rustup component add llvm-tools`, or install Debian's llvm-19")


def build(stage, flag):
    """Builds into a folder of that stage, with the flag for every crate. Both stages build the
    same packages: with other features a crate's functions have other names in the profile."""
    words = ["cargo", "build", "--release", "--quiet", "--locked", "--target-dir", FOLDER / stage]
    words += ["--package", "serq", "--package", "xtask"]
    flags = f"{os.environ.get('RUSTFLAGS', '')} -Ctarget-cpu=native {flag}".strip()
    subprocess.run(words, cwd=machine.ROOT, env={**os.environ, "RUSTFLAGS": flags}, check=True)
    return FOLDER / stage / "release"


def train(xtask, profiles=".", horizon_max=float("inf")):
    """Runs what the profile is of; a program built for it leaves profiles in that folder."""
    environment = {**os.environ, "LLVM_PROFILE_FILE": f"{profiles}/%p-%m.profraw"}

    def run(program, horizon, *words):
        command = [xtask, "bench", program, "--seed", SEED, "--horizon", min(horizon, horizon_max), *words]
        subprocess.run(list(map(str, command)), env=environment, check=True, stdout=subprocess.DEVNULL)

    # A trace's program needs its trace, and is not another engine.
    for program in sorted(EXAMPLES.glob("*/*.sq")):
        if program.parent.name != "trace":
            run(program, 200)
    for sets, horizon in PD_SETTINGS:
        words = [word for assignment in sets for word in ("--set", assignment)]
        run(PD, horizon, *words)
    run(PD, 200, "--no-leap")


def programs():
    """The folder of the finished programs."""
    reader = profile_reader()
    profiles = FOLDER / "profiles"
    merged = FOLDER / "merged.profdata"
    trainee = build("train", f"-Cprofile-generate={profiles}") / "xtask"
    # What macros and build scripts did while it was built is no run of it.
    shutil.rmtree(profiles, ignore_errors=True)
    profiles.mkdir(parents=True)
    train(trainee, profiles)
    subprocess.run([reader, "merge", "-o", merged, *profiles.glob("*.profraw")], check=True)
    # Cargo does not see that a profile changed.
    shutil.rmtree(FOLDER / "use", ignore_errors=True)
    return build("use", f"-Cprofile-use={merged}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--smoke", action="store_true")
    arguments.add_argument("--xtask", type=Path)
    arguments = arguments.parse_args()
    if arguments.smoke:
        train((arguments.xtask or machine.built("xtask")).resolve(), horizon_max=2)
    else:
        print(programs())


if __name__ == "__main__":
    main()
