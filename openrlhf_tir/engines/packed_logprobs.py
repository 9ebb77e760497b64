"""Take sampled tokens and their log-probs from vLLM in batches, the log-probs as one array.

vLLM sends an output for every request and step, and with it the token's log-prob as three small arrays: its EngineCore
serializes them all, and its front end reads each token by itself. The scheduler in vllm_scheduler.py, which vLLM runs
in EngineCore, holds the tokens of a request instead, and lets them leave together

    - when the request ends, however it does;
    - when a token's text holds the last character of one of the request's stop strings, which the front end looks for;
    - when vLLM is paused, before the pause is complete, so that every token's version is known;
    - every `HOLD_S` seconds.

The log-probs of all requests whose tokens leave in a step are one `LogprobsLists` on one of the step's outputs:

    logprob_token_ids         [rows, 1] the sampled tokens
    logprobs                  [rows, 1] float32, their log-probs as the worker computed them
    cu_num_generated_tokens   [outputs + 1] the rows of output i are those from entry i up to entry i + 1

The rows arrive with the tokens that they belong to, so stop strings, pauses and preemption need no care of their own. A
request is packed if `is_packed` says so of its SamplingParams. All others (the OpenAI app's, those that want several
log-probs a token) go vLLM's own way, and so do all requests of an engine whose steps sample several tokens for one of
them (speculative decoding).
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
HOLD_S = 0.5
"""Seconds after which held tokens leave in any case: what is shown of a running request is at most so old."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no whole character."""


def is_packed(params: Any) -> bool:
    """Return True if a request with these SamplingParams takes its log-probs from the packed array.

    An HTTP client can set `extra_args` (vllm_xargs), but not `flat_logprobs`.
    """
    if params is None or not params.extra_args or MARK not in params.extra_args:
        return False
    return bool(params.flat_logprobs) and params.logprobs == 0


class HeldTokens:
    """What a packed request sampled since its last output left EngineCore."""

    __slots__ = ("client_index", "last_characters", "logprobs", "row_token_ids", "token_ids")

    def __init__(self, client_index: int, last_characters: str | None) -> None:
        """Hold nothing.

        Args:
            client_index: vLLM's number of the front end that sent the request.
            last_characters: As `TokenTexts.last_characters` returned them for its stop strings.
        """
        self.client_index = client_index
        self.last_characters = last_characters
        self.clear()

    def add(self, token_ids: Sequence[int], row_token_id: int, logprob: float) -> None:
        """Hold what one step sampled.

        Args:
            token_ids: The tokens as vLLM hands them over: one.
            row_token_id: The token of the row that has `logprob`; the front end compares it with the token.
            logprob: In nats.
        """
        self.token_ids += token_ids
        self.row_token_ids.append(row_token_id)
        self.logprobs.append(logprob)

    def clear(self) -> None:
        """Hold nothing any more."""
        self.token_ids: list[int] = []
        self.row_token_ids: list[int] = []
        self.logprobs: list[float] = []


class TokenTexts:
    """Says which tokens may complete a stop string, by their text alone.

    vLLM's front end looks for stop strings in the text of a request. A stop string is complete with the token that
    brings its last character, so nothing is missed if that token, and all before it, leave at once. A character whose
    bytes are spread over several tokens shows as a replacement character in the text of each.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Use the engine's tokenizer; with None every token may complete every stop string."""
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def last_characters(self, stops: Sequence[str] | None) -> str | None:
        """Return the last characters of some stop strings; None if any token may complete one of them.

        A space at a token's beginning is no part of its text with some tokenizers (SentencePiece).
        """
        characters = "".join({stop[-1] for stop in stops or () if stop})
        return None if " " in characters or (characters and self._tokenizer is None) else characters

    def may_end(self, token_ids: Sequence[int], last_characters: str | None) -> bool:
        """Return True if one of these tokens may complete a stop string with one of these last characters."""
        if last_characters is None:
            return True
        return bool(last_characters) and any(self._may_end(token_id, last_characters) for token_id in token_ids)

    def _may_end(self, token_id: int, last_characters: str) -> bool:
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self._tokenizer.decode([token_id])
        return REPLACEMENT in text or any(character in text for character in last_characters)


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
            kept.token_ids.extend(token_ids[begin:end])
            kept.logprobs.extend(logprobs[begin:end])

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
                " openrlhf_tir/engines/packed_logprobs.py expects; name"
                " vLLM's own scheduler in vllm.engine_args.scheduler_cls."
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
