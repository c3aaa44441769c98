"""What the workers of all engines would do about transfers, in steps instead of bytes.

vLLM's scheduler tells its worker in the connector metadata of a step what to transfer, and learns in
the output of a step what has ended. What is asked for in step `s` starts in `s`, and the output of a
step reports what has ended by then.

    pull   D's step s            the read is posted
           D's step s + k        reported to D as received; D notifies P
           P's step s + k + m + 1    reported to P as sent: its blocks are free

    push   D's step s            D sends P its block ids (the registration)
           P's step s + m + 1    P has the registration, at the earliest
           P's step w            P also has the finished blocks: the write starts
           P's and D's step w + k    reported to P as sent and to D as received

`k` is `read_steps`, and for some requests more (`slower`), `m` is `notice_steps`. A notice from a decoder takes one step more than `m`,
because the prefillers of a step run before its decoders. Leases never end and there are no
heartbeats. Reports are lists in the order of the transfers, where vLLM has sets, whose order depends on
hashes: a run is the same every time.
"""

from collections import defaultdict

from scenario import Scenario


class Pull:
    """Decoders read from prefillers (NixlConnector)."""

    def __init__(self, scenario: Scenario):
        self.notice_steps = scenario.notice_steps
        self.read_steps = {asked.name: scenario.read_steps + asked.slower for asked in scenario.requests}
        # engine -> [(step, when it left, request id)] that are under way to that engine's scheduler.
        self.sent, self.received = defaultdict(list), defaultdict(list)

    def pending(self) -> bool:
        """Whether some engine will be told something."""
        return any(self.sent.values()) or any(self.received.values())

    def ended(self, engine: str, step: int) -> tuple[list[str], list[str]]:
        """What has ended by a step on one engine: request ids sent, and received."""
        return due(self.sent[engine], step), due(self.received[engine], step)

    def start(self, engine: str, step: int, metadata) -> list[tuple[str, str]]:
        """Starts what one engine's scheduler asks for in a step: (decoder, request id), whose ever they are."""
        started = []
        for request_id, read in metadata.reqs_to_recv.items():
            # It leaves as the step begins; the notice of a read, when that is over.
            done, left = step, (step, False)
            # Nothing to read: the request was aborted before it was parked, and the prefiller is to
            # be told at once (nixl/pull_worker.py 446-450).
            if any(read.local_block_ids):
                done += self.read_steps[request_id]
                left = (done, True)
                self.received[engine].append((done, left, request_id))
                started.append((engine, request_id))
            self.sent[read.remote.engine_id].append((done + self.notice_steps + 1, left, read.remote.request_id))
        return started


class Push(Pull):
    """Prefillers write to decoders (NixlPushConnector).

    A request aborted before its decoder parked it registers nothing. nixl/push_scheduler.py 233-244
    then asks for an empty receive, so that the prefiller be told; nixl/push_worker.py sends nothing for
    it (the only notices it sends are registrations, 364-381). So the prefiller's blocks stay leased.
    """

    def __init__(self, scenario: Scenario):
        super().__init__(scenario)
        # prefiller -> request id -> what one of the two has told its worker.
        self.registrations, self.finished = defaultdict(dict), defaultdict(set)

    def pending(self) -> bool:
        return super().pending() or any(self.registrations.values())

    def start(self, engine: str, step: int, metadata) -> list[tuple[str, str]]:
        for request_id, registration in (metadata.push_registrations or {}).items():
            arrives = step + self.notice_steps + 1
            self.registrations[registration["remote_engine_id"]][request_id] = (arrives, engine)
        self.finished[engine].update(metadata.push_finished_blocks or {})
        started = []
        for request_id, (arrives, decoder) in list(self.registrations[engine].items()):
            if arrives <= step and request_id in self.finished[engine]:
                del self.registrations[engine][request_id]
                self.finished[engine].remove(request_id)
                done = step + self.read_steps[request_id]
                self.sent[engine].append((done, (done, True), request_id))
                self.received[decoder].append((done, (done, True), request_id))
                started.append((decoder, request_id))
        return started


def due(under_way: list[tuple[int, tuple[int, bool], str]], step: int) -> list[str]:
    """Takes out what has arrived by `step`, in the order in which it left."""
    arrived = [one for one in under_way if one[0] <= step]
    under_way[:] = [one for one in under_way if one[0] > step]
    return [request_id for _, _, request_id in sorted(arrived, key=lambda one: one[1])]
