"""A scenario of the oracle: read from JSON, checked, and turned into token ids.

The schema is in README.md. Nothing here knows vLLM. Invariants of a `Scenario` that was read:

- every index of a prefiller or decoder exists, every name is unique,
- every prompt has a token and fits with its answer into `max_model_len`,
- a segment `answer:NAME` is no longer than what NAME answers.
"""

import json
from dataclasses import dataclass, field

# Token ids are (number of the identity) * 2^20 + (offset in the segment), so two differ unless both
# parts are equal. vLLM's scheduler compares and hashes ids and never asks whether a model has them.
OFFSETS = 1 << 20
ANSWER = "answer:"


class BadScenario(ValueError):
    """A scenario that cannot be run; the message is one sentence for its author."""


@dataclass(frozen=True)
class Side:
    """The engines of one kind, all alike."""

    count: int
    blocks: int
    block: int
    seats: int
    budget: int
    chunk: int


@dataclass(frozen=True)
class Asked:
    """One request as its client sends it. `prompt` is a list of (identity, tokens)."""

    name: str
    arrives: int
    prompt: list[tuple[str, int]]
    answer: int
    prefiller: int | None
    decoder: int
    aborted: int | None
    slower: int

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


@dataclass(frozen=True)
class Scenario:
    name: str
    pipelined: bool
    push: bool
    prefillers: Side | None
    decoders: Side
    max_model_len: int
    read_steps: int
    notice_steps: int
    requests: list[Asked]
    steps_max: int
    trace: bool
    identities: dict[str, int] = field(default_factory=dict)

    def token(self, identity: str, offset: int) -> int:
        """The token at `offset` of a segment: the same for the same identity, everywhere."""
        number = self.identities.setdefault(identity, len(self.identities) + 1)
        return number * OFFSETS + offset

    def prompt(self, asked: Asked) -> list[int]:
        return [self.token(identity, offset) for identity, tokens in asked.prompt for offset in range(tokens)]

    def answered(self, name: str, index: int) -> int:
        """The token that request `name` samples as its `index`-th."""
        return self.token(ANSWER + name, index)


class Fields:
    """The members of one JSON object, each taken once and checked; `done` refuses the others."""

    def __init__(self, value, where: str):
        if not isinstance(value, dict):
            raise BadScenario(f"{where} is not an object")
        self.left, self.where = dict(value), where

    def take(self, key: str, default=...):
        if key not in self.left and default is ...:
            raise BadScenario(f"{self.where} has no `{key}`")
        return self.left.pop(key, default)

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise BadScenario(f"`{key}` of {self.where} is not a non-empty text")
        return value

    def one_of(self, key: str, first: str, second: str) -> str:
        value = self.take(key, first)
        if value not in (first, second):
            raise BadScenario(f"`{key}` of {self.where} is neither `{first}` nor `{second}`")
        return value

    def number(self, key: str, least: int, default=...) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadScenario(f"`{key}` of {self.where} is not a whole number from {least}")
        return value

    def number_or_null(self, key: str) -> int | None:
        if self.left.get(key) is None:
            return self.take(key, None)
        return self.number(key, 0)

    def index_or_null(self, key: str, side: Side | None) -> int | None:
        value = self.number_or_null(key)
        if value is not None and (side is None or value >= side.count):
            raise BadScenario(f"{self.where} names {key} {value}, which does not exist")
        return value

    def done(self):
        if self.left:
            raise BadScenario(f"{self.where} has an unknown `{next(iter(self.left))}`")


def read(line: str) -> Scenario:
    """Reads and checks one line, or raises `BadScenario`."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadScenario(f"the line is not JSON: {error}") from None
    fields = Fields(value, "the scenario")
    name = fields.text("name")
    prefillers = fields.take("prefillers", None)
    prefillers = None if prefillers is None else side(prefillers, "prefillers")
    decoders = side(fields.take("decoders"), "decoders")
    max_model_len = fields.number("max_model_len", 2, 4096)
    if max_model_len >= OFFSETS:
        raise BadScenario(f"`max_model_len` is not below {OFFSETS}")
    for kind in (prefillers, decoders):
        if kind and kind.chunk > max_model_len:
            raise BadScenario("a `chunk` is larger than `max_model_len`, which vLLM refuses")
    # vLLM's worker refuses the pair: a decoder's block holds whole blocks of the prefiller.
    if prefillers and decoders.block % prefillers.block:
        raise BadScenario("the decoders' `block` is no multiple of the prefillers'")
    listed = fields.take("requests")
    if not isinstance(listed, list):
        raise BadScenario("`requests` of the scenario is not a list")
    requests = [asked(value, prefillers, decoders, max_model_len) for value in listed]
    check_names(requests)
    scenario = Scenario(
        name=name,
        pipelined=fields.one_of("mode", "sync", "async") == "async",
        push=fields.one_of("transfer", "pull", "push") == "push",
        prefillers=prefillers,
        decoders=decoders,
        max_model_len=max_model_len,
        read_steps=fields.number("read_steps", 0, 0),
        notice_steps=fields.number("notice_steps", 0, 0),
        requests=requests,
        steps_max=fields.number("steps_max", 1, 100_000),
        trace=bool(fields.take("trace", False)),
    )
    fields.done()
    return scenario


def side(value, where: str) -> Side:
    fields = Fields(value, f"`{where}`")
    read = Side(
        count=fields.number("count", 1),
        blocks=fields.number("blocks", 1),
        block=fields.number("block", 1, 16),
        seats=fields.number("seats", 1, 16),
        budget=fields.number("budget", 1, 8192),
        chunk=fields.number("chunk", 0, 0),
    )
    fields.done()
    if read.budget < read.seats:
        raise BadScenario(f"`budget` of `{where}` is below its `seats`, which vLLM refuses")
    return read


def asked(value, prefillers: Side | None, decoders: Side, max_model_len: int) -> Asked:
    fields = Fields(value, "a request")
    name = fields.text("name")
    fields.where = f"request `{name}`"
    arrives = fields.number("arrives", 0, 0)
    aborted = fields.number_or_null("aborted")
    if aborted is not None and aborted < arrives:
        raise BadScenario(f"request `{name}` is aborted before it arrives")
    prompt = fields.take("prompt")
    if not isinstance(prompt, list) or not all(is_segment(segment) for segment in prompt):
        raise BadScenario(f"`prompt` of request `{name}` is not a list of [identity, tokens]")
    read = Asked(
        name=name,
        arrives=arrives,
        prompt=[(identity, tokens) for identity, tokens in prompt],
        answer=fields.number("answer", 1),
        prefiller=fields.index_or_null("prefiller", prefillers),
        decoder=fields.index_or_null("decoder", decoders) or 0,
        aborted=aborted,
        slower=fields.number("slower", 0, 0),
    )
    fields.done()
    if read.prompt_tokens == 0:
        raise BadScenario(f"the prompt of request `{name}` is empty")
    if read.prompt_tokens + read.answer > max_model_len:
        raise BadScenario(f"prompt and answer of request `{name}` are longer than `max_model_len`")
    return read


def is_segment(value) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], int)
        and not isinstance(value[1], bool)
        and value[1] >= 0
    )


def check_names(requests: list[Asked]):
    answers = {}
    for request in requests:
        if request.name in answers:
            raise BadScenario(f"two requests are named `{request.name}`")
        answers[request.name] = request.answer
    for request in requests:
        for identity, tokens in request.prompt:
            if identity.startswith(ANSWER) and tokens > answers.get(identity.removeprefix(ANSWER), 0):
                raise BadScenario(f"nobody answers the {tokens} tokens of `{identity}` in `{request.name}`")
