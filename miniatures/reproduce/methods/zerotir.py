"""ZeroTIR (arXiv 2505.07773): by the outcome reward alone a base model learns to use code, its accuracy rises."""

from __future__ import annotations

from ..arms import NO_TOOL, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least

ACCURACY, GREEDY, RISE, TOGETHER, BY_TOOL = 0.90, 0.97, 0.4, 0.9, 0.4
"""At temperature 1 copying noise bounds this model near .95; greedily it does not. RISE: accuracy and code ratio."""


def checks(arms: Arms) -> list[Check]:
    rl = arms["rl"]
    return [
        at_least("held-out accuracy after RL", rl["accuracy"], ACCURACY),
        at_least("greedy accuracy after RL", rl["greedy_accuracy"], GREEDY),
        at_least("the rise of the accuracy", rl["accuracy"] - rl["accuracy_before"], RISE),
        at_least("the rise of the code ratio", rl["code_ratio"] - rl["code_ratio_before"], RISE),
        at_least("the correlation of the two over the evaluations", rl["together"], TOGETHER),
        at_least(
            "accuracy after RL minus that of the same RL without the tool",
            rl["accuracy"] - arms["no_tool"]["accuracy"],
            BY_TOOL,
        ),
    ]


MINIATURE = Miniature(
    name="zerotir",
    title="ZeroTIR: code is discovered",
    claim=(
        "Rewarded for right answers alone, a base model comes to write and run code,"
        " accuracy and code ratio rise together, and without the tool the same RL does not get there."
    ),
    base=Base("quickstart"),
    arms={"rl": Train(figures=("together",)), "no_tool": Train(NO_TOOL)},
    checks=checks,
    panels=(Panel("eval/accuracy", "Held-out accuracy"), Panel("eval/code_ratio", "Held-out code ratio")),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "code_ratio_before", "code_ratio", "together"),
    by_construction=(
        "Only problems of code can be solved by this model: where accuracy rises the code ratio has to."
        " That it rises at all does not follow."
    ),
)
