"""The engine on vLLM: token ids in, sampled token ids out, with log-probs and the version that sampled each token.

    generate         vllm_requests.py -> proof gate -> Completion
    update_weights   check the digest of the file, once per node -> pause (requests freeze) -> load -> read back what
                     the model holds -> queue the canary -> resume
    receive_weights  pause -> load a broadcast as it arrives; apply_received: check its digest -> queue the canary ->
                     resume
    load_exposed     pause -> load what `map_exposed` has mapped of the learner's memory, and read it back, in one call
                     to the worker -> queue the canary -> resume
    sleep            pause -> weights to host memory, KV cache dropped. `wake` or a push brings the weights back first,
                     and the KV cache before the canary -> resume

A pause clears the KV cache, so a frozen request computes its prefix again with the new weights. With
pipeline.kv_after_push = "keep" a push leaves the cache, if the canary finds slots beside the running requests (vLLM
takes none from these). Every request then has the version under which its trajectory began as a salt, so that later
trajectories find no block of older weights.

The canary's requests are queued while the engine is still paused and go before all others, so their verdict does not
wait for a full engine. Until it is known, completions with tokens of the new weights are withheld (proof.py).

A push that fails for another reason than a bad file leaves the workers in an unknown state: the engine is then broken
for good and must be replaced. If the read-back finds other weights than were sent, the engine stays frozen, for another
push or `discard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import Config
from ..config.sections.colocation import NO_SLEEP_ON_CPU
from ..errors import (
    ConfigError,
    EngineError,
    InfraError,
    WeightsMisloaded,
    WeightsUnverified,
)
from ..machine.gpus import runs_on_gpus
from ..memory.threads import compute_threads
from ..pushes import BroadcastRendezvous, BroadcastResult, Canary, Exposed, ReadBackReport
from ..types import Completion, EngineBounds, Sampling
from ..waiting.deadlines import Deadline, answer_deadline, node_lock_deadline, within
from ..waiting.suspension import awake_timeout
from ..weights.node_copy import NodeCopy
from .core_process import forked_core, may_fork
from .gpu_memory import wait_for_memory
from .in_flight import no_number
from .packed_logprobs import LogprobInbox
from .progress import Progress
from .proof import ProofGate
from .socket_directory import remove_socket_directory, socket_directory
from .start import LatestStats, engine_args, keeps_copy, packs_logprobs, prepare_environment, workers_by_ray
from .vllm_requests import VllmRequests

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
CANARY_PRIORITY = -1
"""vLLM answers requests with lower numbers first; all others have 0."""
WEIGHTS = "weights"
KV_CACHE = "kv_cache"
"""vLLM's names for the two parts that sleep. Once both are awake, vLLM itself lets requests go on."""
LATE_OUTPUTS_S = 0.02
"""Seconds after a pause in which vLLM's last outputs arrive here: AsyncLLM.pause_generation waits for it."""
SLEEP_LEVEL = 1
"""Weights go to host memory. Level 2 would drop them, but an engine that wakes without a push needs them."""


class Push(Enum):
    """The stage of an engine's push. Requests are frozen in every stage but NONE.

    Another push may begin in every stage but LOADING. After a torn broadcast an engine stays LOADING, and receives the
    next one without beginning anew.
    """

    NONE = auto()
    LOADING = auto()
    """Weights are loaded, read back or put into use."""
    HALF_LOADED = auto()
    """Buckets that the learner exposes are loaded, and others are to come."""
    MISLOADED = auto()
    """The read-back has found other weights than were sent."""


class VllmEngine:
    """An engine on one vLLM AsyncLLM. Belongs to the event loop that started it."""

    def __init__(self, llm: AsyncLLM, model: str, latest: LatestStats, version: int, cfg: Config) -> None:
        """Use `start` instead, which loads the model."""
        self._unresponsive = answer_deadline(cfg)
        self._push_deadline = Deadline.of(cfg, "timeouts.push_s")
        self._progress = Progress()
        self._llm = llm
        self._model = model
        self._latest = latest
        self.requests = VllmRequests(llm, version, cfg)
        self.proof = ProofGate()
        self.bounds = EngineBounds(llm.model_config.get_vocab_size(), llm.model_config.max_model_len)
        self._paused_by_user = False
        self._push = Push.NONE
        self._canaries = 0
        """Canaries that are being answered; while there are any, a user's pause is lifted."""
        self._asleep: set[str] = set()
        """The parts that sleep."""
        self._switching = asyncio.Lock()
        """Held while vLLM is paused or resumed."""
        self._sleeping = asyncio.Lock()
        """One sleep or wake at a time: one that was cancelled here may still be under way in vLLM's process."""
        self._node = NodeCopy(keep=keeps_copy(cfg), patience_s=node_lock_deadline(cfg).seconds)
        self._one_push = asyncio.Lock()
        self._received = BroadcastResult()
        """The last broadcast that is not in use yet."""
        self._frozen_at = 0.0
        self._paused_at = 0.0
        """When vLLM was paused last."""
        self._push_pause_s = 0.0
        """Seconds for which the last push froze the engine."""
        self._push_map_s = 0.0
        """Seconds that the last mapping of the learner's memory took, before the pause."""
        self._keeps_kv = cfg.pipeline.keeps_kv
        self._slots = cfg.vllm.max_num_seqs
        self._push_parts: dict[str, float] = {}
        """Seconds of the parts of the last push's pause, by the name of their metric."""
        self.read_back = ReadBackReport(0)
        """What the model holds after the last push, compared with what was sent."""
        self.canary_s = 0.0
        """Seconds that the last canary took."""
        self.threads: int | None = None
        """Threads with which each of vLLM's workers computes; None on a GPU."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, index: int = 0) -> VllmEngine:
        """See RolloutEngine. Without a GPU, vllm must not have been imported in this process before.

        Raises:
            EngineError: vLLM did not start.
            ConfigError: The configuration needs GPUs, and there is none.
        """
        gpu = runs_on_gpus()
        if cfg.train.colocate_all and not gpu:
            raise ConfigError(
                f"train.colocate_all needs GPUs, and there is none. {NO_SLEEP_ON_CPU}",
                code="machine",
                setting="train.colocate_all",
            )
        prepare_environment(gpu=gpu)
        if gpu and not cfg.train.share_gpus:  # with share_gpus a learner holds memory all the time
            await wait_for_memory(cfg.vllm.gpu_memory_utilization, os.environ.get("CUDA_VISIBLE_DEVICES"))
        from vllm.envs import enable_envs_cache
        from vllm.v1.engine.async_llm import AsyncLLM

        latest = LatestStats()
        try:
            with (
                contextlib.nullcontext() if workers_by_ray(cfg) else socket_directory(),
                forked_core() if may_fork(gpu=gpu) else contextlib.nullcontext(),
            ):
                llm = AsyncLLM.from_engine_args(engine_args(model, cfg, gpu=gpu, index=index), stat_loggers=[latest])
                # As vLLM's process does: otherwise every request of every step reads the environment.
                enable_envs_cache()
        except (RuntimeError, ValueError, OSError) as e:
            raise EngineError(f"vLLM did not start on {model}: {e}. The engine's own log above says more.") from e
        engine = cls(llm, model, latest, 0, cfg)
        if packs_logprobs(cfg):
            engine.requests.inbox = LogprobInbox.attach(llm)
        await engine.init_transfer()
        if not gpu:
            await within(engine._unresponsive, llm.collective_rpc("draw_on_cpu"), "The change of vLLM's sampler")
            await engine.compute_with(compute_threads(cfg).engine)
        return engine

    async def compute_with(self, threads: int) -> None:
        """Let each of vLLM's workers compute with so many threads, without a GPU."""
        change = self._llm.collective_rpc("compute_with", args=(threads,))
        self.threads = min(await within(self._unresponsive, change, "The change of vLLM's threads"))

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self.requests.version

    @property
    def broken(self) -> str | None:
        """The reason why this engine cannot be used any more; None while it can."""
        return self.requests.broken

    @broken.setter
    def broken(self, reason: str | None) -> None:
        self.requests.broken = reason

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine. A cancelled caller aborts the request. A sampled EOS is the last token; the text has no special
        tokens.

        Raises:
            WeightsUnverified: A token was sampled with weights that were found not to be the learner's.
            EngineError: A log-prob is not finite; the engine is then broken.
            RequestRefused: The request is too long, or asks for tokens beyond the vocabulary. The engine is well.
        """
        completion = await self.requests.complete(token_ids, sampling, request_id)
        await self.proof.passed(completion.versions)
        fault = no_number(completion, request_id)
        if fault is not None:
            self.broken = fault  # such values stay in the KV cache, and spoil other requests with the same prefix
            raise EngineError(fault)
        return completion

    async def abort(self, request_id: str) -> None:
        """See RolloutEngine."""
        await self.requests.abort(request_id)

    def progress(self) -> dict[str, int]:
        """See RolloutEngine."""
        return self.requests.progress()

    async def pause(self) -> None:
        """Freeze all requests, those of the OpenAI app included; new ones wait. Idempotent.

        The KV cache is cleared, except in the middle of a push that keeps it.
        """
        self._paused_by_user = True
        await self._switch()

    async def resume(self) -> None:
        """End a `pause`. During a weight push requests go on when the push is over."""
        self._paused_by_user = False
        await self._switch()

    async def _switch(self) -> None:
        """Pause or resume vLLM: it is paused while a push, the learner's turn or the user wants it, and only then.

        Called after every change of these, in any order. A canary is answered in spite of a user's pause: its push
        waits for it, and would wait until the engine counts as lost. vLLM freezes all requests or none, so others go on
        by a few tokens meanwhile.
        """
        async with self._switching:
            pushing = self._push is not Push.NONE
            wanted = pushing or bool(self._asleep) or (self._paused_by_user and not self._canaries)
            if wanted and not self.requests.busy.paused:
                # start.py adds slots for the canary to these.
                fits = self._llm.get_num_unfinished_requests() <= self._slots
                keep = self._keeps_kv and pushing and fits
                await self._pause_vllm(clear_cache=not keep)
                self.requests.busy.pause()
            elif self.requests.busy.paused and not wanted:
                await self._llm.resume_generation()
                self.requests.busy.resume()

    async def _pause_vllm(self, *, clear_cache: bool) -> None:
        """Freeze all requests as AsyncLLM.pause_generation does, but without its wait for late outputs.

        That is a fixed part of every pause. `_use` waits for what is left of it, before it counts versions.
        """
        if clear_cache:
            await self._llm.renderer.clear_mm_cache_async()
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear_cache)
        self._paused_at = time.monotonic()

    async def sleep(self) -> None:
        """See RolloutEngine. Raises EngineError if it fails; the engine is then broken."""
        async with self._sleeping:
            if self._asleep != {WEIGHTS, KV_CACHE}:
                await self._fall_asleep()

    async def _fall_asleep(self) -> None:
        self.requests.check()
        async with self._or_break("sleep", "turn of the GPU", EngineError):
            if self._push is not Push.NONE or self._asleep:
                raise EngineError("a weight push is not over")
            self._asleep = {WEIGHTS, KV_CACHE}
            await self._switch()
            await self._answer(self._llm.sleep(level=SLEEP_LEVEL, mode="keep"))

    async def wake(self) -> None:
        """See RolloutEngine. Raises EngineError if it fails; the engine is then broken."""
        self.requests.check()
        async with self._sleeping, self._or_break("wake", "turn of the GPU", EngineError):
            await self._wake_up(WEIGHTS, KV_CACHE)

    async def _wake_up(self, *tags: str) -> None:
        """Wake the given parts if they sleep. After the last one requests go on, if nothing else freezes the engine."""
        async with self._switching:
            for tag in [t for t in tags if t in self._asleep]:
                if tag == KV_CACHE and self._push is not Push.NONE:
                    # vLLM lets requests go on once both parts are awake, but the weights are loaded only in part now.
                    # The push wakes the cache at its end.
                    break
                await self._answer(self._llm.wake_up(tags=[tag]))
                self._asleep.discard(tag)
                if not self._asleep and self.requests.busy.paused:  # vLLM has resumed by itself
                    self.requests.busy.resume()
        await self._switch()

    async def update_weights(
        self, path: Path, version: int, digest: str, canary: Canary | None = None, link: str | None = None
    ) -> list[Completion]:
        """See RolloutEngine. Requests in flight go on with the new weights; with a `link` this node's copy is patched.

        The canary's requests are the first that the new weights answer: only their log-probs prove that the weights are
        *used*. Other completions are held back until `confirm_weights` or `discard`. Without a canary the caller
        vouches for the weights.

        Raises:
            WeightsUnverified: The old weights are still in use if the file is not the announced one. Otherwise the
                engine is broken.
        """
        self.requests.check()
        # Requests go on decoding while the file is checked.
        if link is None:
            checking = asyncio.to_thread(self._node.full, path, version, digest)
        else:
            checking = asyncio.to_thread(self._node.delta, path, version, digest, link)
        checked_path = await within(self._push_deadline, checking, f"The check of {path} on this node")
        await self.begin_update()
        await self.receive({"path": str(checked_path)})
        return await self.finish_update(version, canary)

    async def receive_weights(self, rendezvous: BroadcastRendezvous, first_rank: int, push_id: str) -> BroadcastResult:
        """See RolloutEngine. A torn push leaves the engine frozen, with mixed weights, for the next push."""
        from ..weights.broadcast.receiver import agreed

        async with self._one_push:
            self.requests.check()
            if self._push is not Push.LOADING:
                await self.begin_update()
            async with self._or_break("receive"):
                parts = await self._answer(
                    self._llm.collective_rpc("receive_weights", args=(list(rendezvous), first_rank, push_id))
                )
                received = agreed([BroadcastResult(*part) for part in parts])
                if received.unusable:
                    raise EngineError(received.fault)
            self._received = received
            return received

    async def apply_received(self, version: int, digest: str, canary: Canary | None = None) -> list[Completion]:
        """See RolloutEngine. With another digest the engine is broken, as it may hold a mixture of weights."""
        async with self._one_push:
            self.requests.check()
            received, self._received = self._received, BroadcastResult()
            async with self._or_break("use"):
                if received.digest != digest:
                    raise EngineError(
                        f"received weights of digest {str(received.digest)[:12]}, the learner announced {digest[:12]}"
                        f" for version {version}"
                    )
            return await self.finish_update(version, canary)

    async def map_exposed(self, exposed: Exposed) -> str | None:
        """See RolloutEngine. vLLM's process answers no request for some milliseconds."""
        from ..weights.ipc.importer import plain_buckets

        self.requests.check()
        start = time.monotonic()
        call = self._llm.collective_rpc("map_exposed", args=(plain_buckets(exposed.buckets),))
        reasons = await within(self._push_deadline, self._answer(call), "The mapping of the learner's memory")
        self._push_map_s = time.monotonic() - start
        return next((reason for reason in reasons if reason), None)

    async def load_exposed(self, exposed: Exposed, version: int, canary: Canary | None = None) -> list[Completion]:
        """See RolloutEngine. A push that ends between two of its buckets leaves the engine frozen for another one."""
        from ..weights.ipc.importer import plain_buckets

        async with self._one_push:
            self.requests.check()
            if self._push is not Push.HALF_LOADED:
                await self._freeze()
            buckets = plain_buckets(exposed.buckets)
            async with self._or_break("receive"):
                call = self._llm.collective_rpc("load_exposed", args=(exposed.push, buckets, exposed.remaining))
                answers = await self._answer(call)
            for part in ("begin", "load", "read_back"):
                self._add_part(part, max(parts[part] for parts, _ in answers))
            if exposed.remaining:
                self._push = Push.HALF_LOADED
                return []
            self._push = Push.LOADING
            return await self._use([ReadBackReport(*report) for _, report in answers], version, canary)

    async def init_transfer(self) -> None:
        """Make vLLM's weight-transfer handshake."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest({}))

    async def begin_update(self) -> None:
        """Begin a push, whatever the transport: freeze requests until `finish_update`."""
        half_loaded = self._push is Push.HALF_LOADED
        await self._freeze()
        async with self._or_break("begin"):
            with self._timed("begin"):
                await self.requests.let_arrive()
                if half_loaded:
                    await self._answer(self._llm.collective_rpc("begin_again"))
                else:
                    await self._answer(self._llm.start_weight_update())

    async def _freeze(self) -> None:
        """Begin a push: freeze requests, and wake the weights if they sleep."""
        self.requests.check()
        if self._push is Push.LOADING:
            raise EngineError("A weight push is already running on this engine. Await it first.")
        if self._push is Push.NONE:
            self._frozen_at = time.monotonic()
        self._push = Push.LOADING
        self._push_parts = {}
        async with self._or_break("begin"):
            with self._timed("freeze"):
                await self._switch()
                await self._wake_up(WEIGHTS)

    async def receive(self, info: dict[str, Any]) -> None:
        """Load one part of the weights, described as the backend needs it: {"path": ...} for 'file'."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._or_break("receive"):
            with self._timed("load"):
                await self._answer(self._llm.update_weights(WeightTransferUpdateRequest(info)))

    async def finish_update(self, version: int, canary: Canary | None = None) -> list[Completion]:
        """End a push: tokens are sampled by `version` from here on. Return what the canary sampled."""
        async with self._or_break("finish"):
            with self._timed("load"):
                await self._answer(self._llm.finish_weight_update(f"v{version}"))
            with self._timed("read_back"):
                parts = await self._answer(self._llm.collective_rpc("read_back"))
        return await self._use([ReadBackReport(*part) for part in parts], version, canary)

    async def _use(self, reports: list[ReadBackReport], version: int, canary: Canary | None) -> list[Completion]:
        """Sample from loaded weights as `version`, the canary first, if the workers hold what was sent.

        Args:
            reports: Each worker's read-back.
            version: Number of learner updates behind the weights.
            canary: What to sample first; None: nothing.

        Raises:
            WeightsMisloaded: A worker holds something else.
        """
        self.read_back = merged(reports)
        await asyncio.sleep(max(0.0, self._paused_at + LATE_OUTPUTS_S - time.monotonic()))
        await self.requests.let_arrive()
        if self.proof.unproved is not None:
            # The push before was not proved: it is repeated, or the learner died before it had scored it. What was
            # sampled with it must not pass when this one is proved, whose version may be the same.
            self.requests.void(self.proof.unproved)
            self.proof.void()
        self.requests.switch(version)
        if canary is not None and self.read_back.fault:
            # It stays frozen, as after a torn broadcast: these weights sample nothing, and another push may follow.
            self._push = Push.MISLOADED
            raise WeightsMisloaded(f"the model does not hold what was sent: {self.read_back.fault}")
        loaded = time.monotonic()
        if canary is None:
            await self._resume_after_push(loaded)
            return []
        self.proof.expect(version)
        sampling = asyncio.create_task(self._canary(*canary), name=f"canary {version}")
        await self.requests.let_arrive()  # its requests are queued before the engine goes on
        self._canaries += 1
        try:
            await self._resume_after_push(loaded)
            return await sampling
        finally:
            self._canaries -= 1
            await self._switch()

    async def _resume_after_push(self, loaded: float) -> None:
        """Let requests go on, unless the engine is frozen otherwise, and note how long the push froze it.

        Args:
            loaded: When the model was found to hold the weights.
        """
        self._push = Push.NONE
        async with self._or_break("resume"):
            await self._wake_up(KV_CACHE)
        now = time.monotonic()
        self._push_pause_s = now - self._frozen_at
        self._add_part("pause", self._push_pause_s)
        self._add_part("resume", now - loaded)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to a part of the push's pause."""
        start = time.monotonic()
        yield
        self._add_part(part, time.monotonic() - start)

    def _add_part(self, part: str, seconds: float) -> None:
        name = f"push_{part}_s"
        self._push_parts[name] = self._push_parts.get(name, 0.0) + seconds

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """See RolloutEngine. Samples at temperature 1, with the log-probs of the prompts' own tokens.

        With the same seed and the same weights the samples are the same.
        """
        if self._push is not Push.NONE or self._asleep:
            raise EngineError("A canary during a push, or on a sleeping engine, would wait for ever. Await that first.")
        self._canaries += 1
        try:
            await self._switch()
            return await self._canary(prompt_ids, max_tokens, seed)
        finally:
            self._canaries -= 1
            await self._switch()

    async def _canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        requests = [
            self.requests.complete(
                ids,
                Sampling(max_tokens, seed=seed + i),
                f"canary/{self.version}/{seed + i}",
                priority=CANARY_PRIORITY,
                score_prompt=True,
            )
            for i, ids in enumerate(prompt_ids)
        ]
        start = time.monotonic()
        completions = await asyncio.gather(*requests)
        self.canary_s = time.monotonic() - start
        return completions

    async def confirm_weights(self, version: int) -> dict[str, float]:
        """See RolloutEngine."""
        self.proof.proved(version)
        parts = {"push_map_s": self._push_map_s, "push_canary_s": self.canary_s}
        self._push_map_s = 0.0
        return self._push_parts | parts

    async def discard(self, reason: str) -> None:
        """See RolloutEngine. Requests under way raise WeightsUnverified or EngineError; the engine is broken."""
        self.broken = reason
        self.proof.refuse(reason)
        await self.requests.abort_all()

    def stats(self) -> dict[str, float]:
        """See RolloutEngine. Requests of the OpenAI app are included."""
        unfinished = self._llm.get_num_unfinished_requests()
        running = min(self._latest.running, unfinished)
        stats = {
            "running": running,
            "waiting": unfinished - running,
            "kv_usage": self._latest.kv_usage if unfinished else 0.0,
            "tokens_generated": self.requests.tokens,
            "prefix_tokens": self._latest.prefix_tokens,
            "prefix_hits": self._latest.prefix_hits,
            "preemptions": self._latest.preemptions,
            "version": self.version,
            "paused": float(self.requests.busy.paused),
            "push_pause_s": self._push_pause_s,
        }
        if self.requests.inbox is not None:  # with another scheduler than ours nobody measures prefills
            stats |= {f"{state}_s": seconds for state, seconds in self.requests.busy.count().items()}
            stats["prefill_s"] = self._latest.prefill_s
        return stats

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """See RolloutEngine."""
        return self.requests.busy.drain()

    async def openai_app(self, cfg: Config) -> Any:
        """Return vLLM's own ASGI app (/v1/completions, /v1/chat/completions, ...) on this engine."""
        from .openai_app import openai_app

        return await openai_app(self._llm, self.requests, self._model, cfg)

    async def stop(self) -> None:
        """Abort all requests and end vLLM's processes."""
        await self.requests.abort_all()
        self._llm.shutdown()
        self._node.remove()
        remove_socket_directory()

    async def alive(self) -> None:
        """See RolloutEngine. It is vLLM's engine process that has to answer, and not only this one.

        Raises:
            EngineError: The process is dead, does not answer, or makes no progress with its requests. The engine is
                then broken.
        """
        self.requests.check()
        if self._push is not Push.NONE:
            # The process answers nobody while it loads weights; the push has a deadline of its own.
            return
        try:
            await within(self._unresponsive, self._llm.is_paused(), "An answer of vLLM's engine process")
            idle = self.requests.busy.paused or not self._llm.get_num_unfinished_requests()
            self._progress.check(self._latest.tokens_done, busy=not idle)
        except Exception as error:  # whatever it is: an engine that does not answer cannot be used
            self.broken = str(error) or type(error).__name__
        self.requests.check()

    @asynccontextmanager
    async def _or_break(
        self, step: str, of: str = "weight push", error: type[InfraError] = WeightsUnverified
    ) -> AsyncIterator[None]:
        """Bound a step of a push or of a turn in time. If it fails, the engine is broken and all requests end.

        A push, or a sleep, that fails in the middle leaves layers without weights. All callers get an EngineError:
        otherwise they would wait for the paused engine for ever.

        Args:
            step: Name of the step.
            of: What it is a step of.
            error: The error to raise.
        """
        try:
            async with awake_timeout(self._push_deadline.seconds):
                yield
        except BaseException as cause:
            reason = str(cause) or type(cause).__name__
            if isinstance(cause, TimeoutError):
                reason = f"not over within {self._push_deadline}"
            self.broken = f"{of} failed in '{step}' after version {self.version}: {reason}"
            await self.requests.abort_all()
            if isinstance(cause, asyncio.CancelledError):
                raise
            raise error(f"{self.broken}. Start the engine again.") from cause

    async def _answer(self, call: Awaitable[T]) -> T:
        """Return the answer of vLLM's engine process.

        If the process is dead, vLLM ends its reader, and such calls never get an answer.

        Raises:
            EngineError: The process is dead.
        """
        answer = asyncio.ensure_future(call)
        reader = getattr(self._llm, "output_handler", None)
        try:
            await asyncio.wait({answer, reader} if reader else {answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EngineError("vLLM's engine process died")
            return answer.result()
        finally:
            answer.cancel()


def merged(parts: Sequence[ReadBackReport]) -> ReadBackReport:
    """Merge the read-backs of an engine's workers: what is wrong on any of them is wrong."""

    def union(names: list[tuple[str, ...]]) -> tuple[str, ...]:
        if len(names) == 1:
            return tuple(names[0])  # a tuple that crossed processes is a list
        return tuple(f"{name} (worker {rank})" for rank, found in enumerate(names) for name in found)

    return ReadBackReport(
        max(part.tensors for part in parts),
        union([part.differing for part in parts]),
        union([part.unread for part in parts]),
        union([part.missing for part in parts]),
        sum(part.nbytes for part in parts),
        max(part.seconds for part in parts),
    )
