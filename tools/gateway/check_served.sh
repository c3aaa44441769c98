#!/usr/bin/env bash
# OpenAI's own client and curl against `serq up`: starts it with a model, asks, and ends it.
#
# usage: check_served.sh SERQ [MODEL]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
serq=$1
model=${2:-smollm2-135m}
venv=${CARGO_TARGET_DIR:-$root/target}/gateway-venv

if ! "$venv/bin/python" -c 'import openai, prometheus_client' 2>/dev/null; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
fi
said=$(mktemp)
"$serq" up "$root/examples/local/pd_smollm2.sq" --model "$model" --port 0 >"$said" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$said"' EXIT
until address=$(sed -n 's|^ *serving \(http://[^/]*\)/v1$|\1|p' "$said") && [ -n "$address" ]; do
    kill -0 $server 2>/dev/null || { echo "check_served.sh: the server ended" >&2; exit 1; }
    read -r -t 0.2 <> <(:) || true
done
"$venv/bin/python" "$here/check.py" "$address"
