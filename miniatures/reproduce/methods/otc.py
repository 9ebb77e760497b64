"""OTC (arXiv 2504.14870) on ToRL: the reward times an efficiency of calls. Fewer calls at equal accuracy."""

from __future__ import annotations

from ..arms import TWICE_THE_RATE, UPDATES, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most, ratio
from .torl import GRPO, PROTOCOL

FEWER, WITHIN, PRODUCTIVE = 0.25, 0.02, 0.40
EVERY, PROBLEMS = 12, "256"
"""Held-out problems twice as many as elsewhere: of 128, four samples each, two evaluations of one model were 2.2 points
of accuracy apart once, and WITHIN is 2."""
METHOD = (*TWICE_THE_RATE, "--eval.max_samples", PROBLEMS)
FIGURES = ("calls_before", "calls", "productivity")
C = 3
"""The limit of calls, which is also the formulas' c."""
PPO = (
    "--filter.names", "--algo.advantage.estimator", "gae", "--critic.learning_rate", "1e-3", "--critic.updates", "4",
)  # fmt: skip
PLAIN = {"otc_ppo": "ppo", "otc_grpo": "torl"}
"""Arm -> the same algorithm without OTC. ToRL's is GRPO."""


def checks(arms: Arms) -> list[Check]:
    found = []
    for name, plain in PLAIN.items():
        arm, base = arms[name], arms[plain]
        found += [
            at_most(f"{name}: calls, as a share of those of {plain},", ratio(arm["calls"], base["calls"]), 1 - FEWER),
            at_least(f"{name}: accuracy minus that of {plain}", arm["accuracy"] - base["accuracy"], -WITHIN),
            at_least(
                f"{name}: right responses per call, as a multiple of those of {plain},",
                ratio(arm["productivity"], base["productivity"]),
                1 + PRODUCTIVE,
            ),
        ]
    return found


MINIATURE = Miniature(
    name="otc",
    title="OTC: fewer calls at equal accuracy",
    claim=(
        "With the reward times an efficiency of calls, PPO and GRPO (ToRL) answer as well as without it,"
        " with at least a quarter fewer calls."
    ),
    base=Base(
        "torl_calls",
        (*PROTOCOL, "--env.max_calls", str(C), "--rollout.max_new_tokens", "260", "--data.max_len", "360"),
    ),
    arms={
        "torl": Train((*METHOD, *GRPO), FIGURES, UPDATES, EVERY),
        "ppo": Train((*METHOD, *PPO), FIGURES, UPDATES, EVERY),
        "otc_ppo": Train(
            (*METHOD, *PPO, "--reward.name", "otc", "--reward.options", "base=torl", f"c={C}"),
            FIGURES,
            UPDATES,
            EVERY,
        ),
        "otc_grpo": Train(
            (*METHOD, *GRPO, "--reward.group", "otc", "--reward.group_options", f"c={C}"), FIGURES, UPDATES, EVERY
        ),
    },
    checks=checks,
    panels=(Panel("eval/accuracy", "Held-out accuracy"), Panel("eval/calls", "Calls per response")),
    columns=("accuracy_before", "accuracy", "calls_before", "calls", "productivity"),
    by_construction=(
        "The base was taught to run a program up to three times over, which changes nothing:"
        " calls that can be saved are there by construction."
    ),
)
