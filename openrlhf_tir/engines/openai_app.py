"""vLLM's own HTTP API on the rollout engine. The requests of an agent's session are recorded.

    client -> [slots] -> vLLM's app -> EngineClient.generate -> AsyncLLM
                                       `- trace of the session: prompt ids, sampled ids, log-probs, versions

The record is made between app and engine, where tokens are token ids: nothing is read back from JSON or text. Importing
this module imports vLLM, so import it in a function, after the engine is up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ..config import Config
from ..data.template_shows import shown_by_tokenizer
from ..errors import EngineError
from .sessions import CURRENT, AgentSession

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from .vllm_requests import VllmRequests

SERVED_NAME = "policy"
"""Name of the model for clients, whichever it is; its path works as well."""
NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling options and the values that leave the policy's distribution as it is. With others the loss would compare
log-probs of two distributions."""
FORBIDDEN = {
    "n": 1,
    "min_tokens": 0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "structured_outputs": None,
    "thinking_token_budget": None,
}
"""The same for options on which a client relies: they are refused even if the session overrides sampling."""
GRAMMAR_PACKAGES = ("xgrammar", "llguidance", "lmformatenforcer", "outlines_core")
"""Packages that vLLM imports for structured outputs, whichever of them does the work."""
NAMES_FOR_CLIENTS = {"structured_outputs": "response_format (structured output)"}
"""Option -> what clients call it, for messages."""


async def openai_app(llm: AsyncLLM, requests: VllmRequests, model: str, cfg: Config) -> FastAPI:
    """Return vLLM's app on an engine that is running.

    Its lifespan only logs statistics, so it may be mounted without one.
    """
    flags = ["--model", model, "--served-model-name", SERVED_NAME, model]
    if cfg.vllm.tool_call_parser:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", cfg.vllm.tool_call_parser]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    validate_parsed_serve_args(args)
    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(EngineClient(llm, requests), app.state, args, tasks)
    # If the engine is dead, vLLM's error handler asks its own server to exit. Here the actor does that.
    app.state.server = SimpleNamespace(should_exit=False)
    app.state.template_shows = shown_by_tokenizer(llm.get_tokenizer())
    app.state.parses_calls = bool(cfg.vllm.tool_call_parser)
    return app


def structured_outputs_lack() -> list[str]:
    """Return the packages that vLLM imports for structured outputs and that are not installed."""
    return [name for name in GRAMMAR_PACKAGES if find_spec(name) is None]


class EngineClient:
    """Stands for the AsyncLLM in vLLM's app: counts every request, and records those of a session."""

    def __init__(self, llm: AsyncLLM, requests: VllmRequests) -> None:
        self._llm = llm
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **more: Any
    ) -> AsyncIterator[Any]:
        """Yield what AsyncLLM.generate yields.

        Raises:
            EngineError: The engine is broken, or the request has tokens of a push that was not proved.
            VLLMValidationError: The request wants what is not installed here; vLLM answers it with HTTP 400.
        """
        self._requests.check()
        missing = structured_outputs_lack() if sampling_params.structured_outputs is not None else []
        if missing:
            raise VLLMValidationError(
                f"Structured outputs need packages that are not installed here: {', '.join(missing)}. Install them as"
                " the requirements file pins them, or leave response_format and structured_outputs out."
            )
        session = CURRENT.get()
        output_kind = sampling_params.output_kind
        params = sampling_params if session is None else _policy_sampling(sampling_params, session)
        aggregate = None
        prompt = self._requests.salted(prompt, None if session is None else session.trace.first_version)
        with self._requests.track(request_id) as live:
            async for out in self._llm.generate(prompt, params, request_id, **more):
                if session is None:
                    yield out
                    continue
                live.extend(out.outputs[0])
                if aggregate is None:
                    aggregate = out
                    prompt_ids = list(out.prompt_token_ids)
                elif output_kind is not RequestOutputKind.DELTA:
                    aggregate.add(out, aggregate=True)
                if live.void:
                    raise EngineError(
                        f"Request {request_id} has tokens of a push that was not proved, and another one followed."
                    )
                if out.finished and out.outputs[0].finish_reason != "abort":
                    session.record(prompt_ids, live.completion(out.outputs[0]))
                    session.trace.sampled.append(live)
                if output_kind is RequestOutputKind.DELTA:
                    yield out
                elif output_kind is RequestOutputKind.CUMULATIVE or out.finished:
                    yield aggregate
        self._requests.check()  # a request that a failed push aborted has no answer


def _policy_sampling(requested: SamplingParams, session: AgentSession) -> SamplingParams:
    """Return the requested sampling, token by token and with log-probs.

    Raises:
        VLLMValidationError: It would not sample from the policy itself. The client gets status 400.
    """
    foreign = {
        name: getattr(requested, name)
        for name, neutral in FORBIDDEN.items()
        if (getattr(requested, name) or neutral) != neutral
    }
    changed = {
        name: getattr(requested, name)
        for name, neutral in (NEUTRAL | {"temperature": session.temperature}).items()
        if getattr(requested, name) != neutral
    }
    if changed.get("top_k") == -1:
        del changed["top_k"]
    if not session.override_sampling:
        foreign |= changed
    if foreign:
        options = ", ".join(NAMES_FOR_CLIENTS.get(name) or f"{name} = {value}" for name, value in foreign.items())
        alternative = "" if foreign.keys() & FORBIDDEN.keys() else ", or open the session with override_sampling"
        raise VLLMValidationError(
            f"{options}: this session is trained on, so it must sample from the policy itself: temperature"
            f" {session.temperature:g}, top_p 1, no penalties, constraints or parallel samples. Leave these"
            f" out{alternative}."
        )
    params = requested.clone()
    for name in changed:
        setattr(params, name, session.temperature if name == "temperature" else NEUTRAL[name])
    params.output_kind = RequestOutputKind.DELTA
    params.logprobs = params.logprobs or 0
    return params
