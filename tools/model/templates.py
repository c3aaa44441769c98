"""Compares chat templates as written out here with transformers' (jinja2).

usage: templates.py FOLDER_OF_TEMPLATES RENDER [NAME…]

RENDER is a program that reads JSON lines {template, bos_token, eos_token, messages, variables,
add_generation_prompt} and answers each with a JSON string, or null where it refuses:
`cargo run -p serq-engine --example render_chats`.
"""

import itertools
import json
import pathlib
import subprocess
import sys

from transformers.utils.chat_template_utils import render_jinja_template

import texts

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> in a \"place\" — größer",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
MORE = [
    [{"role": "user", "content": "  spaces around  "}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "<think>a</think>b"},
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": "Sun."},
        {"role": "user", "content": "<|im_end|> {{ 7 * 7 }} {% raw %}"},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "assistant", "content": "I begin."}],
]
VARIABLES = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"tools": TOOLS}, {"date_string": "26 Jul 2024"}]


def theirs(source, case):
    try:
        rendered, _ = render_jinja_template(
            [case["messages"]],
            chat_template=source,
            add_generation_prompt=case["add_generation_prompt"],
            bos_token=case["bos_token"],
            eos_token=case["eos_token"],
            **case["variables"],
        )
        return rendered[0]
    except Exception as error:
        return None if type(error).__name__ in ("TemplateError", "UndefinedError", "TypeError") else repr(error)


def main():
    folder, render, names = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for path in sorted(folder.glob("*.jinja")):
        if names and path.stem not in names:
            continue
        source = path.read_text()
        cases = [
            {
                "template": source,
                "bos_token": "<s>",
                "eos_token": "</s>",
                "messages": messages,
                "variables": variables,
                "add_generation_prompt": prompt,
            }
            for messages, variables, prompt in itertools.product(
                [messages for _, messages in texts.CHATS] + MORE, VARIABLES, [True, False]
            )
        ]
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        answers = subprocess.run([render], input=lines, check=True, capture_output=True, text=True).stdout.splitlines()
        pairs = [(theirs(source, case), json.loads(answer)) for case, answer in zip(cases, answers, strict=True)]
        different = [(i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]]
        refused = sum(pair[0] is None for pair in pairs)
        print(f"{path.stem}: {len(pairs) - len(different)} of {len(pairs)} the same, {refused} refused")
        for i, (their, mine) in different[:1]:
            print("   case", i, "\n  theirs", repr(their)[-300:], "\n  mine  ", repr(mine)[-300:])


if __name__ == "__main__":
    main()
