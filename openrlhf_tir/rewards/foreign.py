"""Call rewards that were written for verl and TRL: build their arguments from a response and its row, and convert their
results.

    verl   compute_score(data_source=, solution_str=, ground_truth=, extra_info=)   once for each response
    TRL    reward(prompts=[...], completions=[...], column=[...], ...)              with lists of one response as
                                                                                    reward.name, of a whole group as
                                                                                    reward.group

`config/integrations/reward_signatures.py` decides which convention a function has. The worker that runs it imports this
module.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..config.integrations.reward_signatures import Convention
from ..inert import plain
from ..types import CORRECT_ABOVE, RewardParts, Task, Trajectory
from ..user_code.failures import show
from . import accept
from .checking.json_value import json_or_none
from .context import RewardContext
from .verl_default import source_of

NOT_APPLICABLE = "not_applicable"
"""Part that counts the responses for which a TRL function returned None, which adds nothing to the reward."""
CALL_MARK = re.compile(r"<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>")
"""Beginning of the calls in a message, in the formats of chat models. TRL leaves them out of a message's content."""
RESERVED_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on under their own names."""


@dataclass(frozen=True)
class TrainerState:
    """The fields of TRL's `trainer_state` that have a meaning here."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float | None = None
    is_world_process_zero: bool = True
    log_history: list[dict[str, float]] = field(default_factory=list)


def score_one(
    function: Callable[..., Any],
    convention: Convention,
    trajectory: Trajectory,
    task: Task,
    context: RewardContext,
    text: str | None,
) -> Any:
    """Call a function of another convention with one response, and return its RewardParts.

    Args:
        function: The function.
        convention: Its convention.
        trajectory: The response.
        task: The row.
        context: Settings and counters of the run.
        text: The response without special tokens; None: the texts of its segments.

    Raises:
        WrongResult: The result has none of the forms of the convention.
    """
    text = trajectory.text if text is None else text
    if convention.name == "trl":
        return _trl(function, convention, [trajectory], [text], task, context)[0]
    arguments = _verl_arguments(trajectory, task, text)
    if convention.name == "verl_batch":
        arguments = {f"{name}s": [value] for name, value in arguments.items()}
    result = _call(function, {**convention.chosen(arguments), **context.options})
    if convention.name == "verl_batch":
        result = _list_of(result, 1)[0]
    return _convert_verl(result)


def score_group(
    function: Callable[..., Any],
    convention: Convention,
    trajectories: Sequence[Trajectory],
    task: Task,
    context: RewardContext,
) -> list[float]:
    """Call a function of TRL's convention once with all responses of a prompt, and return a reward for each."""
    texts = [trajectory.text for trajectory in trajectories]
    return [parts.reward for parts in _trl(function, convention, trajectories, texts, task, context)]


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return a function's result, awaited if it is a coroutine."""
    result = function(**arguments)
    if asyncio.iscoroutine(result):
        return asyncio.run(result)
    return result


def _verl_arguments(trajectory: Trajectory, task: Task, text: str) -> dict[str, Any]:
    """Return the arguments that verl's reward managers pass, from the columns of the row."""
    reward_model = _table(task.extra.get("reward_model"))
    source = source_of(task.extra, task.meta)
    model_turns = sum(segment.source == "model" for segment in trajectory.segments)
    extra_info = {
        **_table(task.extra.get("extra_info")),
        "num_turns": 1 + model_turns + len(trajectory.calls),
        "rollout_reward_scores": _tool_scores(trajectory),
        "tool_rewards": [call.reward for call in trajectory.calls if call.reward is not None],
        "turn_scores": [],
    }
    truth = reward_model["ground_truth"] if reward_model.get("ground_truth") is not None else task.label
    return {"data_source": source, "solution_str": text, "ground_truth": truth, "extra_info": extra_info}


def _tool_scores(trajectory: Trajectory) -> dict[str, Any]:
    """Return what the response is worth by verl's tools (calc_reward), by tool."""
    last = trajectory.calls[-1].signals.get("tool_scores") if trajectory.calls else None
    return dict(last) if isinstance(last, Mapping) else {}


def _table(value: Any) -> dict[str, Any]:
    """Return an object, which a data set may hold as JSON text; empty for anything else."""
    value = json_or_none(value) if isinstance(value, str) else value
    return dict(value) if isinstance(value, Mapping) else {}


def _convert_verl(result: Any) -> Any:
    """Convert verl's result. A number is the reward. In a dict that is `score`, its other numbers are parts, and `acc`
    says whether the response is correct."""
    if not isinstance(result, Mapping):
        return _scalar(result)
    if "score" not in result:
        raise accept.WrongResult(
            f"the dict that it returned has no 'score', it has: {', '.join(map(str, result)) or 'nothing'}"
        )
    parts = {_metric(name): value for name, entry in result.items() if (value := _finite(entry)) is not None}
    score = _scalar(result["score"])
    value = _finite(score)
    accurate = _finite(result.get("acc"))
    if value is None:
        return score  # accept.py raises the error for it
    return RewardParts(value, accurate > CORRECT_ABOVE if accurate is not None else value > 0, parts)


def _trl(
    function: Callable[..., Any],
    convention: Convention,
    trajectories: Sequence[Trajectory],
    texts: Sequence[str],
    task: Task,
    context: RewardContext,
) -> list[RewardParts]:
    """Call a function of TRL's convention and return the parts of each response. Raises WrongResult."""
    n = len(trajectories)
    logged: dict[str, list[float | None]] = {}

    def log_metric(name: str, value: float) -> None:
        logged[_metric(name)] = [_finite(value)] * n

    def log_extra(column: str, values: Sequence[Any]) -> None:
        logged[_metric(column)] = [_finite(value) for value in values]

    columns = {**task.meta, **task.extra}
    arguments: dict[str, Any] = {name: [value] * n for name, value in columns.items() if name not in RESERVED_COLUMNS}
    chat = task.chat if task.chat is not None and not task.chat.of_text else None
    prompt: Any = [dict(message) for message in chat.messages] if chat else plain(task.prompt)
    arguments |= {
        "prompts": [prompt] * n,
        "completions": [_messages(trajectory) for trajectory in trajectories] if chat else list(texts),
        "completion_ids": [trajectory.token_ids.tolist() for trajectory in trajectories],
        "trainer_state": TrainerState(context.update, context.max_updates),
        "log_metric": log_metric,
        "log_extra": log_extra,
        **context.options,
    }
    rewards = _list_of(_call(function, convention.chosen(arguments)), n)
    scored = []
    for i, reward in enumerate(rewards):
        parts = {
            name: entry
            for name, values in logged.items()
            if (entry := values[i] if i < len(values) else None) is not None
        }
        value = 0.0 if reward is None else _finite(reward)
        if value is None:
            raise accept.WrongResult(f"the reward of completion {i} is {show(reward)}")
        if reward is None:
            parts[NOT_APPLICABLE] = 1.0
        scored.append(RewardParts(value, value > 0, parts))
    return scored


def _messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the response as chat messages: what the model wrote, its calls, and the answers of tools."""
    observations = iter(trajectory.calls)
    messages: list[dict[str, Any]] = []
    for segment in trajectory.segments:
        if segment.source == "model":
            messages.append({"role": "assistant", "content": segment.text})
        elif call := next(observations, None):
            calls = _calls_of(call.action)
            if calls and messages and messages[-1]["role"] == "assistant":
                content = CALL_MARK.split(messages[-1]["content"], maxsplit=1)[0].strip()
                messages[-1] |= {"content": content, "tool_calls": [{"type": "function", "function": c} for c in calls]}
            lines = call.observation.split("\n")
            replies = lines if len(calls) > 1 and len(lines) == len(calls) else [call.observation]
            for i, reply in enumerate(replies):
                name = {"name": calls[i]["name"]} if i < len(calls) else {}
                messages.append({"role": "tool", **name, "content": reply})
    return messages


def _calls_of(action: str) -> list[dict[str, Any]]:
    """Return the calls of an action, [{"name", "arguments"}]; none if it is code or text."""
    value = json_or_none(action)
    calls = value if isinstance(value, list) else [value]
    return calls if all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls) else []


def _list_of(result: Any, n: int) -> list[Any]:
    """Return a result as a list of `n` items. Raises WrongResult."""
    values = result.tolist() if callable(getattr(result, "tolist", None)) else result
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise accept.WrongResult(f"it returned {show(result)}, not a list with one reward per completion")
    if len(values) != n:
        raise accept.WrongResult(f"it returned {len(values)} rewards for {n} completions")
    return list(values)


def _scalar(value: Any) -> Any:
    """Return a tensor or array of one number as that number, and anything else unchanged."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        with suppress(ValueError, RuntimeError, TypeError):
            return item()
    return value


def _finite(value: Any) -> float | None:
    """Return a finite real number as a float; None for anything else."""
    return accept.finite_number(_scalar(value))


def _metric(name: Any) -> str:
    """Return a name in the form of a metric's name."""
    return re.sub(r"[^\w./-]+", "_", str(name)) or "unnamed"
