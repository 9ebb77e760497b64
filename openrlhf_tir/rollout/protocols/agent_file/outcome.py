"""Build a trajectory from what `execute` returned and what the engine recorded.

observation_tokens   [prompt | ........... | .......... | ........... | ...... ]
action_ranges                  (start, end)               (start, end)           model: the recorded tokens,
                                                                                 log-probs and versions
between and behind them                      environment                environment
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....errors import AgentError
from ....ports import Codec
from ....types import Segment, ToolCall, Trajectory
from .record import Record
from .wire import Message


def trajectory(
    message: Message,
    index: int,
    prompt_ids: Sequence[int],
    record: Record,
    codec: Codec,
    *,
    max_len: int,
    temperature: float,
) -> Trajectory:
    """Return the trajectory of one `execute`.

    Args:
        message: The worker's message with "result" and "calls".
        index: Index of the sample in its group.
        prompt_ids: [P] the group's prompt. The file may have replaced it.
        record: What the engine sampled for the worker.
        codec: The tokenizer.
        max_len: Tokens of prompt and response at most, data.max_len.
        temperature: Temperature of the group.

    Raises:
        AgentError: The result cannot be trained.
    """
    result = message["result"]
    tokens = result["observation_tokens"][:max_len]  # as OpenRLHF cuts them
    ranges = [(start, min(end, len(tokens))) for start, end in result["action_ranges"]]
    ranges = [(start, end) for start, end in ranges if start < end]
    if not ranges or ranges[0][0] < 1:
        return Trajectory(
            index,
            np.asarray(prompt_ids, np.int32),
            failed="agent_silent",
            why="Its action_ranges hold no token behind a prompt.",
        )
    first_start = ranges[0][0]
    prompt = list(prompt_ids)
    keeps_prompt = tokens[: len(prompt)] == prompt and len(prompt) <= first_start
    position = len(prompt) if keeps_prompt else first_start
    trajectory = Trajectory(index, np.asarray(tokens[:position], np.int32))
    for start, end in ranges:
        if start < position:
            raise AgentError(
                f"action_ranges {result['action_ranges']} overlap or are not in order."
                " Give [(start, end), ...] of observation_tokens, ascending."
            )
        _append_observation(trajectory, tokens[position:start], codec)
        trajectory.segments.append(_sampled_segment(tokens, start, end, record, temperature))
        position = end
    _append_observation(trajectory, tokens[position:], codec)
    trajectory.finish_reason = "length" if result["truncated"] else "stop"
    trajectory.calls = [
        ToolCall(
            action=call["action"],
            observation=call["observation"],
            outcome="ok",
            signals={},
            seconds=call["seconds"],
            reward=call["reward"],
            done=call["done"],
        )
        for call in message["calls"]
    ]
    _set_reward(trajectory, result)
    return trajectory


def _append_observation(trajectory: Trajectory, token_ids: list[int], codec: Codec) -> None:
    if token_ids:
        trajectory.segments.append(Segment.of_env(token_ids, codec.decode(token_ids)))


def _sampled_segment(tokens: list[int], start: int, end: int, record: Record, temperature: float) -> Segment:
    """Return what the engine recorded for one action range."""
    sampled = record.take(tokens[:start], tokens[start:end])
    if sampled is None:
        raise AgentError(
            f"action_ranges has ({start}, {end}), but the engine did not sample these tokens behind the {start} tokens"
            " before them, so they cannot be trained. Build observation_tokens from the prompt that was sent and the"
            " token_ids that came back, without decoding and encoding again."
        )
    sampling = sampled.sampling
    if sampling.temperature != temperature or sampling.top_p != 1:
        raise AgentError(
            f"The file sampled with temperature {sampling.temperature:g} and top_p {sampling.top_p:g}; the loss needs"
            f" the group's temperature {temperature:g} and top_p 1. Leave them as sampling_params has them."
        )
    completion = sampled.completion
    length = end - start
    return Segment(
        "model",
        np.asarray(completion.token_ids[:length], np.int32),
        np.asarray(completion.logprobs[:length], np.float32),
        np.asarray(completion.versions[:length], np.int32),
        completion.text if length == len(completion.token_ids) else "",
    )


def _set_reward(trajectory: Trajectory, result: Message) -> None:
    """Set the reward, unless the file leaves it to the run's own. `scores` becomes the part `correct`, for filters."""
    trajectory.parts |= result["extra_logs"]
    if result["reward"] is None:
        return
    trajectory.reward = result["reward"]
    trajectory.parts["correct"] = result["reward"] if result["scores"] is None else result["scores"]
