"""Checks on the real schedulers what the simulator is compared with: one line a fact.

    python check.py

Every fact is a scenario that goes through `schedulers.py` as any other does, and what its answer must
say. Ends with 1 if a fact does not hold.
"""

import json
import pathlib
import subprocess
import sys

FACTS = []


def fact(sentence):
    """Registers a check under the sentence it shows to be true."""

    def register(check):
        FACTS.append((sentence, check))
        return check

    return register


class Oracle:
    """A running `schedulers.py`; each question is one line to it."""

    def __init__(self):
        script = pathlib.Path(__file__).with_name("schedulers.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self, text: str) -> dict:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def ask(self, requests, blocks=40, prefiller=None, decoder=None, colocated=False, **scenario) -> dict:
        """Runs requests on one decoder of `blocks` and, unless `colocated`, one prefiller."""
        question = {
            "name": "fact",
            "prefillers": None if colocated else {"count": 1, "blocks": 40, **(prefiller or {})},
            "decoders": {"count": 1, "blocks": blocks, **(decoder or {})},
            "requests": requests,
            "trace": True,
            **scenario,
        }
        answer = self.line(json.dumps(question))
        assert "error" not in answer, answer["error"]
        return answer


def local(name, tokens, answer, arrives=0, **more) -> dict:
    """A request for the decoder alone."""
    prompt = [[name, tokens]] if isinstance(tokens, int) else tokens
    return {"name": name, "arrives": arrives, "prompt": prompt, "answer": answer, "prefiller": None, **more}


def remote(name, tokens, answer, arrives=0, **more) -> dict:
    """A request that is prefilled by the first prefiller."""
    return {**local(name, tokens, answer, arrives, **more), "prefiller": 0}


def decode(answer, name) -> dict:
    return answer["requests"][name]["decode"]


def prefill(answer, name) -> dict:
    return answer["requests"][name]["prefill"]


def scheduled(answer, engine, step) -> dict:
    """What an engine computed in a step: request -> tokens."""
    for traced in answer["trace"]:
        if traced["step"] == step:
            return traced["engines"][engine]["scheduled"]
    return {}


def same(what, found, wanted):
    assert found == wanted, f"{what}: {found}, not {wanted}"


def columns(answer, name) -> list:
    """On the prefiller: admit, finish, free; on the decoder: arrive, park, read done, promote, finish."""
    p, d = prefill(answer, name), decode(answer, name)
    on_decoder = [d[event] for event in ("arrive", "park", "read_done", "promote", "finish")]
    return [p["admit"], p["finish"], p["free"], *on_decoder]


def six(oracle, mode) -> dict:
    """Six requests of 64 tokens; the prefiller has room for two, the decoder for one."""
    requests = [remote(f"r{n}", 64, 8) for n in range(6)]
    return oracle.ask(requests, blocks=5, prefiller={"blocks": 8}, mode=mode, read_steps=2)


@fact("six requests, sync: 67 steps, one every 11, because leases end a decode later")
def _(oracle):
    answer = six(oracle, "sync")
    same("steps", answer["steps"], 67)
    same("r0", columns(answer, "r0"), [0, 0, 4, 1, 1, 3, 4, 11])
    same("r1", columns(answer, "r1"), [0, 0, 15, 1, 12, 14, 15, 22])
    same("r2", columns(answer, "r2"), [5, 5, 26, 6, 23, 25, 26, 33])
    same("r3", columns(answer, "r3"), [16, 16, 37, 17, 34, 36, 37, 44])
    for n in (4, 5):
        same(f"r{n}", columns(answer, f"r{n}"), [step + 11 for step in columns(answer, f"r{n - 1}")])


@fact("six requests, async: 67 steps as well, because engines that wait for each other plan nothing ahead")
def _(oracle):
    answer = six(oracle, "async")
    same("steps", answer["steps"], 67)
    for n in range(6):
        same(f"r{n}", columns(answer, f"r{n}"), columns(six(oracle, "sync"), f"r{n}"))


@fact("differs 6, async: a seat is seen free a step later while others run, and who comes then waits a step more")
def _(oracle):
    for mode, first, comes in (("sync", 5, 3), ("async", 6, 4)):
        requests = [local("runs", 40, 20), local("a", 40, 5), local("b", 40, 5)]
        answer = oracle.ask(requests, decoder={"seats": 2}, colocated=True, mode=mode)
        same(f"b, {mode}", decode(answer, "b")["admit"], first)
        answer = oracle.ask([local("a", 40, 12), local("b", 40, 5, arrives=3)], colocated=True, mode=mode)
        same(f"b comes, {mode}", decode(answer, "b")["admit"], comes)


@fact("A, differs 1: the last sampled token is never computed, so 24 + 8 leave one block of 16, 24 + 9 two")
def _(oracle):
    for answered, hit in ((8, 16), (9, 32)):
        turns = [
            local("a", 24, answered),
            local("b", [["a", 24], ["answer:a", answered], ["b", 20]], 1, arrives=20),
        ]
        same(f"hit after {answered}", decode(oracle.ask(turns, colocated=True), "b")["hit"], hit)


@fact("B, differs 2: a prefiller's blocks are found in the step that schedules them, and while leased")
def _(oracle):
    requests = [
        remote("a", 64, 2),
        remote("b", [["a", 64], ["b", 10]], 2),
        remote("longer", [["a", 64], ["c", 5]], 2, arrives=4),
        remote("equal", [["a", 64]], 2, arrives=4),
    ]
    answer = oracle.ask(requests, read_steps=8)
    same("step 0", scheduled(answer, "P0", 0), {"a": 64, "b": 10})
    assert prefill(answer, "a")["free"] > 4, "the lease should last"
    same("hits", [prefill(answer, name)["hit"] for name in ("b", "longer", "equal")], [64, 64, 48])


@fact("B, differs 2: a decoder's blocks are found from the promotion on, not while they are read")
def _(oracle):
    requests = [remote("a", 64, 9), *(remote(f"b{n}", [["a", 64]], 2, arrives=n) for n in (2, 5))]
    answer = oracle.ask(requests, read_steps=3)
    same("a", (decode(answer, "a")["park"], decode(answer, "a")["promote"]), (1, 5))
    same("parked in 3, in 6", [decode(answer, name)["hit"] for name in ("b2", "b5")], [0, 48])


@fact("C: with the seats taken nothing parks; with one free all that fit park; each then waits for a seat")
def _(oracle):
    requests = [local("run", 16, 6), *(remote(f"r{n}", 32, 2) for n in range(3))]
    answer = oracle.ask(requests, decoder={"seats": 1}, read_steps=2)
    same("run", decode(answer, "run")["finish"], 5)
    same("park", [decode(answer, f"r{n}")["park"] for n in range(3)], [6, 6, 6])
    same("read", [decode(answer, f"r{n}")["read_done"] for n in range(3)], [8, 8, 8])
    same("promote", [decode(answer, f"r{n}")["promote"] for n in range(3)], [9, 11, 13])


@fact("D, differs 3: one block at least is read: 64 tokens with 64 cached hit 48, 65 hit 64, 63 hit 48")
def _(oracle):
    requests = [local("w", 65, 4), *(remote(f"n{n}", [["w", n]], 2, arrives=10) for n in (64, 65, 63))]
    answer = oracle.ask(requests, read_steps=1)
    same("hits", [decode(answer, f"n{n}")["hit"] for n in (64, 65, 63)], [48, 64, 48])


@fact("E, differs 4: a load leaves free what chunked local prefills still need, a local request does not")
def _(oracle):
    decoder = {"budget": 48, "chunk": 32}
    running = [local("small", 1, 40), local("long", 128, 2)]
    # In step 1 `long` holds 4 of its 8 blocks, `small` 1, and 7 of 12 are free; x needs 6.
    answer = oracle.ask([*running, remote("x", 96, 2)], blocks=12, decoder=decoder)
    same("remote", (decode(answer, "x")["arrive"], decode(answer, "x")["park"]), (1, 5))
    same("long", decode(answer, "long")["finish"], 4)
    answer = oracle.ask([*running, local("x", 96, 2, arrives=1)], blocks=12, decoder=decoder)
    same("local", decode(answer, "x")["admit"], 1)


@fact("F: a preempted request resumes from the local cache without a second read; arrivals wait behind it")
def _(oracle):
    requests = [remote("a", 32, 40), remote("b", 32, 40), remote("c", 16, 2, arrives=25)]
    answer = oracle.ask(requests, blocks=6, read_steps=1)
    a, b, c = (decode(answer, name) for name in "abc")
    (preempted,) = b["preempted"]
    (hit,) = b["resumed_hit"]
    same("b keeps its head", hit > 0 and hit % 16, 0)
    steps = [traced["step"] for traced in answer["trace"]]
    resumed = min(s for s in steps if s > preempted and "b" in scheduled(answer, "D0", s))
    same("b resumes after a", resumed, a["finish"] + 1)
    # c needs one block and two were free from the preemption on.
    same("c", (c["arrive"], c["park"]), (26, resumed))
    parked = {t["step"] for t in answer["trace"] if "b" in t["engines"]["D0"]["parked"]}
    assert max(parked) < preempted, "b parked again"


@fact("G, differs 5: a step that preempts admits nothing; a read that is done waits for the next scan")
def _(oracle):
    requests = [local("a", 31, 40), local("b", 31, 40), remote("c", 16, 2, arrives=14)]
    answer = oracle.ask(requests, blocks=7, read_steps=2)
    same("b", decode(answer, "b")["preempted"], [18])
    c = decode(answer, "c")
    same("c", (c["park"], c["read_done"], c["promote"]), (15, 17, 19))


@fact("differs 6: an aborted request's blocks are free at once, in an async consumer when its step is over")
def _(oracle):
    requests = [local("a", 48, 10, aborted=5), local("b", 48, 10)]
    # `b` takes three of the four.
    for mode, colocated, step, left in (("sync", False, 5, 1), ("async", True, 6, 1), ("async", False, 6, 0)):
        answer = oracle.ask(requests, blocks=4, mode=mode, colocated=colocated)
        same(f"b, {mode}", decode(answer, "b")["admit"], step)
        free = [traced["engines"]["D0"]["free_scheduled"] for traced in answer["trace"] if traced["step"] == 5]
        same(f"free in 5, {mode}", free, [left])


@fact("differs 6: async preempts as it plans, a step before; a consumer only when that step is over")
def _(oracle):
    requests = [local("a", 31, 40), local("b", 31, 40)]
    for mode, colocated, step in (("sync", False, 18), ("async", True, 17), ("async", False, 18)):
        answer = oracle.ask(requests, blocks=6, mode=mode, colocated=colocated)
        same(f"b, {mode}", decode(answer, "b")["preempted"], [step])


@fact("differs 6: a consumer that can't preempt yet still promotes, and then that step is all there is")
def _(oracle):
    requests = [local("a", 31, 40), local("b", 31, 40), remote("c", 16, 2, arrives=14)]
    answer = oracle.ask(requests, blocks=7, mode="async", read_steps=1)
    same("steps 18 and 19", [scheduled(answer, "D0", step) for step in (18, 19)], [{"c": 1}, {"a": 1}])
    same("preempted", [decode(answer, name)["preempted"] for name in "abc"], [[], [19], [19]])


@fact("async: who is preempted in a step still gets its tokens, and is over with its last; a prefiller drops them")
def _(oracle):
    answer = oracle.ask([local("a", 24, 30), local("b", 16, 9)], blocks=4, colocated=True, mode="async")
    b = decode(answer, "b")
    same("b", (b["preempted"], b["finish"]), ([8], 8))
    prefiller = {"blocks": 5, "budget": 56, "chunk": 32}
    answer = oracle.ask([remote("a", 80, 4), remote("b", 24, 4)], prefiller=prefiller, mode="async")
    b = prefill(answer, "b")
    same("b on the prefiller", (b["preempted"], b["finish"]), ([0], 5))


@fact("differs 7: of freed blocks the partial one is taken first, then the cached ones tail first")
def _(oracle):
    # 57 tokens end in three full blocks and a partial one; 16, 17 and 33 tokens take 1, 2 and 3 of them.
    for tokens, hit in ((16, 48), (17, 32), (33, 16)):
        requests = [local("a", 49, 9), local("x", tokens, 1, 20), local("y", [["a", 49]], 1, 30)]
        answer = oracle.ask(requests, blocks=4, colocated=True)
        same(f"hit after {tokens}", decode(answer, "y")["hit"], hit)


@fact("abort while running: blocks come back in that step, in the same order, and stay findable")
def _(oracle):
    for tokens, hit in ((16, 48), (17, 32), (33, 16)):
        requests = [local("a", 49, 9, aborted=5), local("x", tokens, 1, 20), local("y", [["a", 49]], 1, 30)]
        answer = oracle.ask(requests, blocks=4, colocated=True)
        same("free", decode(answer, "a")["free"], 5)
        same(f"hit after {tokens}", decode(answer, "y")["hit"], hit)


@fact("abort while waiting on the prefiller: it is never handed over")
def _(oracle):
    requests = [remote("a", 64, 2), remote("b", 64, 2, aborted=2)]
    answer = oracle.ask(requests, prefiller={"blocks": 4}, read_steps=3)
    same("b", (prefill(answer, "b")["admit"], decode(answer, "b")["arrive"]), (None, None))
    same("aborted", answer["requests"]["b"]["aborted"], 2)


@fact("abort while prefilling: blocks are free and findable in that step, and nothing is handed over")
def _(oracle):
    requests = [remote("a", 64, 2, aborted=2), remote("b", [["a", 32], ["b", 32]], 2)]
    for mode, admit in (("sync", 2), ("async", 3)):
        answer = oracle.ask(requests, prefiller={"blocks": 4, "budget": 16}, mode=mode)
        same("a", (prefill(answer, "a")["free"], decode(answer, "a")["arrive"]), (2, None))
        same("b", (prefill(answer, "b")["admit"], prefill(answer, "b")["hit"]), (admit, 32))


@fact("abort while waiting on the decoder: pull tells the prefiller at once; push never does")
def _(oracle):
    requests = [local("full", 48, 10), remote("a", 64, 2, aborted=4)]
    for transfer, free in (("pull", 4 + 2 + 1), ("push", None)):
        answer = oracle.ask(requests, blocks=4, transfer=transfer, read_steps=5, notice_steps=2)
        same(transfer, (decode(answer, "a")["park"], prefill(answer, "a")["free"]), (None, free))
        same("stuck", answer["stuck"], False)


@fact("abort while parked: the transfer goes on, both sides' blocks come back after it; nothing is cached")
def _(oracle):
    requests = [remote("a", 64, 2, aborted=3), remote("b", [["a", 64]], 2, arrives=20)]
    for transfer, read_done, free in (("pull", 6, 6 + 2 + 1), ("push", 9, 9)):
        answer = oracle.ask(requests, transfer=transfer, read_steps=5, notice_steps=2)
        a = decode(answer, "a")
        same(transfer, (a["park"], a["read_done"], a["free"]), (1, read_done, read_done))
        same("prefiller", prefill(answer, "a")["free"], free)
        same("b on the decoder", decode(answer, "b")["hit"], 0)
        same("b on the prefiller", prefill(answer, "b")["hit"], 48)


@fact("abort with the read done and no seat: blocks come back at once; nothing is cached")
def _(oracle):
    requests = [remote("a", 32, 20), remote("b", 32, 2, aborted=8), remote("c", [["b", 32]], 2, arrives=30)]
    answer = oracle.ask(requests, decoder={"seats": 1}, read_steps=2)
    b = decode(answer, "b")
    same("b", (b["read_done"], b["promote"], b["free"]), (3, None, 8))
    same("c", decode(answer, "c")["hit"], 0)


@fact("abort while decoding: blocks come back and the computed ones stay findable")
def _(oracle):
    requests = [remote("a", 48, 20, aborted=10), remote("b", [["a", 48], ["b", 9]], 2, arrives=20)]
    answer = oracle.ask(requests, read_steps=2)
    same("a", (decode(answer, "a")["free"], decode(answer, "a")["finish"]), (10, None))
    same("b", decode(answer, "b")["hit"], 48)


@fact("push: the write starts when the prefiller has blocks and registration, and ends on both sides at once")
def _(oracle):
    answer = oracle.ask([remote("a", 64, 2)], transfer="push", read_steps=3, notice_steps=2)
    a = decode(answer, "a")
    same("a", (a["park"], a["read_posted"], a["read_done"], a["promote"]), (1, 4, 7, 8))
    same("free", prefill(answer, "a")["free"], 7)


@fact("a chunk limit does not hold for a request that is alone")
def _(oracle):
    for requests, wanted in (([local("a", 64, 2)], 64), ([local("a", 64, 2), local("b", 64, 2)], 16)):
        answer = oracle.ask(requests, colocated=True, decoder={"chunk": 16})
        same(f"{len(requests)} requests", scheduled(answer, "D0", 0)["a"], wanted)


@fact("with the budget used up by running requests nothing is parked or promoted")
def _(oracle):
    requests = [local("long", 20, 30), remote("r", 16, 2)]
    answer = oracle.ask(requests, decoder={"seats": 2, "budget": 2}, read_steps=1)
    same("r", (decode(answer, "r")["arrive"], decode(answer, "r")["park"]), (1, 10))
    requests = [remote("r", 16, 2), local("long", 20, 30, arrives=2)]
    answer = oracle.ask(requests, decoder={"seats": 2, "budget": 2}, read_steps=1)
    same("r", (decode(answer, "r")["read_done"], decode(answer, "r")["promote"]), (2, 12))


@fact("a resumed request is chunked like any prompt")
def _(oracle):
    requests = [local("a", 31, 40), local("b", 31, 40)]
    answer = oracle.ask(requests, blocks=6, colocated=True, decoder={"budget": 24})
    resumed = decode(answer, "a")["finish"] + 1
    assert decode(answer, "b")["preempted"], "b should be preempted"
    same("b", scheduled(answer, "D0", resumed), {"b": 24})


@fact("a prompt is admitted only if all of it fits, and then holds no more than its chunks")
def _(oracle):
    answer = oracle.ask([local("small", 16, 9), local("long", 128, 1)], blocks=9, colocated=True)
    # 16 + 9 tokens take a second block in step 1, too late to keep `long` out of 9 blocks.
    same("all of it fits", decode(answer, "long")["admit"], 0)
    answer = oracle.ask([local("small", 16, 9), local("long", 129, 1)], blocks=9, colocated=True)
    same("it does not fit", decode(answer, "long")["admit"], decode(answer, "small")["finish"] + 1)
    both = [local("a", 96, 2), local("b", 96, 2)]
    answer = oracle.ask(both, blocks=8, colocated=True, decoder={"chunk": 16})
    same("admitted together", [decode(answer, name)["admit"] for name in "ab"], [0, 0])
    same("b is preempted", len(decode(answer, "b")["preempted"]), 1)


@fact("what can never run is reported as stuck, and the run ends by itself")
def _(oracle):
    answer = oracle.ask([local("a", 200, 1), local("b", 10, 1)], blocks=4, colocated=True)
    same("stuck", (answer["stuck"], answer["steps"]), (True, 1))


@fact("a bad line is answered by a sentence, and the next line by its answer")
def _(oracle):
    for line in ("no JSON", "[]", '{"name": "x"}', '{"name": "x", "decoders": {"count": 1, "blocks": 0}}'):
        same(line, list(oracle.line(line)), ["error"])
    too_long = {"name": "x", "decoders": {"count": 1, "blocks": 4}, "max_model_len": 64}
    too_long["requests"] = [local("a", 60, 5)]
    same("too long", list(oracle.line(json.dumps(too_long))), ["error"])
    same("next", oracle.ask([local("a", 20, 1)], colocated=True)["steps"], 1)


def main() -> int:
    oracle = Oracle()
    failed = 0
    for sentence, check in FACTS:
        try:
            check(oracle)
            print(f"holds  {sentence}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILS  {sentence}\n       {error}", flush=True)
    oracle.process.stdin.close()
    oracle.process.wait()
    print(f"{len(FACTS) - failed} of {len(FACTS)} facts hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
