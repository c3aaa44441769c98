"""Checks a running server with OpenAI's own client, curl and Prometheus' own parser: one line a fact.

    python check.py http://127.0.0.1:8000 [--model NAME]

Answers are compared at temperature 0, so they must not depend on what else is being served. The model
needs a context of 512 tokens. `cargo run -p serq-gateway --example echo` is a server to try this on; its
fake models are found by their names and have more facts. Ends with 1 if a fact does not hold.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import time
import traceback

import openai
from prometheus_client.parser import text_string_to_metric_families

FACTS = []
CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Where is Paris?"}]
PROMPT = "Once upon a time, in a land far away,"


def fact(sentence, model=None):
    """Registers a check under the sentence it shows to be true, for servers that have the model."""

    def register(check):
        FACTS.append((sentence, model, check))
        return check

    return register


class Server:
    """The server, and the answers that many facts start from."""

    def __init__(self, url, model):
        self.url = url.rstrip("/")
        # An error must be seen as it is, not tried again.
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        self.models = [model.id for model in self.client.models.list()]
        self.model = model or self.models[0]

    def chat(self, **changes):
        arguments = dict(model=self.model, messages=CHAT, temperature=0, max_completion_tokens=24)
        return self.client.chat.completions.create(**{**arguments, **changes})

    def complete(self, **changes):
        arguments = dict(model=self.model, prompt=PROMPT, temperature=0, max_tokens=24)
        return self.client.completions.create(**{**arguments, **changes})

    def curl(self, path, *flags):
        """Status, headers and body."""
        command = ["curl", "--silent", "--show-error", "--include", "--no-buffer", *flags, f"{self.url}{path}"]
        head, _, body = subprocess.run(command, capture_output=True, check=True).stdout.partition(b"\r\n\r\n")
        status, *headers = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in headers), body.decode()

    def metric(self, name, **labels):
        """The sum over all samples that have these labels."""
        families = text_string_to_metric_families(self.curl("/metrics")[2])
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def joined(chunks):
    """The choices of a stream: text, reason and log-probabilities; and its usage."""
    choices, usage = {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            whole = choices.setdefault(choice.index, {"text": "", "reason": None, "logprobs": []})
            assert whole["reason"] is None, "nothing follows a finish_reason"
            whole["text"] += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            whole["reason"] = choice.finish_reason
            whole["logprobs"] += logprobs(choice)
    return [choices[index] for index in sorted(choices)], usage


def whole(answer):
    """The same of an answer in one body."""
    texts = [choice.message.content if hasattr(choice, "message") else choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))
    reasons = [choice.finish_reason for choice in answer.choices]
    rows = zip(texts, reasons, map(logprobs, answer.choices), strict=True)
    return [{"text": text, "reason": reason, "logprobs": tokens} for text, reason, tokens in rows], answer.usage


def logprobs(choice):
    """Token and log-probability of each token told."""
    told = choice.logprobs
    if told is None:
        return []
    if hasattr(told, "content"):
        return [(token.token, token.logprob) for token in told.content]
    return list(zip(told.tokens, told.token_logprobs, strict=True))


def refused(kind, status, code, param, call):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind, f"{type(error).__name__}: {error}"
        assert (error.status_code, error.code, error.param) == (status, code, param), error
        assert error.body["message"] and error.type, error.body
        return error
    raise AssertionError("it was answered")


@fact("models are listed, and each is found by its name")
def _(server):
    for model in server.models:
        assert server.client.models.retrieve(model).id == model


@fact("an unknown model is a NotFoundError")
def _(server):
    refused(openai.NotFoundError, 404, "model_not_found", None, lambda: server.client.models.retrieve("no/such"))
    refused(openai.NotFoundError, 404, "model_not_found", "model", lambda: server.chat(model="no/such"))


@fact("a chat has an answer, a reason and a usage that adds up")
def _(server):
    answer = server.chat()
    assert answer.object == "chat.completion" and answer.model == server.model
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


@fact("a chat streamed is the chat in one body, with its usage")
def _(server):
    chunks = list(server.chat(stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks[:-1]) and not chunks[-1].choices
    streamed, usage = joined(chunks)
    expected, counted = whole(server.chat())
    assert streamed == expected, (streamed, expected)
    assert usage.completion_tokens == counted.completion_tokens


@fact("a completion streamed is the completion in one body")
def _(server):
    streamed, usage = joined(server.complete(stream=True))
    assert usage is None, "it wasn't asked for"
    assert streamed == whole(server.complete())[0]


@fact("content may come as text parts")
def _(server):
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    assert whole(server.chat(messages=parts))[0] == whole(server.chat())[0]


@fact("n answers come under their numbers, streamed and not")
def _(server):
    for ask in (server.chat, server.complete):
        assert len(whole(ask(n=3))[0]) == 3
        assert joined(ask(n=3, stream=True))[0] == whole(ask(n=3))[0]


@fact("prompts are strings, token ids and lists of both")
def _(server):
    pair = [PROMPT, "The sea is"]
    alone = [whole(server.complete(prompt=prompt))[0][0] for prompt in pair]
    assert whole(server.complete(prompt=pair))[0] == alone
    assert joined(server.complete(prompt=pair, stream=True))[0] == alone
    ids = [[72, 101, 108], [108, 111, 32, 33]]
    alone = [whole(server.complete(prompt=prompt))[0][0] for prompt in ids]
    assert whole(server.complete(prompt=ids))[0] == alone


@fact("a chat has a log-probability for each token")
def _(server):
    answer = server.chat(logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True})
    (choice,) = answer.choices
    tokens = choice.logprobs.content
    assert len(tokens) == answer.usage.completion_tokens == 24
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        ranks = [other.logprob for other in token.top_logprobs]
        assert ranks == sorted(ranks, reverse=True) and token.logprob <= ranks[0]
    streamed = joined(server.chat(logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}, stream=True))[0]
    assert streamed == whole(answer)[0]


@fact("a completion has a log-probability for each token")
def _(server):
    answer = server.complete(logprobs=2, extra_body={"ignore_eos": True})
    told = answer.choices[0].logprobs
    counts = {len(told.tokens), len(told.token_logprobs), len(told.top_logprobs), len(told.text_offset)}
    assert counts == {answer.usage.completion_tokens}
    assert told.text_offset[0] == 0 and told.text_offset == sorted(told.text_offset)
    assert joined(server.complete(logprobs=2, extra_body={"ignore_eos": True}, stream=True))[0] == whole(answer)[0]


@fact("an answer ends before its stop string")
def _(server):
    text = whole(server.complete(extra_body={"ignore_eos": True}))[0][0]["text"]
    stop = text[len(text) // 2 : len(text) // 2 + 4]
    for stream in (False, True):
        answer = server.complete(stop=["\x01never", stop], stream=stream, extra_body={"ignore_eos": True})
        (choice,) = (joined if stream else whole)(answer)[0]
        assert choice["text"] == text[: text.index(stop)], (choice["text"], stop)
        assert choice["reason"] == "stop"


@fact("max_tokens and min_tokens are kept")
def _(server):
    answer = server.complete(max_tokens=5, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 5 and answer.choices[0].finish_reason == "length"
    assert server.complete(max_tokens=40, extra_body={"min_tokens": 40}).usage.completion_tokens == 40


@fact("token ids are told to who asks")
def _(server):
    answer = server.complete(extra_body={"return_token_ids": True})
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens


@fact("the same seed draws the same")
def _(server):
    drawn = [whole(server.chat(temperature=1, seed=11, n=2))[0] for _ in range(2)]
    assert drawn[0] == drawn[1]


@fact("sixteen clients at once get what each gets alone")
def _(server):
    prompts = [f"{number} {PROMPT}" for number in range(16)]
    alone = [whole(server.complete(prompt=prompt))[0] for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        streams = pool.map(lambda prompt: joined(server.complete(prompt=prompt, stream=True))[0], prompts)
        assert list(streams) == alone


@fact("wrong values are a BadRequestError that names the field")
def _(server):
    for param, call in {
        "temperature": lambda: server.chat(temperature=3),
        "messages": lambda: server.chat(messages=[]),
        "messages[0].role": lambda: server.chat(messages=[{"role": "robot", "content": "hi"}]),
        "prompt": lambda: server.complete(prompt=[]),
        "n": lambda: server.complete(n=0),
        "stop": lambda: server.complete(stop=["x"] * 99),
    }.items():
        refused(openai.BadRequestError, 400, "unsupported_value" if "role" in param else "invalid_value", param, call)
    refused(openai.BadRequestError, 400, "invalid_type", "top_p", lambda: server.chat(top_p="high"))


@fact("what is not supported is a BadRequestError that names it")
def _(server):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for param, call in {
        "tools": lambda: server.chat(tools=tools),
        "response_format": lambda: server.chat(response_format={"type": "json_object"}),
        "suffix": lambda: server.complete(suffix="the end"),
        "echo": lambda: server.complete(echo=True),
    }.items():
        refused(openai.BadRequestError, 400, "unsupported_parameter", param, call)


@fact("an answer longer than the context is refused, and so is a prompt")
def _(server):
    code = "context_length_exceeded"
    refused(openai.BadRequestError, 400, code, "max_tokens", lambda: server.complete(max_tokens=2**31))
    context = server.client.models.retrieve(server.model).max_model_len
    if context < 200_000:
        ids = [72] * context
        refused(openai.BadRequestError, 400, code, "prompt", lambda: server.complete(prompt=ids))


@fact("curl is told what is wrong with its request")
def _(server):
    json_type = ["--header", "content-type: application/json"]
    for status, path, flags in [
        (404, "/v1/nothing", []),
        (405, "/v1/completions", []),
        (415, "/v1/completions", ["--data", "{}"]),
        (400, "/v1/completions", [*json_type, "--data", "{"]),
    ]:
        found, headers, body = server.curl(path, *flags)
        assert found == status and headers["content-type"] == "application/json", (found, body)
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@fact("curl sees events, and figures it asks for")
def _(server):
    body = json.dumps({"model": server.model, "prompt": PROMPT, "stream": True, "max_tokens": 4})
    flags = ["--header", "content-type: application/json", "--header", "x-serq-observe: 1", "--data", body]
    status, headers, body = server.curl("/v1/completions", "--header", "x-request-id: check-1", *flags)
    assert status == 200 and headers["content-type"] == "text/event-stream", body
    assert headers["x-request-id"] == "check-1"
    *events, last = [event for event in body.split("\n\n")[:-1] if not event.startswith(":")]
    assert last == "data: [DONE]"
    events = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "serq" in events[-1] and not any("serq" in event for event in events[:-1])


@fact("HEAD and GET of /health agree")
def _(server):
    assert server.curl("/health")[0] == server.curl("/health", "--head")[0] == 200


@fact("a stream that is left is cancelled")
def _(server):
    def cancelled():
        return server.metric("serq_requests_total", model_name=server.model, outcome="cancelled")

    model = "slow" if "slow" in server.models else server.model
    before, server.model = server.model, model
    try:
        count = cancelled()
        context = server.client.models.retrieve(model).max_model_len
        stream = server.complete(stream=True, max_tokens=context // 2, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 10
        while cancelled() == count:
            assert time.monotonic() < deadline, "not within 10 s"
            time.sleep(0.01)
    finally:
        server.model = before


@fact("metrics are as Prometheus reads them, and count")
def _(server):
    before = server.metric("vllm:generation_tokens_total", model_name=server.model)
    tokens = server.complete(extra_body={"ignore_eos": True}).usage.completion_tokens
    assert server.metric("vllm:generation_tokens_total", model_name=server.model) == before + tokens
    first = "vllm:time_to_first_token_seconds"
    assert server.metric(f"{first}_bucket", model_name=server.model, le="+Inf") > 0
    assert server.metric("serq_requests_in_flight", model_name=server.model) == 0


@fact("a full queue is a RateLimitError that says when to try again", model="full")
def _(server):
    error = refused(openai.RateLimitError, 429, "queue_full", None, lambda: server.chat(model="full"))
    assert error.response.headers["retry-after"] == "2"


@fact("failures of the server are InternalServerErrors", model="broken")
def _(server):
    for model, status, code in [("broken", 500, "internal_error"), ("away", 503, "service_unavailable")]:
        refused(openai.InternalServerError, status, code, None, lambda: server.chat(model=model))


@fact("a failure on the way is raised from the stream", model="fails")
def _(server):
    try:
        joined(server.chat(model="fails", stream=True))
    except openai.APIError as error:
        assert error.message == "instance 1 went away", error
    else:
        raise AssertionError("the stream ended well")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server, without /v1")
    parser.add_argument("--model", help="by default the first it lists")
    arguments = parser.parse_args()
    server = Server(arguments.url, arguments.model)
    failures = 0
    for sentence, model, check in FACTS:
        if model is not None and model not in server.models:
            continue
        try:
            check(server)
            print(f"ok    {sentence}", flush=True)
        except Exception:
            failures += 1
            print(f"WRONG {sentence}\n{traceback.format_exc()}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
