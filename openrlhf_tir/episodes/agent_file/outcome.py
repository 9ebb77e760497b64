"""Outcome: what `execute` returned, and what the engine recorded -> a Trajectory. Token in, token out.

observation_tokens   [prompt | .... | .......... | .... | ...... ]
action_ranges                 (a,b)              (a,b)              model: the recorded tokens, log-probs and versions
between and behind                   env               env          never trained
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import AgentError
from ...ports import Codec
from ...types import Segment, ToolCall, Trajectory
from .record import Record
from .wire import Message


def trajectory(
    said: Message,
    index: int,
    prompt_ids: Sequence[int],
    record: Record,
    codec: Codec,
    *,
    max_len: int,
    temperature: float,
) -> Trajectory:
    """`said`: the worker's {"result", "calls"}; `prompt_ids`: the group's, maybe replaced. Raises AgentError."""
    result = said["result"]
    tokens = result["observation_tokens"][:max_len]  # as OpenRLHF cuts them
    ranges = [(a, min(b, len(tokens))) for a, b in result["action_ranges"] if a < min(b, len(tokens))]
    if not ranges or ranges[0][0] < 1:
        return Trajectory(
            index,
            np.asarray(prompt_ids, np.int32),
            failed="agent_silent",
            why="its action_ranges hold no token after a prompt",
        )
    first, common = ranges[0][0], list(prompt_ids)
    position = len(common) if tokens[: len(common)] == common and len(common) <= first else first
    traj = Trajectory(index, np.asarray(tokens[:position], np.int32))
    for a, b in ranges:
        if a < position:
            raise AgentError(
                f"action_ranges {result['action_ranges']} overlap or are not in order."
                " Give [(start, end), ...] of observation_tokens, ascending."
            )
        _observe(traj, tokens[position:a], codec)
        traj.segments.append(_sampled(tokens, a, b, record, temperature))
        position = b
    _observe(traj, tokens[position:], codec)
    traj.finish_reason = "length" if result["truncated"] else "stop"
    traj.calls = [
        ToolCall(c["action"], c["observation"], "ok", {}, c["seconds"], c["reward"], c["done"]) for c in said["calls"]
    ]
    _reward(traj, result)
    return traj


def _observe(traj: Trajectory, token_ids: list[int], codec: Codec) -> None:
    if token_ids:
        traj.segments.append(Segment.of_env(token_ids, codec.decode(token_ids)))


def _sampled(tokens: list[int], a: int, b: int, record: Record, temperature: float) -> Segment:
    found = record.take(tokens[:a], tokens[a:b])
    if found is None:
        raise AgentError(
            f"action_ranges has ({a}, {b}), and the engine sampled no such tokens after the {a} tokens before them:"
            " what is trained must be sampled as it stands. Build observation_tokens of the prompt that was sent and"
            " the token_ids that came back, without decoding and encoding again."
        )
    asked = found.sampling
    if asked.temperature != temperature or asked.top_p != 1:
        raise AgentError(
            f"The file sampled with temperature {asked.temperature:g} and top_p {asked.top_p:g}; this group is of"
            f" temperature {temperature:g} and top_p 1, which the loss compares with."
            " Leave them as sampling_params has them."
        )
    c, n = found.completion, b - a
    whole = n == len(c.token_ids)
    return Segment(
        "model",
        np.asarray(c.token_ids[:n], np.int32),
        np.asarray(c.logprobs[:n], np.float32),
        np.asarray(c.versions[:n], np.int32),
        c.text if whole else "",
    )


def _reward(traj: Trajectory, result: Message) -> None:
    """None: left to the run's own reward. `scores`, which filters look at, becomes the part `correct`, as it is."""
    traj.parts |= result["extra_logs"]
    if result["reward"] is None:
        return
    traj.reward = result["reward"]
    score = traj.reward if result["scores"] is None else result["scores"]
    traj.parts["correct"] = score
