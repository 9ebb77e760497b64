"""OTC: the correctness reward times a tool-efficiency term in [0, 1]. Source: arXiv 2504.14870 v2, section 3; no
official code exists.

    PPO   r_tool = cos(m pi / (2 m + c))                      m calls; c the limit: smaller c, stronger pressure
    GRPO  n = fewest calls of a correct response, here or ever before;  f = 2 n m / (m + n)
          r_tool = 1 where m = n = 0;  cos(m pi / (2 m + c)) where n = 0;  sin(f pi / (2 n)) else
    reward = alpha * r_tool * r_correct, so a wrong response is 0 whatever it calls

r_correct is that of any reward (Search-R1's, ToRL's), 0 where that finds the response wrong, however it scores it.

`otc`, a reward of one response, is the PPO form (reward.options base = "searchr1"); `otc_group` (reward.group = "otc")
is the GRPO form. Its n is the lowest of the group's and of the prompt's counter, which survives a resume: the fewest
calls with which the question was ever answered in this run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import unknown
from ..types import Group, RewardParts, Task, Trajectory
from . import REGISTRY, Ask, load, on_the_spot
from .context import RewardContext

OPTIONS = ("c", "alpha", "base", "base_options")
GROUP_OPTIONS = ("c", "alpha")
FEWEST = "otc_fewest_calls"
"""Name of the prompt's counter of fewest calls."""


class GroupScore(NamedTuple):
    n: int | None
    """Fewest calls known to suffice; None where no response was ever correct."""
    r_tool: Sequence[float | None]
    reward: list[float]


def ppo_factor(m: int, c: float) -> float:
    return math.cos(m * math.pi / (2 * m + c)) if m else 1.0


def grpo_factor(m: int, n: int, c: float) -> float:
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
    """`stored_n` is the fewest calls that ever sufficed for this question. Without any such n no response was right:
    all are 0."""
    known = [m for m, ok in zip(m_G, correct_G, strict=True) if ok] + ([] if stored_n is None else [stored_n])
    n = min(known, default=None)
    if n is None:
        return GroupScore(None, [None] * len(m_G), [0.0] * len(m_G))
    r_tool = [grpo_factor(m, n, c) for m in m_G]
    return GroupScore(n, r_tool, [alpha * t * r for t, r in zip(r_tool, r_G, strict=True)])


def productivity(correct: Sequence[float], calls: Sequence[int]) -> dict[str, float | None]:
    """EM, calls per question (TC) and correct answers per call (TP), which nobody defines without calls."""
    return {
        "EM": sum(correct) / len(correct),
        "TC": sum(calls) / len(calls),
        "TP": sum(correct) / sum(calls) if sum(calls) else None,
    }


def otc(trajectory: Trajectory, task: Task, context: RewardContext, ask: Ask = on_the_spot) -> RewardParts:
    """The base reward of a correct response times the PPO factor, 0 for a wrong one.

    options: `c` (3, the paper's for code; 4 for search), `alpha` (1), `base` (math; any registered reward),
    `base_options` (a table). parts: those of the base, and `tool_efficiency`.
    """
    if strange := set(context.options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'otc'.")
    name = str(context.options.get("base", "math"))
    if name not in REGISTRY or name == "otc":
        bases = sorted(set(REGISTRY) - {"otc"})
        raise unknown(
            "reward.options.base",
            name,
            bases,
            "One of one's own is multiplied by reward.group = 'otc' (the paper's GRPO form).",
        )
    base = load(name)
    slow = {"ask": ask} if "ask" in inspect.signature(base).parameters else {}
    reward, correct, parts = base(
        trajectory, task, replace(context, options=context.options.get("base_options", {})), **slow
    )
    factor = ppo_factor(len(trajectory.calls), float(context.options.get("c", 3)))
    worth = float(context.options.get("alpha", 1)) * factor * reward if correct else 0.0
    return RewardParts(worth, correct, {**parts, "tool_efficiency": factor})


def otc_group(group: Group, context: RewardContext) -> list[float]:
    """The GRPO form on the rewards that the trajectories have; a wrong one counts 0. options: `c` (3), `alpha` (1).
    Sets `tool_efficiency`."""
    if strange := set(context.options) - set(GROUP_OPTIONS):
        raise unknown(
            "reward.group_options key", min(strange), GROUP_OPTIONS, "These are the options of reward.group = 'otc'."
        )
    valid = group.valid
    stored = context.prompt_counters.get(FEWEST)
    score = grpo_group(
        [len(t.calls) for t in valid],
        [t.parts["correct"] for t in valid],
        [t.scored if t.parts["correct"] else 0.0 for t in valid],
        c=float(context.options.get("c", 3)),
        alpha=float(context.options.get("alpha", 1)),
        stored_n=None if stored is None else int(stored),
    )
    if score.n is not None:
        context.lowest(FEWEST, score.n, prompt=True)
        for t in valid:
            t.parts["fewest_calls"] = float(score.n)
    for t, factor in zip(valid, score.r_tool, strict=True):
        t.parts["tool_efficiency"] = 0.0 if factor is None else factor
    return score.reward
