#!/usr/bin/env python3
"""KV layouts converted, beside a plain copy of as many bytes.

    python3 benches/layouts.py [--no-history] [--smoke]

Runs crates/serq-transfer/examples/layout_bench.rs, prints what it prints, and remembers each case's GB/s
and the plain copy's of the same run.
"""

import argparse
import subprocess

import machine


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--no-history", action="store_true")
    arguments.add_argument("--smoke", action="store_true")
    arguments = arguments.parse_args()
    command = ["cargo", "build", "--release", "--quiet", "--locked", "--package", "serq-transfer", "--example", "layout_bench"]
    subprocess.run(command, cwd=machine.ROOT, check=True)
    program = [machine.TARGET / "release/examples/layout_bench"] + ["--smoke"] * arguments.smoke
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    print(printed, end="")
    figures = {}
    for line in printed.splitlines()[1:]:
        name, (_, converted, copied, _, _) = line[:28].strip(), line[28:].split()
        figures[name] = {"gb_s": float(converted), "copy_gb_s": float(copied)}
    if not (arguments.smoke or arguments.no_history):
        machine.remember(bench="layouts", figures=figures)


if __name__ == "__main__":
    main()
