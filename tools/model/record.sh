#!/usr/bin/env bash
# Records the engine's references anew into tests/engine/, with what install.sh installed. Ten minutes
# on two cores.
#
# usage: record.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$(cd "${1:-${CARGO_TARGET_DIR:-$root/target}/model-reference}" && pwd)
python=$folder/venv/bin/python
source=$folder/llama_cpp_python-0.3.36/vendor/llama.cpp
programs=$folder/llama-build/bin
models=${SERQ_MODELS:-${XDG_DATA_HOME:-$HOME/.local/share}/serq/models}

"$python" "$here/tiny.py" "$source" "$programs"
"$python" "$here/vocabularies.py" "$source" "$programs"
"$python" "$here/smollm2.py" "$models/SmolLM2-135M-Instruct.Q4_1.gguf" "$programs"
