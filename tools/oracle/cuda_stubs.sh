#!/usr/bin/env bash
# Builds one small library that stands in for the CUDA libraries (cuBLAS, cuDNN, NCCL and others,
# 2 GB) which torch's CUDA build lists as NEEDED, so that torch imports on a machine without them.
#
# It exports every function of theirs that torch's own libraries leave undefined, each under the
# version node asked for: the loader aborts on a missing node, and binds the functions lazily, so
# none is called in a CPU run. Each returns 999, CUDA's "unknown error".
#
# usage: cuda_stubs.sh TORCH_LIB_FOLDER
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1" ]; then
    echo "usage: cuda_stubs.sh TORCH_LIB_FOLDER (an existing folder)" >&2
    exit 2
fi
for tool in gcc nm; do
    if ! command -v "$tool" >/dev/null; then
        echo "cuda_stubs.sh: '$tool' is missing; install a C compiler and binutils" >&2
        exit 1
    fi
done

lib=$1
stub=libcudastub.so
families='nvshmem|cudnn|nccl|cublas|cufft|cuFile|cufile|curand|cusolver|cusparse|nvrtc'
stood_in=(
    libcublas.so.13 libcublasLt.so.13 libcudnn.so.9 libcufft.so.12 libcufile.so.0 libcurand.so.10
    libcusolver.so.12 libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvrtc.so.13
    libnvshmem_host.so.3
)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lines "function [version node]" of what is undefined in torch's own libraries.
find "$lib" -maxdepth 1 -type f -name '*.so*' ! -name "$stub" -print0 |
    xargs -0 nm -D --undefined-only --with-symbol-versions 2>/dev/null |
    awk '{ print $NF }' | grep -E "^($families)" | sed 's/@@*/ /' | sort -u >"$work/symbols"

awk '!seen[$1]++ { print "int " $1 "(void) { return 999; }" }' "$work/symbols" >"$work/stubs.c"
awk 'NF > 1 { names[$2] = names[$2] " " $1 ";" }
     END { for (node in names) print node " { global:" names[node] " };" }' \
    "$work/symbols" >"$work/stubs.map"
gcc -O1 -w -fno-builtin -shared -fPIC -Wl,-soname,"$stub" \
    -Wl,--version-script="$work/stubs.map" -o "$lib/$stub" "$work/stubs.c"
for name in "${stood_in[@]}"; do
    ln -sf "$stub" "$lib/$name"
done
echo "cuda_stubs.sh: $(wc -l <"$work/symbols") functions in $lib/$stub"
