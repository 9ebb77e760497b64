"""Search-R1, and OTC on it (arXiv 2504.14870): exact match as the reward, a BM25 server as the environment."""

from __future__ import annotations

from ..arms import Train
from ..miniature import CORPUS, Arms, Base, Check, Miniature, Panel, at_least, at_most, ratio
from .tool_n1 import KL
from .torl import GRPO

ACCURACY, RISE, FEWER, WITHIN = 0.90, 0.4, 0.30, 0.03
UPDATES = 36
"""After 24 OTC's arm had saved its searches, and answered a tenth of the questions without one."""
C = 4
"""The limit of searches, which is also OTC's c."""
SEARCH = (
    "--env.name", "search", "--env.server_options", f"corpus={CORPUS}", "topk=1", "--env.protocol", "searchr1",
    "--env.max_calls", str(C),
)  # fmt: skip
LENGTHS = ("--rollout.max_new_tokens", "480", "--data.max_len", "560")
METHOD, FIGURES = (*GRPO, *KL), ("calls_before", "calls", "productivity")


def checks(arms: Arms) -> list[Check]:
    rl, otc = arms["rl"], arms["otc"]
    return [
        at_least("held-out exact match after RL", rl["accuracy"], ACCURACY),
        at_least("the rise of the exact match", rl["accuracy"] - rl["accuracy_before"], RISE),
        at_most("searches with OTC, as a share of those without,", ratio(otc["calls"], rl["calls"]), 1 - FEWER),
        at_least("exact match with OTC minus that without", otc["accuracy"] - rl["accuracy"], -WITHIN),
    ]


MINIATURE = Miniature(
    name="search_r1",
    title="Search-R1: a model learns to search",
    claim=(
        "Rewarded for exact answers alone, the model comes to search a corpus;"
        " with OTC's efficiency it searches less and answers as well."
    ),
    base=Base("search", (*SEARCH, *LENGTHS, "--reward.name", "searchr1", "--data.row_schema", "searchr1")),
    arms={
        "rl": Train(METHOD, FIGURES, UPDATES),
        "otc": Train((*METHOD, "--reward.group", "otc", "--reward.group_options", f"c={C}"), FIGURES, UPDATES),
    },
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out exact match"),
        Panel("eval/code_ratio", "Responses that search"),
        Panel("eval/calls", "Searches per response"),
    ),
    columns=("accuracy_before", "accuracy", "code_ratio_before", "code_ratio", *FIGURES),
    by_construction=(
        "The base was taught to make a search up to three times over, which changes nothing:"
        " searches that can be saved are there by construction."
    ),
)
