"""vLLM engine: token ids -> sampled token ids with log-probs and, per token, the version of the weights that sampled it.

    generate ──> AsyncLLM (own process) ──> deltas ──> Completion
    update_weights: digest of the file -> pause (requests freeze) -> push -> note every running request's length -> resume

A push has three steps, which vLLM's own nccl and ipc trainers can drive as well; only the 'file' backend has been run.

vLLM does not say which weights sampled a token, but a paused engine samples none: each running request's length at the moment of
the switch is where its tokens change version. Pausing clears the KV cache, so a frozen request recomputes its prefix with the new
weights. Any other failure of a push than a bad file leaves the worker in an unknown state: the engine is then broken for good and
must be started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import Config
from ..errors import ConfigError, EngineError, WeightsUnverified
from ..machine import gpu_count
from ..types import Completion, Sampling
from ..weights.digest import digest_file
from .busy import BusyMeter
from .vllm_start import LatestStats, engine_args, openai_app, prepare_environment

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


@dataclass(slots=True, eq=False)
class _Live:
    """A request in flight. `switches` holds (number of tokens sampled so far, version of those that follow)."""

    request_id: str
    switches: list[tuple[int, int]]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""

    def extend(self, delta: Any) -> None:
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(at[token].logprob for at, token in zip(delta.logprobs, delta.token_ids, strict=True))
        self.text += delta.text

    def versions(self) -> np.ndarray:
        versions_T = np.empty(len(self.token_ids), np.int32)
        for sampled, version in self.switches:
            versions_T[sampled:] = version
        return versions_T


class VllmEngine:
    """Engine on one vLLM AsyncLLM; belongs to the event loop that started it."""

    def __init__(self, llm: AsyncLLM, model: str, backend: str, latest: LatestStats, version: int) -> None:
        """Use `start`."""
        self._llm, self._model, self._backend, self._latest, self.version = llm, model, backend, latest, version
        self._live: set[_Live] = set()
        self._busy = BusyMeter()
        self._paused = self._updating = self._resume_after = False
        self._tokens = 0
        self.broken: str | None = None
        """Why this engine cannot be used any more; None while it can."""

    @classmethod
    async def start(cls, model: str, cfg: Config, *, version: int = 0, index: int = 0) -> VllmEngine:
        """Load `model` (a directory or HF name), whose weights count as `version`. Takes seconds; raises EngineError.

        On a machine without a GPU vllm must not have been imported before in this process. `index` numbers the run's engines.
        """
        gpu = gpu_count() > 0
        if cfg.vllm.sync_backend != "file" and not gpu:
            raise ConfigError(f"vllm.sync_backend = '{cfg.vllm.sync_backend}' needs GPUs, and there is none. Use vllm.sync_backend = 'file'.")
        prepare_environment(gpu=gpu)
        from vllm.v1.engine.async_llm import AsyncLLM

        latest = LatestStats()
        try:
            llm = AsyncLLM.from_engine_args(engine_args(model, cfg, gpu=gpu, index=index), stat_loggers=[latest])
        except (RuntimeError, ValueError, OSError) as e:
            raise EngineError(f"vLLM did not start on {model}: {e}. The engine's own log above says more.") from e
        engine = cls(llm, model, cfg.vllm.sync_backend, latest, version)
        if cfg.vllm.sync_backend == "file":
            await engine.init_transfer({})
        return engine

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """See Engine. A cancelled caller aborts the request. A sampled EOS is the last token; special tokens are not in the text."""
        from vllm.exceptions import VLLMError
        from vllm.inputs.engine import tokens_input

        self._check()
        live = _Live(request_id, [(0, self.version)])
        self._live.add(live)
        self._busy.enter()
        try:
            async for out in self._llm.generate(tokens_input(list(token_ids)), _params(sampling), request_id):
                live.extend(out.outputs[0])
        except VLLMError as e:
            raise EngineError(f"vLLM could not answer request {request_id} ({len(token_ids)} prompt tokens, {sampling}): {e or type(e).__name__}") from e
        finally:
            self._live.discard(live)
            self._busy.leave()
            self._tokens += len(live.token_ids)
        self._check()
        last = out.outputs[0]
        return Completion(
            token_ids=np.asarray(live.token_ids, np.int32),
            logprobs=np.asarray(live.logprobs, np.float32),
            versions=live.versions(),
            text=live.text,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )

    async def pause(self) -> None:
        """Freeze all requests, this engine's and its OpenAI app's, and forget the KV cache. New ones wait. Idempotent."""
        await self._llm.pause_generation(mode="keep", clear_cache=True)
        self._paused = True
        self._busy.pause()

    async def resume(self) -> None:
        await self._llm.resume_generation()
        self._paused = False
        self._busy.resume()

    async def update_weights(self, path: Path, version: int, digest: str) -> None:
        """Load the safetensors file `path`, which must have `digest`, as `version`; requests in flight go on with it.

        Raises WeightsUnverified: with the old weights still in use when the file is not the one announced, else with the engine
        broken. Afterwards the weights are *received*; only the canary proves that they are used.
        """
        if self._backend != "file":
            raise ConfigError(f"vllm.sync_backend = '{self._backend}' does not push files. Drive begin_update, receive, finish_update, or use 'file'.")
        self._check()
        received = await asyncio.to_thread(digest_file, path)  # while requests go on decoding
        if received != digest:
            raise WeightsUnverified(f"{path} has digest {received[:12]}, the learner announced {digest[:12]} for version {version}. Push again.")
        await self.begin_update()
        await self.receive({"path": str(path)})
        await self.finish_update(version)

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """The backend's handshake: nothing for 'file'; rendezvous address, ranks and packing for vLLM's nccl and ipc."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(info))

    async def begin_update(self) -> None:
        """First of the three steps of a push, whatever the transport. Freezes requests until `finish_update`."""
        self._check()
        if self._updating:
            raise EngineError("A weight push is already running on this engine. Await it first.")
        self._updating, self._resume_after = True, not self._paused
        async with self._or_break("begin"):
            await self.pause()
            await self._settle()
            await self._llm.start_weight_update()

    async def receive(self, info: dict[str, Any]) -> None:
        """One chunk, described as the backend wants it: {"path": ...} for 'file'."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._or_break("receive"):
            await self._llm.update_weights(WeightTransferUpdateRequest(info))

    async def finish_update(self, version: int) -> None:
        """From here on tokens are sampled by `version`."""
        async with self._or_break("finish"):
            await self._llm.finish_weight_update(f"v{version}")
        self.version = version
        for live in self._live:
            live.switches.append((len(live.token_ids), version))
        self._updating = False
        if self._resume_after:
            await self.resume()

    async def canary(self, prompt_ids: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        """One short sample per prompt, at temperature 1, for the learner to score. Same seed, same weights: same samples."""
        if self._paused:
            raise EngineError("A canary on a paused engine would wait for ever. Call resume first.")
        return await asyncio.gather(
            *[self.generate(p, Sampling(max_tokens, seed=seed + i), request_id=f"canary/{self.version}/{i}") for i, p in enumerate(prompt_ids)]
        )

    def stats(self) -> dict[str, float]:
        """Requests running and waiting (the OpenAI app's included), share of the KV cache in use, tokens sampled since start."""
        unfinished = self._llm.get_num_unfinished_requests()
        running = min(self._latest.running, unfinished)
        return {
            "running": running,
            "waiting": unfinished - running,
            "kv_usage": self._latest.kv_usage if unfinished else 0.0,
            "tokens_generated": self._tokens + sum(len(live.token_ids) for live in self._live),
            "version": self.version,
            "paused": float(self._paused),
        }

    def drain_busy_intervals(self) -> list[tuple[float, float]]:
        """(start, end) in epoch seconds, since the last call, during which at least one request was decoding."""
        return self._busy.drain()

    async def openai_app(self) -> Any:
        """vLLM's own ASGI app (/v1/completions, /v1/chat/completions, /inference/v1/generate, ...) on this engine."""
        return await openai_app(self._llm, self._model)

    async def stop(self) -> None:
        """Abort what is in flight and end vLLM's processes."""
        await self._llm.abort([live.request_id for live in self._live])
        self._llm.shutdown()

    def _check(self) -> None:
        if self.broken:
            raise EngineError(f"This engine is broken: {self.broken}. Start a new one.")

    @asynccontextmanager
    async def _or_break(self, step: str) -> AsyncIterator[None]:
        """A push that fails half-way leaves layers without weights. Give every caller its answer (an EngineError): paused, the
        engine would keep them for ever."""
        try:
            yield
        except BaseException as e:
            self.broken = f"weight push failed in '{step}' after version {self.version}: {e or type(e).__name__}"
            await self._llm.abort([live.request_id for live in self._live])
            if isinstance(e, asyncio.CancelledError):
                raise
            raise WeightsUnverified(f"{self.broken}. Start the engine again.") from e

    async def _settle(self) -> None:
        """Let the last tokens sampled before the pause reach their requests.

        They are in this process before `pause` returns, two hand-overs away from `generate`: to the detokenizer, which yields to
        the loop after every 128 requests, and from there to the request's task.
        """
        for _ in range(4 + len(self._live) // 64):
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
        seed=sampling.seed,
        logprobs=0,  # of the sampled token only
        output_kind=RequestOutputKind.DELTA,
    )
