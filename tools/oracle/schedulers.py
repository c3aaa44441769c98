"""Runs scenarios on real vLLM schedulers: prefillers and decoders in one process, no model, no GPU.

    python schedulers.py < scenarios.jsonl > answers.jsonl

One scenario a line comes in, one answer a line goes out, each as soon as it is known. A scenario that
cannot be run is answered `{"error": "..."}`. The schemas, and what a step is, are in README.md.
"""

import json
import os
import sys
import traceback

from engine import Engine, Leg, Stepped
from scenario import Asked, BadScenario, Scenario, read
from workers import Pull, Push

# What the prefill leg of a request asks of its engine; the answer's parameters go to the decode leg.
PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# Steps without any change after which nothing can change: a schedule, its output, and one to see
# that both gave nothing.
QUIET_STEPS = 3
PREFILL_EVENTS = ("arrive", "admit", "hit", "finish", "free", "preempted")


class Run:
    """One scenario on its engines, in lockstep. Of a step, in this order:

    1. the output of what the last step computed, where engines plan ahead (a sync one has processed it),
    2. arrivals, in the order of the list,
    3. hand-overs: what the prefillers answered in the last step goes to the decoders, in that order,
    4. aborts, in the order of the list,
    5. the prefillers step in order, then the decoders.
    """

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        workers = (Push if scenario.push else Pull)(scenario)
        self.workers = workers

        def engines(letter, side, role):
            return [Engine(f"{letter}{n}", side, role, scenario, workers) for n in range(side.count)]

        split = scenario.prefillers is not None
        self.prefillers = engines("P", scenario.prefillers, "kv_producer") if split else []
        self.decoders = engines("D", scenario.decoders, "kv_consumer" if split else None)
        self.engines = {engine.name: engine for engine in (*self.prefillers, *self.decoders)}
        self.asked = {asked.name: asked for asked in scenario.requests}
        self.aborted: dict[str, int] = {}
        self.handovers: list[tuple[str, dict]] = []
        self.trace: list[dict] = []
        self.pictures: dict[str, dict] = {}

    def run(self) -> dict:
        step, quiet = 0, 0
        while step < self.scenario.steps_max:
            landed = {name: engine.land(step) for name, engine in self.engines.items()}
            for name, done in landed.items():
                self.follow(step, name, done)
            self.begin(step)
            stepped = {name: engine.step(step) for name, engine in self.engines.items()}
            for name, done in stepped.items():
                self.follow(step, name, done)
            if self.scenario.trace:
                self.draw(step, stepped)
            quiet = 0 if self.lively([*landed.values(), *stepped.values()]) else quiet + 1
            step += 1
            if quiet >= QUIET_STEPS:
                # Nothing moves until something comes from outside: the steps between are all alike.
                outside = [when for when in self.outside() if when >= step]
                if not outside:
                    break
                step = min(outside)
        return self.answer()

    def begin(self, step: int):
        """What comes to the engines between the last step and this one."""
        for asked in self.scenario.requests:
            if asked.arrives == step:
                prompt = self.scenario.prompt(asked)
                if asked.prefiller is None:
                    self.decoder(asked).add(step, asked.name, prompt, asked.answer, None)
                else:
                    self.prefillers[asked.prefiller].add(step, asked.name, prompt, 1, PREFILL)
        handovers, self.handovers = self.handovers, []
        for name, transfer in handovers:
            asked = self.asked[name]
            self.decoder(asked).add(step, name, self.scenario.prompt(asked), asked.answer, transfer)
        for asked in self.scenario.requests:
            if asked.aborted == step:
                # The client is gone: whichever engine still knows the request is told.
                told = [engine.abort(step, asked.name) for engine in self.engines.values()]
                if any(told):
                    self.aborted[asked.name] = step

    def follow(self, step: int, name: str, done: Stepped):
        """Carries what an engine did to the others."""
        for decoder, request in done.started:
            self.engines[decoder].legs[request].read_posted = step
        if self.engines[name] in self.prefillers:
            self.handovers += done.finished

    def lively(self, done: list[Stepped]) -> bool:
        """Whether something happened, or will without anything coming from outside."""
        return (
            bool(self.handovers)
            or self.workers.pending()
            or any(one.changed or one.finished for one in done)
            or any(batch.tokens() for engine in self.engines.values() for batch in engine.batches)
        )

    def outside(self) -> list[int]:
        steps = [asked.arrives for asked in self.scenario.requests]
        return steps + [asked.aborted for asked in self.scenario.requests if asked.aborted is not None]

    def decoder(self, asked: Asked) -> Engine:
        return self.decoders[asked.decoder]

    def draw(self, step: int, stepped: dict[str, Stepped]):
        pictures = {name: engine.picture() for name, engine in self.engines.items()}
        if pictures != self.pictures or any(done.scheduled for done in stepped.values()):
            self.trace.append(
                {
                    "step": step,
                    "engines": {
                        name: {
                            "scheduled": done.scheduled,
                            "preempted": done.preempted,
                            "free_scheduled": pictures[name]["free"] if done.free is None else done.free,
                            **pictures[name],
                        }
                        for name, done in stepped.items()
                    },
                }
            )
        self.pictures = pictures

    def answer(self) -> dict:
        legs = [leg for engine in self.engines.values() for leg in engine.legs.values()]
        last = max([leg.last_step() for leg in legs] + list(self.aborted.values()), default=-1)
        decoded = {name: self.decoder(asked).legs.get(name, Leg()) for name, asked in self.asked.items()}
        stuck = any(leg.finish is None and name not in self.aborted for name, leg in decoded.items())
        answer = {"name": self.scenario.name, "steps": last + 1, "stuck": stuck, "requests": {}}
        for name, asked in self.asked.items():
            prefill = None
            if asked.prefiller is not None:
                leg = vars(self.prefillers[asked.prefiller].legs.get(name, Leg()))
                prefill = {event: leg[event] for event in PREFILL_EVENTS}
            answer["requests"][name] = {
                "prefill": prefill,
                "decode": dict(vars(decoded[name])),
                "aborted": self.aborted.get(name),
            }
        if self.scenario.trace:
            answer["trace"] = self.trace
        return answer

    def close(self):
        for engine in self.engines.values():
            engine.scheduler.shutdown()


def answer(line: str) -> dict:
    """The answer to one line, whatever it is."""
    try:
        run = Run(read(line))
        try:
            return run.run()
        finally:
            run.close()
    except BadScenario as error:
        return {"error": str(error)}
    except Exception as error:
        # vLLM refused it, or one of us is wrong: the trace says which, the other lines go on.
        traceback.print_exc()
        first = str(error).partition("\n")[0]
        return {"error": f"vLLM stopped: {type(error).__name__}: {first}"}


def main():
    # Whatever a library prints goes to standard error; standard output is for answers.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(answer(line)), file=out, flush=True)


if __name__ == "__main__":
    main()
