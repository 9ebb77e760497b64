"""ToRL (arXiv 2503.23383): GRPO on a base model with an interpreter, +1 or -1, one call."""

from __future__ import annotations

from ..arms import NO_TOOL, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least

ACCURACY, RISE, BY_TOOL = 0.90, 0.4, 0.4
UPDATES, EVERY = 36, 9
"""Half as many again as the quickstart's: nothing is filtered, and 24 took seed 11 to 86.7 %."""
PROTOCOL = ("--env.protocol", "torl", "--reward.name", "torl")
GRPO = ("--algo.advantage.estimator", "group_norm", "--actor.eps_clip_low_high", "0.2", "0.2", "--filter.names")
"""Flags that say what recipes/common/verl_grpo.toml says: no filter, so a group that is all right has advantage 0 and
counts in the mean."""


def checks(arms: Arms) -> list[Check]:
    rl = arms["rl"]
    return [
        at_least("held-out accuracy after RL", rl["accuracy"], ACCURACY),
        at_least("the rise of the accuracy", rl["accuracy"] - rl["accuracy_before"], RISE),
        at_least("the rise of the code ratio", rl["code_ratio"] - rl["code_ratio_before"], RISE),
        at_least(
            "the pass rate of the calls of right responses minus that of wrong ones",
            rl["pass_correct"] - rl["pass_incorrect"],
            0.05,
        ),
        at_least(
            "accuracy after RL minus that of the same RL without the tool",
            rl["accuracy"] - arms["no_tool"]["accuracy"],
            BY_TOOL,
        ),
    ]


MINIATURE = Miniature(
    name="torl",
    title="ToRL: RL on a base model with an interpreter",
    claim=(
        "Accuracy and code ratio rise, which the same RL without the tool does not bring, and the programs of right"
        " responses run more often than those of wrong ones."
    ),
    base=Base("torl", (*PROTOCOL, "--env.max_calls", "1")),
    arms={
        "rl": Train(GRPO, figures=("pass_correct", "pass_incorrect"), updates=UPDATES, every=EVERY),
        "no_tool": Train((*GRPO, *NO_TOOL), updates=UPDATES, every=EVERY),
    },
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out accuracy"),
        Panel("eval/code_ratio", "Held-out code ratio"),
        Panel("code_pass_correct", "Calls that ran, in right responses"),
        Panel("code_pass_incorrect", "Calls that ran, in wrong responses"),
    ),
    columns=("accuracy_before", "accuracy", "code_ratio_before", "code_ratio", "pass_correct", "pass_incorrect"),
    by_construction=(
        "The base was taught that one program in twelve does not run, so that there are some."
        " That right responses have few of them follows."
    ),
)
