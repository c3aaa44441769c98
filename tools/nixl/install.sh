#!/usr/bin/env bash
# Unpacks NIXL's library, out of PyPI's wheel, into FOLDER, by default `nixl` in the project's target folder (69 MB
# received, 240 MB on disk, seconds), and prints what has serq find it. Does nothing more if it is there and ready.
#
# usage: install.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$root/target}/nixl}
ready=$folder/nixl-ready
# Ready means: made by these very files.
wanted=$(cat "$here/requirements.txt" "$here/install.sh" | sha256sum)

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

say() {
    echo "export SERQ_NIXL=$(cd "$folder/.nixl_cu12.mesonpy.libs" && pwd)"
}

if [ -f "$ready" ] && [ "$(cat "$ready")" = "$wanted" ]; then
    say
    exit 0
fi

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned wheel is for Linux x86_64, this is $(uname -sm)"
command -v python3 >/dev/null || fail "'python3' is missing"
if [ -e "$folder" ] && [ ! -e "$ready" ] && [ -n "$(ls -A "$folder")" ]; then
    fail "$folder exists and is not NIXL's; name another folder"
fi

rm -rf "$folder"
mkdir -p "$folder"
# From here on it is ours, whole or not.
touch "$ready"
python3 -m venv "$folder/venv" || fail "'python3 -m venv' failed; install Python's venv module"
"$folder/venv/bin/pip" download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
    --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64 \
    --dest "$folder" --requirement "$here/requirements.txt" || fail "pip could not bring nixl-cu12 from PyPI"
"$folder/venv/bin/python" -m zipfile -e "$folder"/nixl_cu12-*.whl "$folder" || fail "the wheel could not be unpacked"
rm -rf "$folder/venv" "$folder"/*.whl
[ -f "$folder/.nixl_cu12.mesonpy.libs/libnixl_capi.so" ] || fail "the wheel has no libnixl_capi.so"
echo "$wanted" >"$ready"
say
