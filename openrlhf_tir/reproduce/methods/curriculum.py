"""Curriculum by difficulty (data.curriculum; MoPPS, arXiv 2507.04632, and arXiv 2408.15099): late in a run most prompts
are always solved, and rollouts of them teach nothing. There is only something to choose where some problems stay harder
than others for longer than a prompt takes to come again: where all become easy at the same time, nothing is saved."""

from __future__ import annotations

from ..arms import Train
from ..miniature import Arms, Check, Miniature, Panel, at_least
from . import zerotir

FEWER, WITHIN = 1.5, 0.03
UPDATES, EVERY, PROMPTS = 36, 12, 240
"""Few problems seen often: a posterior is of groups that a prompt had before."""
SEEN_OFTEN = ("--data.max_samples", str(PROMPTS), "--train.num_episodes", "1000")
"""More passes than a run needs: it ends by its updates."""


def checks(arms: Arms) -> list[Check]:
    uniform, chosen = arms["uniform"], arms["difficulty"]
    return [
        at_least(
            "groups rolled for each that was trained in the last third, uniform over chosen by difficulty,",
            uniform["rolled_per_trained"] / chosen["rolled_per_trained"],
            FEWER,
        ),
        at_least(
            "held-out accuracy, chosen by difficulty minus uniform,", chosen["accuracy"] - uniform["accuracy"], -WITHIN
        ),
    ]


def arm(*flags: str) -> Train:
    return Train((*SEEN_OFTEN, *flags), figures=("rolled_per_trained",), updates=UPDATES, every=EVERY)


MINIATURE = Miniature(
    name="curriculum",
    title="Curriculum: fewer rollouts for each group that is trained",
    claim="Prompts whose groups are likely to be kept cost fewer rollouts late in a run, and nothing is lost by it.",
    base=zerotir.MINIATURE.base,
    arms={"uniform": arm(), "difficulty": arm("--data.curriculum", "difficulty")},
    checks=checks,
    panels=(
        Panel("rolled per trained", "Groups rolled for each that was trained"),
        Panel("eval/accuracy", "Held-out accuracy"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "rolled_per_trained"),
)
