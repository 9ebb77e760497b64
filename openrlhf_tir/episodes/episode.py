"""Episode: Task -> Trajectory. One environment session, one engine, no retries here.

    segment = engine(prompt + response so far)          the model's tokens, kept as sampled
    protocol.advance(segment)  -> End                   done
                               -> GoOn                  sample on
                               -> Call(action)          env.step(action); its output is tokenised once and appended; the
                                                        environment may say that the episode is done, or cut it
                                                        (truncated)
                               -> Reject(action, ...)   a call that cannot be read: told to the model, recorded for the
                                                        reward

Token in, token out: what was sampled is never decoded and encoded again, and nothing is appended that nobody produced
(no EOS). The response budget counts model and environment tokens; an inserted block is never cut and may overshoot it,
unless the protocol says `cuts_at_limit`: then what is beyond the budget is left out, its mask with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from ..errors import InfraError
from ..ports import Codec, Engine, EnvSession
from ..types import Sampling, Segment, ToolCall, Trajectory
from .rendering import Show, Shown, TextShow
from .turns import TURN_LIMIT, Call, End, MessagesProtocol, Reject, TurnProtocol

ENV_DONE, ENV_TRUNCATED = "env_done", "env_truncated"
"""Stop reasons of an episode that its environment ended; a cut one has finish_reason "length", as without tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_new_tokens` of a response, environment tokens included; `output_max_tokens` of one inserted block;
    `max_length` of prompt and response, at which no further segment is begun (ZeroTIR's second bound)."""

    max_new_tokens: int
    output_max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    max_length: int | None = None
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
    show: Show | None = None,
) -> Trajectory:
    """Sample one response. An infrastructure fault ends it with `failed` set; any other exception is a bug and is
    raised.

    `show`: how the environment's words are shown; default: as the turn protocol's text.
    """
    if show is None:
        show = TextShow(cast(TurnProtocol, protocol), codec, limits.output_max_tokens)
    traj = Trajectory(index=index, prompt_ids=np.asarray(prompt_ids, np.int32))
    context: list[int] = traj.prompt_ids.tolist()

    def append(segment: Segment) -> None:
        traj.segments.append(segment)
        context.extend(segment.token_ids.tolist())

    def observe(shown: Shown) -> None:
        if shown.ids:
            append(Segment.of_env(shown.ids, shown.text))

    try:
        context, opening = show.first(context, await env.reset())
        traj.prompt_ids = np.asarray(context, np.int32)
        context = list(context)
        observe(opening)
        turn = step_id = -1
        since: int | None = None
        longest = len(prompt_ids) + limits.max_new_tokens + 1 if limits.max_length is None else limits.max_length
        while (remaining := limits.max_new_tokens - (len(context) - len(prompt_ids))) > 0 and len(context) < longest:
            turn += 1
            room = min(remaining, getattr(protocol, "max_turn_tokens", None) or remaining)
            sampling = Sampling(
                room, protocol.stops, limits.temperature, limits.top_p, seed_of(turn), limits.top_k, limits.min_p, since
            )
            seen = context[-window:] if (window := getattr(protocol, "max_context_tokens", None)) else context
            completion = await engine.generate(seen, sampling, request_id=f"{request_id}/{turn}")
            if completion.finish_reason == "length" and room < remaining:
                completion = replace(completion, stop_reason=TURN_LIMIT)
            append(Segment.of_model(completion))
            since = completion.began if since is None else since
            traj.finish_reason, traj.stop_reason = completion.finish_reason, completion.stop_reason
            if completion.finish_reason == "abort":
                traj.failed = "aborted"
                break
            match protocol.advance(show.read(completion)):
                case End():
                    break
                case Call(action):
                    step_id += 1
                    call = await _run(env, action, step_id, turn)
                    traj.calls.append(call)
                    # nothing follows: the observation alone, without a word about what comes next
                    if call.done or call.truncated:
                        observe(show.last(call.observation))
                        traj.finish_reason, traj.stop_reason = (
                            ("stop", ENV_DONE) if call.done else ("length", ENV_TRUNCATED)
                        )
                        break
                    observe(show.next(call.observation))
                case Reject(action, defect, message):
                    traj.calls.append(
                        ToolCall(
                            action,
                            message,
                            "model_error",
                            {"error_type": "malformed_call", "defect": defect},
                            turn=turn,
                        )
                    )
                    observe(show.next(message))
                case go_on:
                    observe(show.go_on(go_on.text))
        else:
            traj.finish_reason = "length"
        if getattr(protocol, "cuts_at_limit", False):
            _cut(traj, codec, limits.max_new_tokens)
    except InfraError as e:
        traj.failed, traj.why = e.reason, str(e)
        traj.traceback = getattr(e, "traceback", "")
    return traj


def _cut(traj: Trajectory, codec: Codec, tokens: int) -> None:
    """Leave the first `tokens` of the response. Only an inserted block can be beyond: the model is never asked for more
    than there is room."""
    beyond = traj.response_tokens - tokens
    if beyond > 0 and traj.segments[-1].source == "env":
        kept = traj.segments.pop().token_ids[:-beyond].tolist()
        traj.finish_reason = "length"
        if kept:
            traj.segments.append(Segment.of_env(kept, codec.decode(kept)))


async def _run(env: EnvSession, action: str, step_id: int, turn: int) -> ToolCall:
    start = time.monotonic()
    reply = await env.step(action, step_id=step_id)
    seconds = time.monotonic() - start
    return ToolCall(
        action,
        reply.observation,
        reply.outcome,
        reply.signals,
        seconds,
        reply.reward,
        reply.done,
        reply.truncated,
        turn,
    )
