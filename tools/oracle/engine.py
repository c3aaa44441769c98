"""One vLLM engine without its model: the real scheduler, stepped as `EngineCore` steps it.

The scheduler, its cache manager and the scheduler side of the NIXL connector are vLLM's own. Their
worker is `workers.py` for the transfers and this module for the tokens: every batch samples one token
for each request whose known tokens it completes.

Paths and lines in comments are those of vLLM 0.32.0, below its package folder.
"""

import dataclasses
import functools
import json
import logging
import os
import tempfile
from collections import deque

# Before vLLM is imported, which reads them then and warns about every engine it is asked for.
logging.disable(logging.WARNING)
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from scenario import Side

init_none_hash(sha256)

# `step_with_batch_queue` keeps two batches: one runs while the next is scheduled (config/vllm.py 577-591).
BATCHES_IN_FLIGHT = 2


@dataclasses.dataclass
class Leg:
    """What happened to one request on one engine: steps, and tokens where it says `hit`."""

    arrive: int | None = None
    park: int | None = None
    hit: int | None = None
    read_posted: int | None = None
    read_done: int | None = None
    promote: int | None = None
    admit: int | None = None
    first_token: int | None = None
    finish: int | None = None
    free: int | None = None
    preempted: list[int] = dataclasses.field(default_factory=list)
    resumed_hit: list[int] = dataclasses.field(default_factory=list)

    def last_step(self) -> int:
        """The last step in which something happened, -1 if nothing did."""
        events = vars(self) | {"hit": None, "preempted": None, "resumed_hit": None}
        steps = [*self.preempted, *(step for step in events.values() if step is not None)]
        return max(steps, default=-1)


@dataclasses.dataclass
class Batch:
    """A step that was scheduled and whose output the scheduler has not seen."""

    output: SchedulerOutput
    # The requests of which the batch samples a token.
    sampling: set[str]
    # When it begins on the GPU, and when its output is there; one that computes nothing takes no time.
    begins: int
    ends: int

    def tokens(self) -> dict[str, int]:
        return self.output.num_scheduled_tokens


@dataclasses.dataclass
class Stepped:
    """What one step of an engine did, for those around it."""

    # What the batch that begins in this step computes.
    scheduled: dict[str, int] = dataclasses.field(default_factory=dict)
    preempted: list[str] = dataclasses.field(default_factory=list)
    started: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    # Finished requests with the `kv_transfer_params` of their answer.
    finished: list[tuple[str, dict | None]] = dataclasses.field(default_factory=list)
    # Blocks nobody holds once the step is scheduled, if it was.
    free: int | None = None
    # Somebody was scheduled or preempted, or a transfer ended.
    changed: bool = False


class Engine:
    """Steps one scheduler and writes down what it does to every request."""

    def __init__(self, name, side: Side, role, scenario, workers):
        self.name, self.block, self.scenario, self.workers = name, side.block, scenario, workers
        self.scheduler = build(name, side, role, scenario)
        self.hasher = get_request_block_hasher(side.block, sha256)
        self.requests: dict[str, Request] = {}
        self.legs: dict[str, Leg] = {}
        self.batches: deque[Batch] = deque()
        # Requests that are over here and whose blocks may still be held, and for those whose blocks the
        # scheduler holds back, the batch it waits for.
        self.ending: list[str] = []
        self.fences: dict[str, int] = {}

    def add(self, step: int, name: str, prompt: list[int], answer: int, transfer: dict | None):
        """Receives a request, as the API server hands it to the engine between two steps."""
        extra = {"kv_transfer_params": dict(transfer)} if transfer else None
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0, extra_args=extra)
        self.requests[name] = Request(
            name, prompt, sampling, pooling_params=None, arrival_time=step, block_hasher=self.hasher
        )
        self.legs[name] = Leg(arrive=step)
        self.scheduler.add_request(self.requests[name])

    def abort(self, step: int, name: str) -> bool:
        """Aborts a request between two steps; false if there is nothing to abort, as when it is leased."""
        aborted = self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.ending += [request.request_id for request in aborted]
        self.note_freed(step)
        return bool(aborted)

    def land(self, now: int) -> Stepped:
        """Processes the output of what has ended by `now`: that of the step before."""
        stepped = Stepped()
        while self.batches and self.batches[0].ends <= now:
            self.process(now - 1, self.batches.popleft(), stepped)
        return stepped

    def step(self, now: int) -> Stepped:
        """What the engine's loop does at `now`; it stands still without work (v1/engine/core.py 1534-1540)."""
        stepped = Stepped()
        if self.scenario.pipelined:
            self.step_with_batch_queue(now, stepped)
            begin = [batch.tokens() for batch in self.batches if batch.begins == now and batch.tokens()]
            stepped.scheduled = dict(*begin)
        elif self.scheduler.has_requests():  # v1/engine/core.py 657-687
            batch = self.schedule(now, stepped)
            stepped.scheduled = dict(batch.tokens())
            self.process(now, batch, stepped)
        return stepped

    def step_with_batch_queue(self, now: int, stepped: Stepped):
        """v1/engine/core.py 698-812: schedules until the queue is full, then waits for the oldest batch.

        A schedule that gives nothing is queued too (751-759) and comes back once the batch before it has
        ended. An engine that runs nothing then sleeps a millisecond (1613-1617): here, until the next step,
        unless it preempted somebody, whose blocks the next schedule may give away.
        """
        while self.scheduler.has_requests() and len(self.batches) < BATCHES_IN_FLIGHT:
            batch = self.schedule(now, stepped)
            self.batches.append(batch)
            if batch.tokens():
                continue
            if batch.begins > now or not batch.output.preempted_req_ids:
                return
            self.process(now - 1, self.batches.pop(), stepped)

    def schedule(self, now: int, stepped: Stepped) -> Batch:
        output = self.scheduler.schedule()
        requests, metadata = self.scheduler.requests, output.kv_connector_metadata
        scheduled = output.num_scheduled_tokens
        begins = max(now, self.batches[-1].ends) if self.batches else now
        sampling = {name for name in scheduled if not requests[name].is_prefill_chunk}
        batch = Batch(output, sampling, begins, begins + bool(scheduled))
        # Each is put before the others in `waiting`, so the last one stands first.
        preempted = set(output.preempted_req_ids or ())
        preempted = [r.request_id for r in self.scheduler.waiting if r.request_id in preempted][::-1]
        stepped.preempted += preempted
        stepped.changed |= bool(scheduled or preempted)
        self.note_schedule(now, batch, preempted, metadata)
        stepped.free = self.free()
        if metadata is not None:
            stepped.started += self.workers.start(self.name, now, metadata)
        return batch

    def process(self, now: int, batch: Batch, stepped: Stepped):
        names = list(batch.tokens())
        sent, received = self.workers.ended(self.name, now)
        stepped.changed |= bool(sent or received)
        transfers = KVConnectorOutput(finished_sending=sent, finished_recving=received)
        for name in received:
            self.legs[name].read_done = now
        outputs = self.scheduler.update_from_output(
            batch.output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=[self.sampled(name, batch) for name in names],
                kv_connector_output=None if transfers.is_empty() else transfers,
            ),
        )
        for answer in outputs[0].outputs if 0 in outputs else ():
            leg = self.legs[answer.request_id]
            if answer.new_token_ids and leg.first_token is None:
                leg.first_token = now
            if answer.finish_reason is not None:
                leg.finish = now
                stepped.finished.append((answer.request_id, answer.kv_transfer_params))
                self.ending.append(answer.request_id)
        self.note_freed(now)

    def sampled(self, name: str, batch: Batch) -> list[int]:
        """What the model answers: the token depends on the request and its index alone."""
        request = self.scheduler.requests.get(name)
        if request is None or name not in batch.sampling:
            return []
        return [self.scenario.answered(name, request.num_output_tokens)]

    def note_schedule(self, now: int, batch: Batch, preempted: list[str], metadata):
        requests, scheduled = self.scheduler.requests, batch.tokens()
        for name in preempted:
            self.legs[name].preempted.append(now)
        # Aborted requests are in `reqs_to_recv` too, and no longer in `requests`.
        for name, read in metadata.reqs_to_recv.items() if metadata else ():
            if name in requests and self.legs[name].park is None:
                (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
                (to_fill,) = read.local_block_ids
                leg = self.legs[name]
                leg.park, leg.hit = now, (len(blocks) - len(to_fill)) * self.block
        for request in (*self.scheduler.kv_holding_waiting, *(requests[name] for name in scheduled)):
            leg = self.legs[request.request_id]
            parked = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
            if leg.park is not None and leg.promote is None and not parked:
                leg.promote = now
        for name, tokens in scheduled.items():
            leg, cached = self.legs[name], requests[name].num_computed_tokens - tokens
            if leg.admit is None:
                leg.admit = batch.begins
                leg.hit = cached if leg.hit is None else leg.hit
            elif len(leg.resumed_hit) < len(leg.preempted):
                leg.resumed_hit.append(cached)

    def note_freed(self, now: int):
        """Notes the step in which an ended request's blocks are back in the pool.

        The request stays in `requests` while it is leased or while a transfer still fills its blocks.
        A consumer with batches in flight also holds back blocks that such a batch may write, until that
        batch's output is processed (v1/core/sched/scheduler.py 2759-2775, 2788-2801).
        """
        scheduler = self.scheduler
        for name in [name for name in self.ending if name not in scheduler.requests]:
            if name not in self.fences:
                held_back = (
                    scheduler.defer_block_free
                    and self.requests[name].last_sched_seq > scheduler.processed_step_seq
                )
                self.fences[name] = scheduler.sched_step_seq if held_back else 0
            if self.fences[name] <= scheduler.processed_step_seq:
                self.legs[name].free = now
                self.ending.remove(name)

    def free(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def picture(self) -> dict:
        """The scheduler's queues and free blocks as they stand."""
        scheduler = self.scheduler
        holding = list(scheduler.kv_holding_waiting)
        parked = [r.request_id for r in holding if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
        ready = [r.request_id for r in holding if r.status != RequestStatus.WAITING_FOR_REMOTE_KVS]
        return {
            "free": self.free(),
            "running": [[r.request_id, r.num_computed_tokens] for r in scheduler.running],
            "waiting": ready + [r.request_id for r in scheduler.waiting],
            "parked": parked,
            "leased": [name for name, request in scheduler.requests.items() if request.is_finished()],
        }


def build(name: str, side: Side, role: str | None, scenario) -> Scheduler:
    """A scheduler as `vllm serve` would make it, of a model with one attention layer."""
    transfer = None
    if role is not None:
        connector = "NixlPushConnector" if scenario.push else "NixlConnector"
        transfer = KVTransferConfig(
            kv_connector=connector, kv_role=role, engine_id=name, kv_buffer_device="cpu"
        )
    # One block more: the null block, which no request can hold.
    blocks = side.blocks + 1
    cache = CacheConfig(block_size=side.block, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=model(scenario.max_model_len),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=side.seats,
            max_num_batched_tokens=side.budget,
            max_model_len=scenario.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=side.chunk,
            async_scheduling=scenario.pipelined,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfer,
    )
    # What the CPU platform changed (platforms/cpu.py) goes back to what was asked for: it rounds the block
    # to what its kernels run, and turns async scheduling off (331). The latter decides whether a consumer
    # holds freed blocks back (v1/core/sched/scheduler.py 186-192), as it does on a GPU.
    cache.block_size = side.block
    config.scheduler_config.async_scheduling = scenario.pipelined
    cache.num_gpu_blocks = blocks
    attention = FullAttentionSpec(block_size=side.block, num_kv_heads=1, head_size=64, dtype=torch.float32)
    scheduler = AsyncScheduler if scenario.pipelined else Scheduler
    return scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=side.block,
        log_stats=False,
    )


@functools.cache
def model(max_model_len: int) -> ModelConfig:
    """The smallest model that vLLM takes; nothing of it is ever loaded."""
    description = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "vocab_size": 1000,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(description, file)
        return ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len
        )
