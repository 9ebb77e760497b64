"""OpenAI app: vLLM's own HTTP API on the rollout engine. Every request is in the engine's account; a session's is
recorded.

    client -> [slots] -> vLLM's app -> EngineClient.generate -> AsyncLLM
                                       `- session's trace: prompt ids, sampled ids, log-probs, versions

The record is made between app and engine, where tokens are tokens: nothing is read back from JSON or text. vLLM is
imported when this module is: import it in a function, after the engine is up.
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
from ..data.export_template import template_of
from ..data.jinja_template import of_text
from ..errors import EngineError
from .sessions import CURRENT, AgentSession

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from .vllm_engine import VllmEngine

SERVED_NAME = "policy"
"""What clients call the model, whichever it is; its path works as well."""
NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Any other value means another distribution than the policy's, with whose log-probs the loss would compare."""
FORBIDDEN = {
    "n": 1,
    "min_tokens": 0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "structured_outputs": None,
    "thinking_token_budget": None,
}
"""The same, but leaving them out would change what the client relies on: refused even where sampling is overridden."""
GRAMMARS = ("xgrammar", "llguidance", "lmformatenforcer", "outlines_core")
"""What vLLM imports for structured outputs, whichever of them does the work."""
CALLED = {"structured_outputs": "response_format (structured output)"}
"""What clients call an option, in place of our name and a Python object."""


async def openai_app(llm: AsyncLLM, engine: VllmEngine, model: str, cfg: Config) -> FastAPI:
    """vLLM's app on an engine that is already running. Its lifespan only logs statistics, so it may be mounted."""
    flags = ["--model", model, "--served-model-name", SERVED_NAME, model]
    if cfg.vllm.tool_call_parser:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", cfg.vllm.tool_call_parser]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    validate_parsed_serve_args(args)
    tasks = await llm.get_supported_tasks()
    app = build_app(args, tasks, llm.model_config)
    await init_app_state(EngineClient(llm, engine), app.state, args, tasks)
    # vLLM's answer to an engine's error asks its own server to exit when the engine is dead. Here the actor does that.
    app.state.server = SimpleNamespace(should_exit=False)
    app.state.takes_system = takes_system(llm.get_tokenizer())
    return app


def takes_system(tokenizer: Any) -> bool:
    """Return whether the model's chat template shows a system message. Several refuse one, and some leave it out."""
    template = template_of(tokenizer)
    if not template:
        return True
    names = {name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    user = {"role": "user", "content": "question"}
    try:
        render = of_text(template, names)
        plain = render([user], add_generation_prompt=True)
    except (
        Exception
    ):  # a program of the model's that raises what it likes: what is wrong with it is said when it is used
        return True
    try:
        shown = render([{"role": "system", "content": "instructed"}, user], add_generation_prompt=True)
    except Exception:  # the template's own refusal
        return False
    return "instructed" in shown or shown != plain


def structured_outputs_lack() -> list[str]:
    """Return the packages that vLLM imports for structured outputs and that are not installed."""
    return [name for name in GRAMMARS if find_spec(name) is None]


class EngineClient:
    """The AsyncLLM as vLLM's app sees it."""

    def __init__(self, llm: AsyncLLM, engine: VllmEngine) -> None:
        self._llm, self._engine = llm, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **more: Any
    ) -> AsyncIterator[Any]:
        """What AsyncLLM.generate yields. Raises EngineError when the engine is broken."""
        self._engine.check()
        if sampling_params.structured_outputs is not None and (lacking := structured_outputs_lack()):
            raise VLLMValidationError(
                f"Structured outputs need packages that are not installed here: {', '.join(lacking)}. Install them as"
                " the requirements file pins them, or leave response_format and structured_outputs out."
            )
        session = CURRENT.get()
        wanted = sampling_params.output_kind
        params = sampling_params if session is None else _policy_sampling(sampling_params, session)
        whole = None
        prompt = self._engine.salted(prompt, None if session is None else session.trace.since)
        with self._engine.requests.track(request_id) as live:
            async for out in self._llm.generate(prompt, params, request_id, **more):
                if session is None:
                    yield out
                    continue
                live.extend(out.outputs[0])
                if whole is None:
                    whole, prompt_ids = out, list(out.prompt_token_ids)
                elif wanted is not RequestOutputKind.DELTA:
                    whole.add(out, aggregate=True)
                if live.void:
                    raise EngineError(
                        f"Request {request_id} has tokens of a push that was not proved; it was pushed again."
                    )
                if out.finished and out.outputs[0].finish_reason != "abort":
                    session.record(prompt_ids, live.completion(out.outputs[0]))
                if wanted is RequestOutputKind.DELTA:
                    yield out
                elif wanted is RequestOutputKind.CUMULATIVE or out.finished:
                    yield whole
        self._engine.check()  # what a failed push aborted is no answer


def _policy_sampling(asked: SamplingParams, session: AgentSession) -> SamplingParams:
    """As asked, but token by token and with log-probs. VLLMValidationError (400) for sampling not the policy's own."""
    foreign = {
        name: getattr(asked, name)
        for name, neutral in FORBIDDEN.items()
        if (getattr(asked, name) or neutral) != neutral
    }
    bent = {
        name: getattr(asked, name)
        for name, neutral in (NEUTRAL | {"temperature": session.temperature}).items()
        if getattr(asked, name) != neutral
    }
    if bent.get("top_k") == -1:
        del bent["top_k"]
    if not session.override_sampling:
        foreign |= bent
    if foreign:
        raise VLLMValidationError(
            f"{', '.join(CALLED.get(k) or f'{k} = {v}' for k, v in foreign.items())}: this session is trained on, so it"
            f" must sample from the policy itself: temperature {session.temperature:g}, top_p 1, no penalties,"
            " constraints or parallel samples. Leave these out"
            + ("." if foreign.keys() & FORBIDDEN.keys() else ", or open the session with override_sampling.")
        )
    params = asked.clone()
    for name in bent:
        setattr(params, name, session.temperature if name == "temperature" else NEUTRAL[name])
    params.output_kind = RequestOutputKind.DELTA
    params.logprobs = params.logprobs or 0
    return params
