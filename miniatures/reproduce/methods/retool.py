"""ReTool (arXiv 2504.11536): a cold start on traces with code, then RL; beside each alone, on as many samples."""

from __future__ import annotations

from ..arms import Train, Tune
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most

UPDATES, EVERY = 48, 12
"""Twice the quickstart's: nothing is filtered, so that most groups of a late batch have no gradient. After 24 updates
RL after the cold start was at 85.0 % (seed 7), and rising; at twice the rate at 74.4 %."""
A_BATCH = 16 * 8
"""Samples of an update of RL: prompts, responses to each."""
START = 12 * A_BATCH
"""Traces of the cold start: as many as twelve updates of RL sample."""
RL_ALONE, TUNED, BOTH = 0.20, 0.45, 0.90
TURNS = (
    "--env.protocol", "retool", "--env.max_calls", "2", "--reward.name", "retool", "--rollout.max_new_tokens", "200",
    "--data.max_len", "280",
)  # fmt: skip
GRPO = (
    "--algo.advantage.estimator",
    "group_norm",
    "--actor.eps_clip_low_high",
    "0.2",
    "0.28",
    "--actor.dual_clip",
    "10",
    "--filter.names",
)


def checks(arms: Arms) -> list[Check]:
    alone, tuned, both = (arms[name]["accuracy"] for name in ("base_rl", "sft", "sft_rl"))
    return [
        at_most("held-out accuracy of RL from the base", alone, RL_ALONE),
        at_most("held-out accuracy of fine-tuning alone", tuned, TUNED),
        at_least("held-out accuracy of RL after a cold start", both, BOTH),
    ]


MINIATURE = Miniature(
    name="retool",
    title="ReTool: a cold start, then RL",
    claim=(
        "On equal samples, RL after a cold start on traces with code beats both RL from the base and fine-tuning alone."
    ),
    base=Base("retool", TURNS),
    arms={
        "base_rl": Train(GRPO, (), UPDATES + START // A_BATCH, EVERY),
        "sft": Tune(START + UPDATES * A_BATCH),
        "sft_rl": Train(GRPO, (), UPDATES, EVERY, tuned=START),
    },
    checks=checks,
    panels=(Panel("eval/accuracy", "Held-out accuracy"), Panel("eval/code_ratio", "Held-out code ratio")),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "code_ratio_before", "code_ratio"),
    by_construction=(
        "The base never runs a program, so RL alone has nothing to reward; and seven of ten traces of the cold start"
        " state an answer without one, so fine-tuning alone keeps to that share."
    ),
)
