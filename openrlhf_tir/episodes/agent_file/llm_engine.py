"""In the worker: what OpenRLHF's files call `llm_engine` and `sampling_params`, with vLLM's names and none of its
imports.

`generate` may be called from any thread and event loop: OpenRLHF's own example serves an OpenAI endpoint from a thread
of its own."""

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
"""The `execute` that the code at hand belongs to; None where it cannot be known (a server thread of the file's)."""


@dataclass
class Run:
    number: int
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Steps of its agent instance."""


@dataclass
class SamplingParams:
    """The fields of vLLM's class that OpenRLHF sets or reads. vLLM's own replaces it in a file that imports vLLM."""

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
"""What a request may not change, since the loss would compare with another distribution than the one that sampled."""


def sampling_params(**given: Any) -> Any:
    """As OpenRLHF makes them: special tokens and a stop string stay in the text, log-probs of what was sampled."""
    cls = getattr(sys.modules.get("vllm.sampling_params"), "SamplingParams", SamplingParams)
    return cls(**given, top_k=-1, min_tokens=1, logprobs=1, skip_special_tokens=False, include_stop_str_in_output=True)


def request_of(params: Any) -> Message:
    """What of the parameters reaches the engine. Raises ValueError for one that would change the distribution."""
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
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """What one request sampled. `logprobs`: [T] of {sampled token id: Logprob}."""

    token_ids: list[int]
    text: str
    logprobs: list[dict[int, Logprob]]
    finish_reason: str
    stop_reason: str | int | None
    index: int = 0
    cumulative_logprob: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


class LlmEngine:
    """One per worker: every request goes to the engine of the rollout actor that the worker belongs to."""

    def __init__(self, send: Callable[[Message], None], tokenizer: Any) -> None:
        """`send` is safe to call from any thread."""
        self._send, self._tokenizer = send, tokenizer
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Message]] = {}

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> RequestOutput:
        """Raises RuntimeError when the engine did not answer, ValueError for a request that cannot be trained on."""
        if multi_modal_data:
            raise ValueError(
                "The agent asks with images (multi_modal_data), and tasks are text here. Leave images out."
            )
        number, answer, run = next(self._numbers), Future[Message](), RUN.get()
        prompt = [int(i) for i in prompt_token_ids]
        request = request_of(sampling_params)
        self._waiting[number] = answer
        self._send({"generate": number, "run": run.number if run else None, "prompt": prompt, "sampling": request})
        try:
            said = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            self._send({"abort": number})
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in said:
            raise RuntimeError(said["error"])
        return RequestOutput(
            str(number), prompt, [self._output(said, getattr(sampling_params, "skip_special_tokens", True))]
        )

    def get_num_unfinished_requests(self) -> int:
        return len(self._waiting)

    def answered(self, message: Message) -> None:
        answer = self._waiting.pop(message["completion"], None)
        if answer is not None and not answer.cancelled():
            answer.set_result(message)

    def _output(self, said: Message, skip_special_tokens: bool) -> CompletionOutput:
        ids, stop = said["token_ids"], said["stop_reason"]
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        if isinstance(stop, str) and (at := text.rfind(stop)) >= 0:
            text = text[: at + len(stop)]
        logprobs = [{i: Logprob(x, 1, None)} for i, x in zip(ids, said["logprobs"], strict=True)]
        return CompletionOutput(
            ids, text, logprobs, said["finish_reason"], stop, cumulative_logprob=sum(said["logprobs"])
        )
