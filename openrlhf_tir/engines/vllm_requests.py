"""Ask vLLM for completions: token ids in, sampled token ids out, with log-probs and the version that sampled each.

    complete    SamplingParams -> AsyncLLM (its own process) -> what arrived in vLLM's way or packed -> Completion
    abort       ends a request with all tokens that vLLM's process has sampled for it

Nothing is streamed: a streamed token costs this process about 100 microseconds. How far a request is, is read from
vLLM's own state when somebody asks (in_flight.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import Config
from ..errors import EngineError, RequestRefused, WeightsUnverified
from ..types import Completion, Sampling
from ..waiting.deadlines import answer_deadline, within
from ..waiting.suspension import awake_timeout
from .in_flight import InFlight, Live
from .packed_logprobs import MARK, LogprobInbox

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LAST_TOKENS_S = 5.0
"""Seconds for which an abort waits for the tokens that vLLM's engine process holds; a step takes less."""
POLL_S = 0.002


class VllmRequests(InFlight):
    """The requests of one engine to its AsyncLLM.

    Attributes:
        broken: The reason why the engine cannot be used any more; None while it can.
        inbox: Holds the packed log-probs of running requests; None if vLLM hands over log-probs in its own way.
    """

    def __init__(self, llm: AsyncLLM, version: int, cfg: Config) -> None:
        super().__init__(version)
        self._llm = llm
        self._unresponsive = answer_deadline(cfg)
        self._keeps_kv = cfg.pipeline.keeps_kv
        self._returns_experts = cfg.rollout.routing_replay
        self.broken: str | None = None
        self.inbox: LogprobInbox | None = None

    def check(self) -> None:
        """Raise EngineError if this engine cannot be used any more."""
        if self.broken:
            raise EngineError(f"This engine is broken: {self.broken}. Start a new one.")

    async def complete(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str,
        priority: int = 0,
        score_prompt: bool = False,
    ) -> Completion:
        """Have vLLM sample after `token_ids`. A cancelled caller aborts the request.

        Args:
            token_ids: The prompt.
            sampling: How to sample.
            request_id: Its id.
            priority: vLLM answers requests with lower numbers first.
            score_prompt: Return the log-probs of the prompt's own tokens as well.

        Raises:
            WeightsUnverified: Some of its tokens are of a push that was not proved.
            EngineError: The engine is broken, or vLLM could not answer.
            RequestRefused: vLLM refused the request. The engine is well.
            ValueError: The experts of all tokens of the prompt are said to be known, which is a bug of the caller.
        """
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.inputs.engine import tokens_input

        self.check()
        params = _params(sampling, packed=self.inbox is not None)
        if sampling.experts_known >= len(token_ids) > 0:
            raise ValueError(  # vLLM's own check of this is an assertion in its engine's process, which would end
                f"request {request_id}: the experts of {sampling.experts_known} tokens are said to be known, and the"
                f" prompt has {len(token_ids)}, of which the last is always computed"
            )
        params.routed_experts_prompt_start = sampling.experts_known
        if score_prompt:
            params.prompt_logprobs = 0  # of the prompt's own tokens only
            params.skip_reading_prefix_cache = True  # tokens that are read from the cache get no log-probs
        with self.track(request_id) as live:
            try:
                final = await self._final_output(
                    live, self.salted(tokens_input(list(token_ids)), sampling.first_version), params, priority
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
                f"Request {request_id} has tokens of a push that was not proved, and another one followed."
            )
        completion = live.completion(final.outputs[0])
        if self._returns_experts and completion.experts is None and completion.finish_reason != "abort":
            self.broken = "vLLM returned no experts of its tokens, which rollout.routing_replay needs"
            raise EngineError(self.broken)
        if not score_prompt:
            return completion
        scored = final.prompt_logprobs
        logprobs = [scored[i][token].logprob for i, token in enumerate(token_ids) if i]
        return replace(completion, prompt_logprobs=np.asarray(logprobs, np.float32))

    async def _final_output(self, live: Live, prompt: Any, params: Any, priority: int) -> Any:
        """Return vLLM's final RequestOutput of one request; a cancelled caller aborts it.

        Raises:
            VLLMClientError: vLLM refused the request.
            VLLMError: vLLM's engine is dead or failed.
            EngineError: The log-probs that arrived are not those of its tokens; the engine is then broken.
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
            output = final.outputs[0]
            arrived = output.logprobs is not None and len(output.logprobs) > 0  # in vLLM's own way
            packed = None
            if self.inbox is not None and not arrived:
                packed = self.inbox.take(collector.request_id, output.token_ids)
            live.finish(output, packed)
            return final
        except asyncio.CancelledError:
            if collector is not None:
                await self._llm.abort(collector.request_id, internal=True)
            raise
        except (VLLMClientError, VLLMError):
            raise
        except EngineError as error:
            self.broken = str(error)  # the log-probs of other requests cannot be trusted either
            raise
        except Exception as error:
            if collector is not None:
                await self._llm.abort(collector.request_id, internal=True)
            raise EngineGenerateError(f"{type(error).__name__}: {error}") from error
        finally:
            if collector is not None:
                collector.close()
                if self.inbox is not None:
                    self.inbox.forget(collector.request_id)

    def salted(self, prompt: Any, first_version: int | None) -> Any:
        """Return vLLM's tokenized prompt, with a salt if pushes keep the KV cache: only equal salts share blocks.

        Args:
            prompt: The prompt.
            first_version: Version under which its trajectory began; None: it begins here.
        """
        if not self._keeps_kv or not isinstance(prompt, dict):
            return prompt
        return {**prompt, "cache_salt": f"{self.weights(first_version)}/{prompt.get('cache_salt', '')}"}

    async def abort(self, request_id: str) -> None:
        """End a request with all that it has sampled. Unknown requests are ignored."""
        if self.inbox is not None and self.busy.paused:
            await self.let_arrive()  # the tokens that left vLLM's process before the pause was complete
        elif self.inbox is not None:
            await self._end_with_all_tokens(request_id)
        await within(self._unresponsive, self._llm.abort([request_id]), f"The abort of request {request_id}")

    async def _end_with_all_tokens(self, request_id: str) -> None:
        """Abort a request in vLLM's engine process, which then hands over the tokens that it holds, and wait for these.

        vLLM's own abort ends the request in this process first and would lose them. If they do not come, that is what
        happens.
        """
        llm = self._llm
        internal_ids = list(llm.output_processor.external_req_ids.get(request_id, ()))
        if not internal_ids:
            return  # it has ended, or has not begun
        with contextlib.suppress(TimeoutError):
            async with awake_timeout(LAST_TOKENS_S):
                await llm.engine_core.abort_requests_async(internal_ids)
                while any(internal_id in llm.output_processor.request_states for internal_id in internal_ids):
                    await asyncio.sleep(POLL_S)

    async def abort_all(self) -> None:
        """End all requests that run now."""
        await self._llm.abort(self.request_ids)

    async def let_arrive(self) -> None:
        """Let outputs and requests arrive that are under way in this process.

        These are the last tokens that were sampled before a pause, and requests that were made during it. The tokens
        are in this process before `pause` returns, but are still to be handed over twice: to the detokenizer, which
        yields to the loop after every 128 requests, and from there to the task of each request.
        """
        for _ in range(4 + len(self) // 64):
            await asyncio.sleep(0)


def _params(sampling: Sampling, *, packed: bool) -> Any:
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
        extra_args={MARK: True} if packed else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
