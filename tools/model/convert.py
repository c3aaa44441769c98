"""llama.cpp's own converter, for a tokenizer it does not know by its ids.

usage: convert.py LLAMA_CPP_SOURCE PRE_TOKENIZER, then the arguments of convert_hf_to_gguf.py
"""

import sys

source, pre = sys.argv[1:3]
del sys.argv[1:3]
sys.path[:0] = [source, f"{source}/gguf-py"]

import conversion.base  # noqa: E402

conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre

import convert_hf_to_gguf  # noqa: E402

convert_hf_to_gguf.main()
