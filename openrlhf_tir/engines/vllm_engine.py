"""vLLM engine: token ids -> sampled token ids with log-probs and, per token, the version of the weights that sampled
it.

    generate ──> AsyncLLM (own process) ──> deltas ──> proof ──> Completion
    update_weights:  digest of the file, once per node -> pause (requests freeze) -> push -> read-back of what the model
                     holds -> canary queued first -> resume
    receive_weights: pause -> a broadcast, loaded as it comes; apply_received: its digest -> canary queued first ->
                     resume
    sleep:           pause -> weights to host memory, KV cache dropped; wake, or a push: weights first, the KV cache
                     before the canary -> resume

Pausing clears the KV cache, so a frozen request recomputes its prefix with the new weights. With pipeline.kv_after_push
= "keep" a push leaves it instead, where the canary finds places beside what runs (vLLM takes none from a running
request); every request then has the version under which its trajectory began as a salt, so that what begins later finds
no block of older weights. Canary requests are queued
while the engine is still paused and outrank all others, so their verdict does not wait for a full engine; until it is
in, completions with tokens of the new weights are held back (proof.py). Any other failure of a push than a bad file
leaves the worker in an unknown state: the engine is then broken for good and must be started again. Weights that the
model does not hold as they were sent leave it frozen, for another push or `discard`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..config import Config
from ..config.sections.colocation import NO_SLEEP_ON_CPU
from ..deadlines import Deadline, within
from ..errors import (
    ConfigError,
    EngineError,
    InfraError,
    RequestRefused,
    WeightsMisloaded,
    WeightsUnverified,
)
from ..machine import runs_on_gpus
from ..suspension import awake_timeout
from ..types import BroadcastRendezvous, BroadcastResult, Canary, Completion, EngineBounds, ReadBackReport, Sampling
from ..weights.node_copy import NodeCopy
from .gpu_memory import wait_for_memory
from .in_flight import InFlight, Live, no_number
from .progress import Progress
from .proof import ProofGate
from .start import LatestStats, engine_args, keeps_copy, prepare_environment

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
CANARY_PRIORITY = -1
"""vLLM answers lower numbers first; everything else has 0."""
WEIGHTS, KV_CACHE = "weights", "kv_cache"
"""vLLM's names of what sleeps. Once both are awake vLLM itself goes on with requests."""
SLEEP_LEVEL = 1
"""Weights go to host memory. Level 2 would drop them, and an engine that is woken without a push needs them."""


class VllmEngine:
    """Engine on one vLLM AsyncLLM; belongs to the event loop that started it."""

    def __init__(self, llm: AsyncLLM, model: str, latest: LatestStats, version: int, cfg: Config) -> None:
        """Not called by users: `start` makes an engine."""
        self._silence, self._push = Deadline.of(cfg, "rollout.unresponsive_s"), Deadline.of(cfg, "timeouts.push_s")
        self._progress = Progress(Deadline.of(cfg, "timeouts.progress_s"))
        self._llm, self._model, self._latest = llm, model, latest
        self.requests = InFlight(version)
        self.proof = ProofGate()
        self.bounds = EngineBounds(llm.model_config.get_vocab_size(), llm.model_config.max_model_len)
        self._paused = self._paused_by_user = self._updating = False
        self._canaries = 0
        """Canaries that wait for their answers, for which a user's pause is lifted."""
        self._asleep: set[str] = set()
        self._switching = asyncio.Lock()
        self._turning = asyncio.Lock()
        """One sleep or wake at a time: one that was given up here may still be under way there."""
        # the rest is for a proof of its own and the canary
        self._node = NodeCopy(keep=keeps_copy(cfg), patience_s=cfg.timeouts.push_s / 4)
        self._one_push = asyncio.Lock()
        self._received = BroadcastResult()
        """The last broadcast that is not in use yet."""
        self._frozen_at = self._push_pause_s = 0.0
        self._keeps_kv, self._slots = cfg.pipeline.keeps_kv, cfg.vllm.max_num_seqs
        self._misloaded = False
        """The last push stands still because its read-back failed; the next may begin."""
        self.read_back = ReadBackReport(0)
        """The exact proof of the last push."""
        self.canary_s = 0.0
        """Seconds that the last canary took here."""
        self.broken: str | None = None
        """Why this engine cannot be used any more; None while it can."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, version: int = 0, index: int = 0) -> VllmEngine:
        """Load `model` (a directory or HF name), whose weights count as `version`. Takes seconds; raises EngineError.

        Without a GPU vllm must not have been imported before in this process. `index` numbers the run's engines."""
        gpu = runs_on_gpus()
        if cfg.vllm.sync_backend == "nccl" and not gpu:
            raise ConfigError(
                "vllm.sync_backend = 'nccl' needs GPUs, and there is none."
                " Use 'gloo', which is the same on CPUs, or 'file'."
            )
        if cfg.train.colocate_all and not gpu:
            raise ConfigError(f"train.colocate_all needs GPUs, and there is none. {NO_SLEEP_ON_CPU}")
        prepare_environment(gpu=gpu)
        if gpu and not cfg.train.share_gpus:  # else a learner holds memory beside it, for good
            await wait_for_memory(cfg.vllm.gpu_memory_utilization, os.environ.get("CUDA_VISIBLE_DEVICES"))
        from vllm.envs import enable_envs_cache
        from vllm.v1.engine.async_llm import AsyncLLM

        latest = LatestStats()
        try:
            llm = AsyncLLM.from_engine_args(engine_args(model, cfg, gpu=gpu, index=index), stat_loggers=[latest])
        except (RuntimeError, ValueError, OSError) as e:
            raise EngineError(f"vLLM did not start on {model}: {e}. The engine's own log above says more.") from e
        enable_envs_cache()  # as vLLM's own process does: else every request of every step reads the environment anew
        engine = cls(llm, model, latest, version, cfg)
        await engine.init_transfer({})
        return engine

    @property
    def version(self) -> int:
        """The version of the weights that sample now."""
        return self.requests.version

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine. A cancelled caller aborts the request. A sampled EOS is the last token; special tokens are not in
        the text.

        Raises WeightsUnverified when weights that sampled a token of the answer were found not to be the learner's,
        EngineError when a log-prob is no number, the engine then being broken.
        """
        completion = await self._generate(token_ids, sampling, request_id)
        await self.proof.passed(completion.versions)
        if fault := no_number(completion, request_id):
            self.broken = fault  # what such outputs left in the KV cache makes others' of the same kind
            raise EngineError(fault)
        return completion

    async def _generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str,
        priority: int = 0,
        score_prompt: bool = False,
    ) -> Completion:
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.inputs.engine import tokens_input

        self.check()
        params = _params(sampling)
        if score_prompt:
            params.prompt_logprobs = 0  # of the prompt's own tokens only
            params.skip_reading_prefix_cache = True  # what is read from the cache has no log-probs
        with self.requests.track(request_id) as live:
            try:
                final = await self._final_output(
                    live, self.salted(tokens_input(list(token_ids)), sampling.since), params, priority
                )
            except VLLMClientError as e:
                raise RequestRefused(
                    f"vLLM refused request {request_id} ({len(token_ids)} prompt tokens, {sampling}):"
                    f" {e or type(e).__name__}"
                ) from e
            except VLLMError as e:
                raise EngineError(
                    f"vLLM could not answer request {request_id} ({len(token_ids)} prompt tokens, {sampling}):"
                    f" {e or type(e).__name__}"
                ) from e
        self.check()
        if live.void:
            raise WeightsUnverified(
                f"Request {request_id} has tokens of a push that was not proved; the same version was pushed again."
            )
        completion = live.completion(final.outputs[0])
        if not score_prompt:
            return completion
        scored = final.prompt_logprobs
        logprobs = [scored[i][token].logprob for i, token in enumerate(token_ids) if i]
        return replace(completion, prompt_logprobs=np.asarray(logprobs, np.float32))

    async def _final_output(self, live: Live, prompt: Any, params: Any, priority: int) -> Any:
        """Return vLLM's final RequestOutput of one request; a cancelled caller aborts it.

        Nothing is streamed: a streamed token costs this process about 100 microseconds. How far a request is, is read
        from vLLM's own state (`Live.follow`) when somebody asks.

        Raises:
            VLLMClientError: vLLM refused the request.
            VLLMError: vLLM's engine is dead or failed.
        """
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.v1.engine.exceptions import EngineGenerateError

        collector = None
        try:
            collector = await self._llm.add_request(live.request_id, prompt, params, priority=priority)
            states = self._llm.output_processor.request_states
            live.follow(collector, states)
            state = states.get(collector.request_id)
            if state is not None:
                # The text of each log-prob's token costs a decode per token, and nobody reads it.
                state.logprobs_processor.tokenizer = None
            final = await collector.get()
            live.finish(final.outputs[0])
            return final
        except asyncio.CancelledError:
            if collector is not None:
                await self._llm.abort(collector.request_id, internal=True)
            raise
        except (VLLMClientError, VLLMError):
            raise
        except Exception as error:
            if collector is not None:
                await self._llm.abort(collector.request_id, internal=True)
            raise EngineGenerateError(f"{type(error).__name__}: {error}") from error
        finally:
            if collector is not None:
                collector.close()

    def salted(self, prompt: Any, since: int | None) -> Any:
        """vLLM's tokenized prompt, in a trajectory that began under version `since` (None: begins here); where a push
        keeps the KV cache with a salt, as only those of equal salts share blocks."""
        if not self._keeps_kv or not isinstance(prompt, dict):
            return prompt
        return {**prompt, "cache_salt": f"{self.requests.weights(since)}/{prompt.get('cache_salt', '')}"}

    async def abort(self, request_id: str) -> None:
        """See engines/handover.py."""
        await within(self._silence, self._llm.abort([request_id]), f"The abort of request {request_id}")

    def progress(self) -> dict[str, int]:
        return self.requests.progress()

    async def pause(self) -> None:
        """Freeze all requests, this engine's and its OpenAI app's, and forget the KV cache (but in the midst of a push
        that keeps it). New wait. Idempotent."""
        self._paused_by_user = True
        await self._switch()

    async def resume(self) -> None:
        """Lift `pause`. During a weight push, whose freeze is its own, requests go on when the push is over."""
        self._paused_by_user = False
        await self._switch()

    async def _switch(self) -> None:
        """Be frozen while a push, the learner's turn or the user wants it, and only then: whoever changes what is
        wanted calls this, in any order.

        A canary is answered in spite of a user's pause: its push waits for it, and would wait until the engine is given
        up for lost. vLLM freezes all requests or none, so others go on by a few tokens meanwhile.
        """
        async with self._switching:
            wanted = self._updating or bool(self._asleep) or (self._paused_by_user and not self._canaries)
            if wanted and not self._paused:
                fits = self._llm.get_num_unfinished_requests() <= self._slots  # and the canary beside them: start.py
                keep = self._keeps_kv and self._updating and fits
                await self._llm.pause_generation(mode="keep", clear_cache=not keep)
                self._paused = True
                self.requests.busy.pause()
            elif self._paused and not wanted:
                await self._llm.resume_generation()
                self._paused = False
                self.requests.busy.resume()

    async def sleep(self) -> None:
        """See RolloutEngine. Raises EngineError, the engine then being broken."""
        async with self._turning:
            if self._asleep != {WEIGHTS, KV_CACHE}:
                await self._fall_asleep()

    async def _fall_asleep(self) -> None:
        self.check()
        async with self._or_break("sleep", "turn of the GPU", EngineError):
            if self._updating or self._asleep:
                raise EngineError("a weight push is not over")
            self._asleep = {WEIGHTS, KV_CACHE}
            await self._switch()
            await self._answer(self._llm.sleep(level=SLEEP_LEVEL, mode="keep"))

    async def wake(self) -> None:
        """See RolloutEngine. Raises EngineError, the engine then being broken."""
        self.check()
        async with self._turning, self._or_break("wake", "turn of the GPU", EngineError):
            await self._rouse(WEIGHTS, KV_CACHE)

    async def _rouse(self, *tags: str) -> None:
        """What of this still sleeps; the requests go on with the last of it, if nobody else wants the engine frozen."""
        async with self._switching:
            for tag in [t for t in tags if t in self._asleep]:
                if tag == KV_CACHE and self._updating:
                    # vLLM goes on with requests once both are awake. The weights are half loaded: the push wakes the
                    # cache when it is done.
                    break
                await self._answer(self._llm.wake_up(tags=[tag]))
                self._asleep.discard(tag)
                if not self._asleep and self._paused:  # vLLM's own doing
                    self._paused = False
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
        self.check()
        proving = (
            (self._node.full, path, version, digest)
            if link is None
            else (self._node.delta, path, version, digest, link)
        )
        # while requests go on decoding
        proved = await within(self._push, asyncio.to_thread(*proving), f"The proof of {path} on this node")
        await self.begin_update()
        await self.receive({"path": str(proved)})
        return await self.finish_update(version, canary)

    async def receive_weights(self, rendezvous: BroadcastRendezvous, first_rank: int, push_id: str) -> BroadcastResult:
        """See RolloutEngine. A torn push leaves it frozen, with nobody's weights: the next goes on from there."""
        from ..weights.broadcast.receiver import agreed

        async with self._one_push:
            self.check()
            if not self._updating or self._misloaded:
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
        """See RolloutEngine and `update_weights`. Without the announced digest the engine is broken: half of its
        weights are the old ones."""
        async with self._one_push:
            self.check()
            received, self._received = self._received, BroadcastResult()
            async with self._or_break("use"):
                if received.digest != digest:
                    raise EngineError(
                        f"received weights of digest {str(received.digest)[:12]}, the learner announced {digest[:12]}"
                        f" for version {version}"
                    )
            return await self.finish_update(version, canary)

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """vLLM's weight-transfer handshake, with what weights/file_backend.py and weights/broadcast/worker.py take."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(info))

    async def begin_update(self) -> None:
        """First of the three steps of a push, whatever the transport. Freezes requests until `finish_update`."""
        self.check()
        if self._updating and not self._misloaded:
            raise EngineError("A weight push is already running on this engine. Await it first.")
        self._updating = True
        self._misloaded = False
        self._frozen_at = time.monotonic()
        async with self._or_break("begin"):
            await self._switch()
            await self._rouse(WEIGHTS)
            await self._settle()
            await self._answer(self._llm.start_weight_update())

    async def receive(self, info: dict[str, Any]) -> None:
        """One chunk, described as the backend wants it: {"path": ...} for 'file'."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._or_break("receive"):
            await self._answer(self._llm.update_weights(WeightTransferUpdateRequest(info)))

    async def finish_update(self, version: int, canary: Canary | None = None) -> list[Completion]:
        """From here on tokens are sampled by `version`. See `update_weights`."""
        async with self._or_break("finish"):
            await self._answer(self._llm.finish_weight_update(f"v{version}"))
            parts = await self._answer(self._llm.collective_rpc("read_back"))
        self.read_back = merged([ReadBackReport(*part) for part in parts])
        if version == self.proof.unproved:
            # The proof of the first push of this version failed. What it sampled has the version's number, and must
            # not pass when the second push is proved.
            self.requests.void(version)
            self.proof.void()
        self.requests.switch(version)
        if canary is not None and self.read_back.fault:
            # It stands still, as after a torn broadcast: these weights sample nothing, and another push may follow.
            self._misloaded = True
            raise WeightsMisloaded(f"the model does not hold what was sent: {self.read_back.fault}")
        if canary is None:
            self._updating = False
            await self._resumed()
            self._push_pause_s = time.monotonic() - self._frozen_at
            return []
        self.proof.expect(version)
        sampling = asyncio.create_task(self._canary(*canary), name=f"canary {version}")
        await self._settle()  # its requests are queued before the engine goes on
        self._updating = False
        self._canaries += 1
        try:
            await self._resumed()
            self._push_pause_s = time.monotonic() - self._frozen_at
            return await sampling
        finally:
            self._canaries -= 1
            await self._switch()

    async def _resumed(self) -> None:
        """After a push: as far as nobody else wants the engine frozen."""
        async with self._or_break("resume"):
            await self._rouse(KV_CACHE)

    async def sample_canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """Return a short sample per text at temperature 1, and the log-probs of the text's own tokens.

        Same seed, same weights: same samples.
        """
        if self._updating or self._asleep:
            raise EngineError("A canary during a push, or on a sleeping engine, would wait for ever. Await that first.")
        self._canaries += 1
        try:
            await self._switch()
            return await self._canary(prompt_ids, max_tokens, seed)
        finally:
            self._canaries -= 1
            await self._switch()

    async def _canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        wanted = [
            (p, Sampling(max_tokens, seed=seed + i), f"canary/{self.version}/{seed + i}", CANARY_PRIORITY, True)
            for i, p in enumerate(prompt_ids)
        ]
        start = time.monotonic()
        completions = await asyncio.gather(*[self._generate(*w) for w in wanted])
        self.canary_s = time.monotonic() - start
        return completions

    async def confirm_weights(self, version: int) -> None:
        """The canary of `version` agreed with the learner: what these weights sampled may be used."""
        self.proof.proved(version)

    async def discard(self, reason: str) -> None:
        """See RolloutEngine. Requests under way raise WeightsUnverified or EngineError; the engine is broken."""
        self.broken = reason
        self.proof.refuse(reason)
        await self._abort()

    def stats(self) -> dict[str, float]:
        """Requests running and waiting (the OpenAI app's included), share of the KV cache in use; since the start:
        tokens sampled, prompt tokens looked up in the prefix cache and found there."""
        unfinished = self._llm.get_num_unfinished_requests()
        running = min(self._latest.running, unfinished)
        return {
            "running": running,
            "waiting": unfinished - running,
            "kv_usage": self._latest.kv_usage if unfinished else 0.0,
            "tokens_generated": self.requests.tokens,
            "prefix_tokens": self._latest.prefix_tokens,
            "prefix_hits": self._latest.prefix_hits,
            "preemptions": self._latest.preemptions,
            "version": self.version,
            "paused": float(self._paused),
            "push_pause_s": self._push_pause_s,
        }

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """(start, end) in epoch seconds, since the last call, during which at least one request was decoding."""
        return self.requests.busy.drain()

    async def openai_app(self, cfg: Config) -> Any:
        """vLLM's own ASGI app (/v1/completions, /v1/chat/completions, /inference/v1/generate, ...) on this engine."""
        from .openai_app import openai_app

        return await openai_app(self._llm, self, self._model, cfg)

    async def stop(self) -> None:
        """Abort what is in flight and end vLLM's processes."""
        await self._abort()
        self._llm.shutdown()
        self._node.remove()

    async def alive(self) -> None:
        """A sign of life of vLLM's engine process, not of this one only. Raises EngineError, after which the engine is
        broken, when it is dead, does not answer, or has requests and makes no progress with them."""
        self.check()
        if self._updating:
            # it answers nobody while it loads weights, as long as timeouts.push_s allows: the push's own deadline
            return
        try:
            await within(self._silence, self._llm.is_paused(), "An answer of vLLM's engine process")
            idle = self._paused or not self._llm.get_num_unfinished_requests()
            self._progress.check(self._latest.tokens_done, busy=not idle)
        except Exception as e:  # vLLM's errors and ours: an engine that cannot be asked cannot be used
            self.broken = str(e) or type(e).__name__
        self.check()

    def check(self) -> None:
        """Raises EngineError when this engine cannot be used any more."""
        if self.broken:
            raise EngineError(f"This engine is broken: {self.broken}. Start a new one.")

    @asynccontextmanager
    async def _or_break(
        self, step: str, of: str = "weight push", error: type[InfraError] = WeightsUnverified
    ) -> AsyncIterator[None]:
        """A push that fails half-way leaves layers without weights, and so does a sleep. Give every caller its answer
        (an EngineError): paused, the engine would keep them for ever."""
        try:
            async with awake_timeout(self._push.seconds):
                yield
        except BaseException as e:
            what = f"not over within {self._push}" if isinstance(e, TimeoutError) else str(e) or type(e).__name__
            self.broken = f"{of} failed in '{step}' after version {self.version}: {what}"
            await self._abort()
            if isinstance(e, asyncio.CancelledError):
                raise
            raise error(f"{self.broken}. Start the engine again.") from e

    async def _answer(self, call: Awaitable[T]) -> T:
        """The answer of vLLM's engine process; raises EngineError once that is dead. vLLM ends its reader then, and
        leaves such calls without an answer."""
        answer, reader = asyncio.ensure_future(call), getattr(self._llm, "output_handler", None)
        try:
            await asyncio.wait({answer, reader} if reader else {answer}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EngineError("vLLM's engine process died")
            return answer.result()
        finally:
            answer.cancel()

    async def _abort(self) -> None:
        await self._llm.abort(self.requests.request_ids)

    async def _settle(self) -> None:
        """Let what is under way in this process arrive: the last tokens sampled before a pause, requests made during
        it.

        The tokens are in this process before `pause` returns, two hand-overs away from `generate`: to the detokenizer,
        which yields to the loop after every 128 requests, and from there to the request's task.
        """
        for _ in range(4 + len(self.requests) // 64):
            await asyncio.sleep(0)


def _params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        stop=list(sampling.stop),
        include_stop_str_in_output=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def merged(parts: Sequence[ReadBackReport]) -> ReadBackReport:
    """Return the read-back of an engine's workers as one: what is wrong on any of them is wrong."""

    def union(names: list[tuple[str, ...]]) -> tuple[str, ...]:
        if len(names) == 1:
            return tuple(names[0])  # what crossed processes is a list
        return tuple(f"{name} (worker {rank})" for rank, found in enumerate(names) for name in found)

    return ReadBackReport(
        max(part.tensors for part in parts),
        union([part.differing for part in parts]),
        union([part.unread for part in parts]),
        union([part.missing for part in parts]),
        sum(part.nbytes for part in parts),
        max(part.seconds for part in parts),
    )
