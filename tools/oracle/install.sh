#!/usr/bin/env bash
# Installs the oracle's Python environment (vLLM's scheduler, from PyPI alone) into FOLDER, by
# default `oracle-venv` in the project's target folder. Does nothing if it is there and ready.
#
# usage: install.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-${CARGO_TARGET_DIR:-$root/target}/oracle-venv}
ready=$venv/oracle-ready
# Ready means: made by these very files.
wanted=$(cat "$here/requirements.txt" "$here/cuda_stubs.sh" "$here/install.sh" | sha256sum)

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

if [ -f "$ready" ] && [ "$(cat "$ready")" = "$wanted" ]; then
    echo "install.sh: $venv is ready"
    exit 0
fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned wheels are for Linux x86_64, this is $(uname -sm)"
for tool in gcc nm; do
    command -v "$tool" >/dev/null || fail "'$tool' is missing; install a C compiler and binutils"
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
"$venv/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9 ||
    fail "pip could not install uv from PyPI"
# `--no-deps`: requirements.txt is the whole list (it says why). Without a cache folder there is
# nothing to clean up and no second copy of the 2 GB.
"$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-cache \
    --requirement "$here/requirements.txt" || fail "uv could not install requirements.txt from PyPI"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
bash "$here/cuda_stubs.sh" "$site/torch/lib"
VLLM_TARGET_DEVICE=cpu VLLM_LOGGING_LEVEL=ERROR \
    "$venv/bin/python" -c 'from vllm.v1.core.sched.async_scheduler import AsyncScheduler' ||
    fail "vLLM was installed and does not import"
echo "$wanted" >"$ready"
echo "install.sh: $venv is ready"
