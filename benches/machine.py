"""What all benches need of the machine: one core, the built programs, a line of history."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
HISTORY = ROOT / "benches/history.jsonl"


def built(package):
    """The optimised program of a package, built now."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "--locked", "--package", package], cwd=ROOT, check=True)
    return TARGET / "release" / package


def python_with(package, version):
    """A Python with one release of a package of PyPI, in a folder of its own."""
    folder = TARGET / f"bench-{package}-{version}"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *quiet, f"{package}=={version}"], check=True)
        (folder / "ready").touch()
    return python


def stay_on_one_core():
    """This process and what it starts; where the system can't, they move about."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def load():
    """Processes that want a core, on average over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def name():
    """Processor, cores and system, in one line."""
    processor = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def commit():
    """What is measured; "dirty" if it isn't as committed, the history aside."""
    changed = git("diff", "--quiet", "HEAD", "--", ".", f":!{HISTORY.relative_to(ROOT)}").returncode
    return (git("describe", "--always").stdout.strip() or "unknown") + ("-dirty" if changed else "")


def remember(**figures):
    """Appends a line to benches/history.jsonl."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = {"when": when, "commit": commit(), "machine": name(), "load": load(), **figures}
    with open(HISTORY, "a", encoding="utf-8") as history:
        history.write(json.dumps(line) + "\n")


def run_json(command):
    """What a command prints, read as JSON; if it fails, its own words end the bench."""
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{run.stderr or run.stdout}")
    return json.loads(run.stdout)
