"""Runs programs on the reference release and answers what they did.

    python tools/reference.py [FOLDER]

FOLDER is where `pip install --target FOLDER pyserq==0.1.3` put the release; without it
the interpreter's own packages are used. One JSON object a line comes in, `{"id": 7, "source": "..."}`
or, of a program that reads other files, `{"id": 7, "path": "..."}`, and one goes out:

    {"id": 7, "status": "ok", "samples": {...}, "gauge_points": {...}, "report": {...}}
    {"id": 7, "status": "refused" | "stopped" | "panicked", "message": "..."}

`refused`: the program does not compile. `stopped`: its run ends in an error. `panicked`:
the release itself broke. The shape of `ok` is that of the files in `tests/cases`.
The release is used as a black box: only what it answers is read.
"""

import importlib.metadata
import json
import math
import os
import sys

if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])

import pyserq


def plain(value):
    """JSON has no infinity and no NaN: they are words here."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def column(values):
    return [plain(value) for value in values]


def answer(program):
    try:
        program = pyserq.compile(**program)
    except ValueError as error:
        return {"status": "refused", "message": str(error)}
    try:
        report = pyserq.run(program)
    except Exception as error:
        return {"status": "stopped", "message": str(error)}
    samples = {}
    for name, observe in report.observes.items():
        samples[name] = {
            "samples": column(observe.samples),
            "times": column(observe.times),
            "sessions": column(observe.sessions),
            "turns": column(observe.turns),
        }
    points = {
        name: [[plain(time), plain(value)] for time, value in zip(gauge.times, gauge.values)]
        for name, gauge in report.gauges.items()
    }
    return {
        "status": "ok",
        "samples": samples,
        "gauge_points": points,
        "report": json.loads(report.json()),
    }


def main():
    # A panic of the release prints its trace; whoever started us reads the answers only.
    sys.stderr = open(os.devnull, "w")
    os.dup2(sys.stderr.fileno(), 2)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True, "release": importlib.metadata.version("pyserq")}), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        number = asked.pop("id")
        try:
            answered = answer(asked)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pyo3's PanicException is no Exception
            answered = {"status": "panicked", "message": str(error)}
        answered["id"] = number
        print(json.dumps(answered), file=out, flush=True)


if __name__ == "__main__":
    main()
