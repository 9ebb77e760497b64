"""One episode: a prompt becomes a `Trajectory`, with one environment session and one engine. Nothing is retried here.

    segment = engine(prompt + response so far)          the model's tokens, kept as sampled
    protocol.advance(segment)  -> End                   the episode is over
                               -> GoOn(text)            the text, if there is any, is tokenised and appended
                               -> Call(action)          env.step(action); the observation is tokenised once and
                                                        appended. The environment may end the episode (done) or cut it
                                                        (truncated)
                               -> Reject(action, ...)   a call that cannot be read: the model is told, and the reward
                                                        finds it among the calls

After every answer but End the next segment is sampled. The protocol counts the calls (env.max_calls): once
they are used up, nothing that the model writes is a call any more.

Tokens in, tokens out: what was sampled is never decoded and encoded again, and nothing is appended that nobody produced
(no end token). The response budget counts model and environment tokens. An inserted block is never cut and may exceed
the budget, unless the protocol has `cuts_at_limit`: then the tokens beyond the budget are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never, cast

import numpy as np

from ..errors import InfraError
from ..ports import Codec, Engine, EnvSession
from ..types import Sampling, Segment, ToolCall, Trajectory
from .protocols import TURN_LIMIT, Call, End, GoOn, MessagesProtocol, Reject, TurnProtocol
from .protocols.rendering import ObservationRenderer, RenderedText, TextRenderer

ENV_DONE = "env_done"
"""Stop reason of an episode that its environment ended."""
ENV_TRUNCATED = "env_truncated"
"""Stop reason of an episode that its environment cut; its finish reason is "length", as at the token limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode, and how its segments are sampled.

    Attributes:
        max_new_tokens: Tokens of the response, those of the environment included.
        output_max_tokens: Tokens of one inserted block.
        temperature: Softmax temperature; 0 is greedy.
        top_p: Nucleus sampling.
        top_k: Keep this many of the likeliest tokens; 0 for all.
        min_p: Keep tokens with p >= min_p * p_max.
    """

    max_new_tokens: int
    output_max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


async def run_episode(
    prompt_ids: Sequence[int] | np.ndarray,
    *,
    index: int,
    engine: Engine,
    env: EnvSession,
    codec: Codec,
    protocol: TurnProtocol | MessagesProtocol,
    limits: Limits,
    request_id: str,
    seed_of: Callable[[int], int | None] = lambda turn: None,
    renderer: ObservationRenderer | None = None,
) -> Trajectory:
    """Sample one response.

    An InfraError of the engine, the environment or the user's protocol ends the trajectory: `failed` has its reason.

    Args:
        prompt_ids: [P] tokens of the prompt.
        index: Index of the sample in its group.
        engine: What samples the segments.
        env: An open environment session.
        codec: The tokenizer.
        protocol: A fresh protocol instance.
        limits: Limits and sampling.
        request_id: Prefix of the engine's request ids, unique per trajectory.
        seed_of: Turn, from 0 -> seed of its request.
        renderer: How observations are shown. None: as text, by the turn protocol.

    Raises:
        Exception: A bug of ours, that is anything but an InfraError.
    """
    if renderer is None:
        renderer = TextRenderer(cast(TurnProtocol, protocol), codec, limits.output_max_tokens)
    trajectory = Trajectory(index=index, prompt_ids=np.asarray(prompt_ids, np.int32))
    context: list[int] = trajectory.prompt_ids.tolist()

    def append(segment: Segment) -> None:
        trajectory.segments.append(segment)
        context.extend(segment.token_ids.tolist())

    def append_observation(rendered: RenderedText) -> None:
        if rendered.ids:
            append(Segment.of_env(rendered.ids, rendered.text))

    try:
        context, opening = renderer.start(context, await env.reset())
        trajectory.prompt_ids = np.asarray(context, np.int32)
        context = list(context)
        append_observation(opening)
        turn = -1
        step_id = -1
        first_version: int | None = None
        while True:
            # What the renderer added to the task's prompt counts as response: it is the environment's text.
            remaining = limits.max_new_tokens - (len(context) - len(prompt_ids))
            if remaining <= 0:
                trajectory.finish_reason = "length"
                break
            turn += 1
            max_tokens = min(remaining, getattr(protocol, "max_turn_tokens", None) or remaining)
            num_hidden = _num_hidden(protocol, len(context))
            num_with_experts = 0 if trajectory.experts is None else len(trajectory.experts)
            sampling = Sampling(
                max_tokens=max_tokens,
                stop=protocol.stops,
                temperature=limits.temperature,
                top_p=limits.top_p,
                seed=seed_of(turn),
                top_k=limits.top_k,
                min_p=limits.min_p,
                first_version=first_version,
                experts_known=max(0, num_with_experts - num_hidden),
            )
            completion = await engine.generate(context[num_hidden:], sampling, request_id=f"{request_id}/{turn}")
            trajectory.add_experts(completion.experts, num_hidden + sampling.experts_known)
            if completion.finish_reason == "length" and max_tokens < remaining:
                completion = replace(completion, stop_reason=TURN_LIMIT)
            append(Segment.of_model(completion))
            if first_version is None:
                first_version = completion.began
            trajectory.finish_reason = completion.finish_reason
            trajectory.stop_reason = completion.stop_reason
            if completion.finish_reason == "abort":
                trajectory.failed = "aborted"
                break
            match protocol.advance(renderer.read_completion(completion)):
                case End():
                    break
                case Call(action):
                    step_id += 1
                    call = await _step(env, action, step_id, turn)
                    trajectory.calls.append(call)
                    if call.done or call.truncated:
                        append_observation(renderer.end_with(call.observation))
                        trajectory.finish_reason = "stop" if call.done else "length"
                        trajectory.stop_reason = ENV_DONE if call.done else ENV_TRUNCATED
                        break
                    append_observation(renderer.continue_with(call.observation))
                case Reject(action, defect, message):
                    signals = {"error_type": "malformed_call", "defect": defect}
                    trajectory.calls.append(ToolCall(action, message, "model_error", signals, turn=turn))
                    append_observation(renderer.continue_with(message))
                case GoOn(text):
                    append_observation(renderer.insert(text))
                case unknown:
                    assert_never(unknown)
        if getattr(protocol, "cuts_at_limit", False):
            _cut_last_block(trajectory, codec, limits.max_new_tokens)
    except InfraError as e:
        trajectory.failed = e.reason
        trajectory.why = str(e)
        trajectory.traceback = getattr(e, "user_traceback", "")
    return trajectory


def _num_hidden(protocol: TurnProtocol | MessagesProtocol, num_tokens: int) -> int:
    """Return how many leading tokens the engine is not given: all but the last `max_context_tokens` of the protocol."""
    window = getattr(protocol, "max_context_tokens", None)
    return max(0, num_tokens - window) if window else 0


def _cut_last_block(trajectory: Trajectory, codec: Codec, max_tokens: int) -> None:
    """Keep the first `max_tokens` tokens of the response.

    Only an inserted block can be beyond them: the model is never asked for more tokens than there is room for.
    """
    excess = trajectory.response_tokens - max_tokens
    if excess <= 0 or trajectory.segments[-1].source != "env":
        return
    kept = trajectory.segments.pop().token_ids[:-excess].tolist()
    trajectory.finish_reason = "length"
    if kept:
        trajectory.segments.append(Segment.of_env(kept, codec.decode(kept)))


async def _step(env: EnvSession, action: str, step_id: int, turn: int) -> ToolCall:
    """Run one action and return it with its reply.

    Raises:
        InfraError: As EnvSession.step: no reply that may be trained.
    """
    start = time.monotonic()
    reply = await env.step(action, step_id=step_id)
    return ToolCall(
        action=action,
        observation=reply.observation,
        outcome=reply.outcome,
        signals=reply.signals,
        seconds=time.monotonic() - start,
        reward=reply.reward,
        done=reply.done,
        truncated=reply.truncated,
        turn=turn,
    )
