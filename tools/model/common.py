"""What the recorders share."""

import gzip
import hashlib
import json
import pathlib
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "engine"


def write(path, value):
    """JSON, gzipped; the same value gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def short(number):
    """A logit as written down: seven digits, as many as a single has."""
    return float(f"{float(number):.7g}")


def fingerprint(numbers):
    """The bits of singles, row by row."""
    return hashlib.sha256(np.ascontiguousarray(numbers, dtype="<f4").tobytes()).hexdigest()


def unpaired(rows, heads):
    """Query or key rows as Llama's converter pairs them, back in halves."""
    size = rows.shape[0] // heads
    return rows.reshape(heads, size // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


class LlamaCpp:
    """llama.cpp's own programs."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def ids(self, model, text, markers=True):
        """A text's token ids."""
        with tempfile.NamedTemporaryFile("wb") as file:
            file.write(text.encode())
            file.flush()
            command = [self.folder / "llama-tokenize", "-m", model, "-f", file.name, "--ids", "--no-bos", "--no-escape"]
            command += ["--log-disable"] + ([] if markers else ["--no-parse-special"])
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def quantize(self, source, target, kind):
        """A model in another format, every matrix of it."""
        command = [self.folder / "llama-quantize", "--pure", source, target, kind]
        subprocess.run(command, check=True, capture_output=True)
