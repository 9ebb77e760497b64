"""In the worker: `llm_engine` and `sampling_params` of OpenRLHF's files, with vLLM's names and without importing it.

`generate` may be called from any thread and event loop: OpenRLHF's own example serves an OpenAI endpoint from a thread
of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from .wire import Message

RUN: ContextVar[Run | None] = ContextVar("run", default=None)
"""The `execute` that the running code belongs to; None where that is not known (a server thread of the file's)."""


@dataclass
class Run:
    """One `execute`.

    Attributes:
        number: Number that the actor gave it.
        calls: Steps of its agent instance.
    """

    number: int
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class SamplingParams:
    """The fields of vLLM's class that OpenRLHF sets or reads. If the file imports vLLM, vLLM's class is used."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 1
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    skip_special_tokens: bool = False
    include_stop_str_in_output: bool = True


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "ignore_eos": (False,),
    "stop_token_ids": (None, []),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "structured_outputs": (None,),
}
"""Parameter -> values that leave the sampling distribution as it is. A request must not have others: the loss would
compare with another distribution than the one that sampled."""


def sampling_params(**values: Any) -> Any:
    """Return sampling parameters as OpenRLHF creates them.

    Special tokens and a matched stop string stay in the text, and log-probs of the sampled tokens are returned.
    """
    cls = getattr(sys.modules.get("vllm.sampling_params"), "SamplingParams", SamplingParams)
    return cls(**values, top_k=-1, min_tokens=1, logprobs=1, skip_special_tokens=False, include_stop_str_in_output=True)


def request_of(params: Any) -> Message:
    """Return the parameters that reach the engine.

    Raises:
        ValueError: A parameter would change the sampling distribution.
    """
    for name, neutral in NEUTRAL.items():
        value = getattr(params, name, neutral[0])
        if value not in neutral:
            raise ValueError(
                f"sampling_params.{name} = {value!r} would sample from another distribution than the one that is"
                f" trained. Leave it at {neutral[0]!r}."
            )
    stop = params.stop or []
    return {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stop": [stop] if isinstance(stop, str) else list(stop),
    }


@dataclass(frozen=True)
class Logprob:
    """Log-probability of one token, as vLLM reports it."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """What one request sampled.

    Attributes:
        token_ids: [T] sampled tokens.
        text: The decoded tokens.
        logprobs: [T] of {sampled token id: Logprob}.
        finish_reason: Why it ended: "stop" or "length".
        stop_reason: The stop string or token id that ended it, if one did.
        index: Always 0: a request samples once.
        cumulative_logprob: Sum of the log-probabilities.
    """

    token_ids: list[int]
    text: str
    logprobs: list[dict[int, Logprob]]
    finish_reason: str
    stop_reason: str | int | None
    index: int = 0
    cumulative_logprob: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """The answer to one request, with the fields of vLLM's class that OpenRLHF's files read."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


class LlmEngine:
    """Sends every request of the worker to the engine of its rollout actor. One per worker."""

    def __init__(self, send: Callable[[Message], None], tokenizer: Any) -> None:
        """Create the engine.

        Args:
            send: Sends a message to the actor. Must be safe to call from any thread.
            tokenizer: The model's tokenizer.
        """
        self._send = send
        self._tokenizer = tokenizer
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Message]] = {}

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> RequestOutput:
        """Return what the engine samples behind a prompt.

        Args:
            prompt_token_ids: [P] tokens of the prompt.
            sampling_params: vLLM's, or those of `sampling_params()`.
            multi_modal_data: Must be empty.

        Raises:
            RuntimeError: The engine did not answer.
            ValueError: The request cannot be trained on.
        """
        if multi_modal_data:
            raise ValueError(
                "The agent asks with images (multi_modal_data), and tasks are text here. Leave images out."
            )
        number = next(self._numbers)
        answer = Future[Message]()
        run = RUN.get()
        prompt = [int(token) for token in prompt_token_ids]
        request = request_of(sampling_params)
        self._waiting[number] = answer
        self._send({"generate": number, "run": run.number if run else None, "prompt": prompt, "sampling": request})
        try:
            message = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._send({"abort": number})
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in message:
            raise RuntimeError(message["error"])
        skip_special_tokens = getattr(sampling_params, "skip_special_tokens", True)
        return RequestOutput(str(number), prompt, [self._output(message, skip_special_tokens)])

    def get_num_unfinished_requests(self) -> int:
        """Return the number of requests that wait for an answer."""
        return len(self._waiting)

    def answered(self, message: Message) -> None:
        """Hand an answer of the actor to the request that waits for it."""
        answer = self._waiting.pop(message["completion"], None)
        if answer is not None and not answer.cancelled():
            answer.set_result(message)

    def _output(self, message: Message, skip_special_tokens: bool) -> CompletionOutput:
        ids = message["token_ids"]
        stop = message["stop_reason"]
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        if isinstance(stop, str) and (position := text.rfind(stop)) >= 0:
            text = text[: position + len(stop)]
        return CompletionOutput(
            token_ids=ids,
            text=text,
            logprobs=[{token: Logprob(value, 1, None)} for token, value in zip(ids, message["logprobs"], strict=True)],
            finish_reason=message["finish_reason"],
            stop_reason=stop,
            cumulative_logprob=sum(message["logprobs"]),
        )
