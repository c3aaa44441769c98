#!/usr/bin/env bash
# Installs what records the engine's references into FOLDER, by default `model-reference` in the
# project's target folder: a Python environment (PyPI alone, 1 GB), and llama.cpp's tokenizer and
# quantiser, built from the source in llama-cpp-python's source package.
#
# usage: install.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$root/target}/model-reference}
package=llama_cpp_python-0.3.36

[ "$(uname -sm)" = "Linux x86_64" ] || { echo "install.sh: the pinned wheels are for Linux x86_64" >&2; exit 1; }
for tool in gcc g++ nm tar; do
    command -v "$tool" >/dev/null || { echo "install.sh: '$tool' is missing" >&2; exit 1; }
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python=$folder/venv/bin/python

python3 -m venv "$folder/venv"
"$python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
# `--no-deps`: requirements.txt is the whole list (it says why).
"$folder/venv/bin/uv" pip install --python "$python" --no-deps --no-cache --requirement "$here/requirements.txt"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
bash "$root/tools/oracle/cuda_stubs.sh" "$site/torch/lib"

if [ ! -d "$folder/$package" ]; then
    # Not `pip download`: that would build the package to learn what it needs.
    "$python" - "$package.tar.gz" "$folder" <<'PYTHON'
import hashlib, json, os, sys, urllib.request

name, folder = sys.argv[1:]
index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
request = urllib.request.Request(
    f"{index}/llama-cpp-python/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
)
files = json.load(urllib.request.urlopen(request))["files"]
file = next(file for file in files if file["filename"] == name)
content = urllib.request.urlopen(file["url"]).read()
assert hashlib.sha256(content).hexdigest() == file["hashes"]["sha256"], "the download is damaged"
open(f"{folder}/{name}", "wb").write(content)
PYTHON
    tar -xzf "$folder/$package.tar.gz" -C "$folder"
fi
export PATH="$folder/venv/bin:$PATH"
cmake -S "$folder/$package/vendor/llama.cpp" -B "$folder/llama-build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >/dev/null
cmake --build "$folder/llama-build" --target llama-quantize llama-tokenize
echo "install.sh: $folder is ready"
