"""Take the log-probs of sampled tokens from vLLM as one array per engine step.

vLLM sends a request's log-probs with every token: three arrays for each request and step, which its EngineCore slices
and serializes and its front end turns into lists. The scheduler in vllm_scheduler.py, which vLLM runs in EngineCore,
sends the same numbers as one `LogprobsLists` for all requests of a step, on one of the step's outputs:

    logprob_token_ids         [rows, 1] the sampled tokens
    logprobs                  [rows, 1] float32, their log-probs as the worker computed them
    cu_num_generated_tokens   [outputs + 1] the rows of output i are those from entry i up to entry i + 1

The rows arrive with the tokens that they belong to, so stop strings, aborts, pauses and preemption need no care of
their own. A request is packed if `is_packed` says so of its SamplingParams. All others (the OpenAI app's, those that
want several log-probs a token) go vLLM's own way, and so do all requests of an engine whose steps sample several tokens
for a request (speculative decoding).
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Container, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import EngineError

MARK = "packed_logprobs"
"""Key in SamplingParams.extra_args of a request whose caller takes its log-probs from a `LogprobInbox`."""
SCHEDULER = "openrlhf_tir.engines.vllm_scheduler.packing_scheduler"
"""vLLM's engine argument `scheduler_cls`."""


def is_packed(params: Any) -> bool:
    """Return True if a request with these SamplingParams takes its log-probs from the packed array.

    An HTTP client can set `extra_args` (vllm_xargs), but not `flat_logprobs`.
    """
    if params is None or not params.extra_args or MARK not in params.extra_args:
        return False
    return bool(params.flat_logprobs) and params.logprobs == 0


class Sampled(NamedTuple):
    """What arrived for one request so far."""

    token_ids: array[int]
    """[T] int32."""
    logprobs: array[float]
    """[T] float32."""


class LogprobInbox:
    """The packed log-probs of the running requests of one AsyncLLM."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], request_states: Container[str]) -> None:
        """Create an inbox; `attach` connects one to an AsyncLLM.

        Args:
            receive: Returns the EngineCoreOutputs of the next step.
            request_states: The requests that vLLM's output processor still follows, by internal id.
        """
        self._receive = receive
        self._request_states = request_states
        self._sampled: dict[str, Sampled] = {}

    @classmethod
    def attach(cls, llm: Any) -> LogprobInbox:
        """Take the packed rows of every step before vLLM's output handler sees its outputs."""
        inbox = cls(llm.engine_core.get_output_async, llm.output_processor.request_states)
        llm.engine_core.get_output_async = inbox.receive
        return inbox

    async def receive(self) -> Any:
        """Return the outputs of the next engine step, without the packed rows."""
        step = await self._receive()
        self.unpack(step.outputs)
        return step

    def unpack(self, outputs: Sequence[Any]) -> None:
        """Keep the packed rows of one step's EngineCoreOutputs and remove them from the output that carries them."""
        carrier = next((output for output in outputs if _carries_rows(output)), None)
        if carrier is None:
            return
        rows = carrier.new_logprobs
        carrier.new_logprobs = None
        token_ids = rows.logprob_token_ids.ravel().tolist()
        logprobs = rows.logprobs.ravel().tolist()
        ends = rows.cu_num_generated_tokens
        sampled = self._sampled
        for output, (begin, end) in zip(outputs, pairwise(ends), strict=True):
            if begin == end:
                continue
            request_id = output.request_id
            if request_id not in self._request_states:
                continue  # it was aborted, or a stop string ended it
            kept = sampled.get(request_id)
            if kept is None:
                kept = sampled[request_id] = Sampled(array("i"), array("f"))
            kept.token_ids.append(token_ids[begin])
            kept.logprobs.append(logprobs[begin])

    def take(self, request_id: str, token_ids: Sequence[int]) -> array[float]:
        """Return the log-probs of a finished request and forget it.

        Args:
            request_id: vLLM's internal id of the request.
            token_ids: All tokens that vLLM returned for it. An aborted request can have one more here: its last step
                had arrived and was not handed over yet.

        Returns:
            [T] float32.

        Raises:
            EngineError: The rows are not those of these tokens, so vLLM does not work as this module expects.
        """
        kept = self._sampled.pop(request_id, None)
        if kept is None:
            kept = Sampled(array("i"), array("f"))
        count = len(token_ids)
        if not np.array_equal(np.asarray(kept.token_ids[:count], np.int32), np.asarray(token_ids, np.int32)):
            raise EngineError(
                f"Request {request_id} has {count} tokens, and the log-probs that arrived for it are of"
                f" {len(kept.token_ids)} tokens or of others. This vLLM does not hand over log-probs as"
                " openrlhf_tir/engines/packed_logprobs.py expects; set vllm.packed_logprobs = false."
            )
        return kept.logprobs[:count]

    def forget(self, request_id: str) -> None:
        """Drop the rows of a request that ended without an answer. vLLM must have forgotten it before."""
        self._sampled.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._sampled)


def _carries_rows(output: Any) -> bool:
    """Return True if `new_logprobs` holds the rows of a whole step. vLLM's own, of one request, have no offsets."""
    lists = output.new_logprobs
    return lists is not None and lists.cu_num_generated_tokens is not None
