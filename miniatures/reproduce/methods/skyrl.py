"""SkyRL-v0 (NovaSky, May 2025): an agent with bash, an editor and `finish` mends repositories; the reward is whether
hidden tests pass on its patch."""

from __future__ import annotations

from ...toy.lessons.mending import SHOWN, TURNS
from ..arms import WARM, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most
from .tool_n1 import KL
from .torl import GRPO

BEFORE, AFTER, RISE = 0.35, 0.75, 0.4
PROBLEMS = "64"
"""Each of their samples that changes a file is judged by a pytest of its own."""
AGENT = (
    "--env.name", "swe", "--env.protocol", "skyrl", "--env.max_calls", str(TURNS),
    "--env.output_max_tokens", str(SHOWN), "--env.step_timeout_s", "120",
)  # fmt: skip
REWARD = ("--reward.name", "env", "--reward.options", "signals=viewed_first")
CHAT = ("--data.apply_chat_template", "true", "--data.input_template", "{}")
LENGTHS = (
    "--rollout.max_new_tokens", "720", "--data.max_len", "790", "--vllm.kv_cache_mib", "192",
    "--eval.max_samples", PROBLEMS,
)  # fmt: skip
"""Room for what no example does: a guess that is refused, a look, and an edit. A response that is cut before its last
call is not judged."""
SIZES = ("--rollout.batch_size", "8", "--train.micro_batch_size", "8", "--eval.max_samples", PROBLEMS)
"""Rows of 620 tokens, forward and backward on one core: 16 at once took a third longer each than 8, 32 over a half."""


UPDATES, EVERY = 32, 8
"""With 24 and no warm-up the format was lost for good by update 6 on seed 7, and on seed 42 the curve still rose."""


def checks(arms: Arms) -> list[Check]:
    rl = arms["rl"]
    return [
        at_most("held-out share of repositories that are resolved before RL", rl["accuracy_before"], BEFORE),
        at_least("the same after RL", rl["accuracy"], AFTER),
        at_least(
            "the rise of the share of those whose file was read before it was edited",
            rl["viewed"] - rl["viewed_before"],
            RISE,
        ),
    ]


MINIATURE = Miniature(
    name="skyrl",
    title="SkyRL: an agent that mends repositories",
    claim=(
        "Rewarded for hidden tests that pass, the agent resolves more repositories,"
        " and comes to look at a file before it edits it."
    ),
    base=Base("mending", (*AGENT, *REWARD, *CHAT, *LENGTHS)),
    arms={
        "rl": Train((*WARM, *GRPO, *KL, *SIZES), ("viewed_before", "viewed", "calls_before", "calls"), UPDATES, EVERY)
    },
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out repositories that are resolved"),
        Panel("eval/reward/viewed_first", "Held-out: read before it was edited"),
        Panel("eval/calls", "Calls per response"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "viewed_before", "viewed", "calls"),
    by_construction=(
        "The base was taught to read the file in a quarter of its examples, and to guess what stands in it in the"
        " others. A guess is right hardly ever, so resolving more and reading first are nearly one thing here; what is"
        " seen is whether the verdict of the hidden tests alone finds it."
    ),
)
