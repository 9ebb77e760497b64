"""Multiply a correct response's reward by its tool efficiency (OTC).

Source: arXiv 2504.14870 v2, section 3. There is no official code.

    PPO   r_tool = cos(m pi / (2 m + c))                  m: calls; c: a smaller c is a stronger pressure
    GRPO  n = fewest calls of a correct response, in this group or earlier;  f = 2 n m / (m + n)
          r_tool = 1 if m = n = 0;  cos(m pi / (2 m + c)) if n = 0;  sin(f pi / (2 n)) otherwise
    reward = alpha * r_tool * r_correct, so that a wrong response gets 0 whatever it calls

r_correct comes from any reward (Search-R1's, ToRL's). It is 0 if that reward finds the response wrong, whatever number
it gives.

`otc`, a reward of one response, is the PPO form (for example with the option base = "searchr1"). `otc_group`
(reward.group = "otc") is the GRPO form. Its n is the fewest calls with which the question was ever answered in this
run: the minimum of the group's n and a counter of the prompt, which survives a resume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..config.rewards import REWARDS
from ..errors import ConfigError, unknown
from ..types import Group, RewardParts, Task, Trajectory
from . import call, load
from .context import RewardContext

GROUP_OPTIONS: dict[str, type] = {"c": float, "alpha": float}
OPTIONS: dict[str, type] = {**GROUP_OPTIONS, "base": str, "base_options": dict}
FEWEST = "otc_fewest_calls"
"""Name of the prompt's counter of fewest calls."""


class GroupScore(NamedTuple):
    """The GRPO form's result for one group.

    Attributes:
        n: Fewest calls that are known to suffice; None if no response was ever correct.
        r_tool: Tool efficiency of each response; None without `n`.
        reward: Reward of each response.
    """

    n: int | None
    r_tool: Sequence[float | None]
    reward: list[float]


def ppo_factor(m: int, c: float) -> float:
    """Return the tool efficiency of a response with m calls, in the PPO form."""
    return math.cos(m * math.pi / (2 * m + c)) if m else 1.0


def grpo_factor(m: int, n: int, c: float) -> float:
    """Return the tool efficiency of a response with m calls where n suffice, in the GRPO form."""
    if n == 0:
        return ppo_factor(m, c)
    f = 2 * n * m / (m + n)
    return math.sin(f * math.pi / (2 * n))


def grpo_group(
    m_G: Sequence[int],
    correct_G: Sequence[float],
    r_G: Sequence[float],
    c: float,
    alpha: float = 1.0,
    stored_n: int | None = None,
) -> GroupScore:
    """Return the GRPO form's rewards of one group.

    Args:
        m_G: [G] number of calls of each response.
        correct_G: [G] 1 for a correct response.
        r_G: [G] reward of each response without the efficiency.
        c: See the module's docstring.
        alpha: Factor of all rewards.
        stored_n: The fewest calls that sufficed for this question in earlier groups; None if it was never answered.
    """
    sufficient = [m for m, ok in zip(m_G, correct_G, strict=True) if ok] + ([] if stored_n is None else [stored_n])
    n = min(sufficient, default=None)
    if n is None:
        return GroupScore(None, [None] * len(m_G), [0.0] * len(m_G))
    r_tool = [grpo_factor(m, n, c) for m in m_G]
    return GroupScore(n, r_tool, [alpha * t * r for t, r in zip(r_tool, r_G, strict=True)])


def executed_calls(trajectory: Trajectory) -> int:
    """Return the method's m. A call that could not be read cost no tool."""
    return sum(call.executed for call in trajectory.calls)


def _constants(context: RewardContext, setting: str) -> tuple[float, float]:
    """Return c and alpha. Raises ConfigError for a negative c, with which fewer calls would not be better."""
    c = float(context.options.get("c", 3))
    if c < 0:
        raise ConfigError(
            f"{setting}.c = {c:g} is below 0. Give the limit of calls, such as 3 for code or 4 for search."
        )
    return c, float(context.options.get("alpha", 1))


async def otc(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Return the base reward of a correct response times its efficiency in the PPO form, and 0 for a wrong one.

    The options are `c` (default 3, which the paper uses for code; 4 for search), `alpha` (1), `base` (the name of a
    registered reward, "math") and `base_options` (a table).

    Returns:
        Its parts are those of the base reward, and tool_efficiency.
    """
    context.check_options(OPTIONS, "reward.name = 'otc'")
    name = str(context.options.get("base", "math"))
    if name not in REWARDS or name == "otc":
        bases = sorted(set(REWARDS) - {"otc"})
        raise unknown(
            "reward.options.base",
            name,
            bases,
            "A reward of your own is multiplied by reward.group = 'otc' (the paper's GRPO form).",
        )
    base_context = replace(context, options=context.options.get("base_options", {}))
    base_reward, correct, parts = await call(load(name), trajectory, task, base_context)
    c, alpha = _constants(context, "reward.options")
    factor = ppo_factor(executed_calls(trajectory), c)
    reward = alpha * factor * base_reward if correct else 0.0
    return RewardParts(reward, correct, {**parts, "tool_efficiency": factor})


def otc_group(group: Group, context: RewardContext) -> list[float]:
    """Return the GRPO form of the rewards that the trajectories have. A wrong response has 0.

    The options are `c` (3) and `alpha` (1). Sets the parts tool_efficiency and fewest_calls, and the prompt's counter.
    """
    context.check_options(GROUP_OPTIONS, "reward.group = 'otc'", "reward.group_options")
    c, alpha = _constants(context, "reward.group_options")
    valid = group.valid
    stored = context.prompt_counters.get(FEWEST)
    score = grpo_group(
        [executed_calls(trajectory) for trajectory in valid],
        [trajectory.parts["correct"] for trajectory in valid],
        [trajectory.scored if trajectory.parts["correct"] else 0.0 for trajectory in valid],
        c=c,
        alpha=alpha,
        stored_n=None if stored is None else int(stored),
    )
    if score.n is not None:
        context.lowest(FEWEST, score.n, prompt=True)
        for trajectory in valid:
            trajectory.parts["fewest_calls"] = float(score.n)
    for trajectory, factor in zip(valid, score.r_tool, strict=True):
        trajectory.parts["tool_efficiency"] = 0.0 if factor is None else factor
    return score.reward
