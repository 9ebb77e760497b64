"""Curriculum by difficulty (data.curriculum; MoPPS, arXiv 2507.04632, and arXiv 2408.15099): of the prompts of a real
set some are never solved and, late in a run, many always, and rollouts of them teach nothing. There is only something
to choose where problems stay harder or easier than others for longer than a prompt takes to come again."""

from __future__ import annotations

from ..arms import Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least

FEWER, WITHIN = 1.5, 0.03
UPDATES, EVERY, PROMPTS = 30, 10, 240
"""Few problems seen often: a posterior is of groups that a prompt had before."""
SIZES = ("--rollout.batch_size", "8")
"""Half of the recipe's: without a choice a group that is trained costs up to twenty that are not."""
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
    return Train((*SIZES, *SEEN_OFTEN, *flags), figures=("rolled_per_trained",), updates=UPDATES, every=EVERY)


MINIATURE = Miniature(
    name="curriculum",
    title="Curriculum: fewer rollouts for each group that is trained",
    claim="Prompts whose groups are likely to be kept cost fewer rollouts late in a run, and nothing is lost by it.",
    base=Base("out_of_reach"),
    arms={"uniform": arm(), "difficulty": arm("--data.curriculum", "difficulty")},
    checks=checks,
    panels=(
        Panel("rolled per trained", "Groups rolled for each that was trained"),
        Panel("eval/accuracy", "Held-out accuracy"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "rolled_per_trained"),
    by_construction=(
        "Two of three training problems are out of reach: whoever ceases to ask for them saves most. What is seen is"
        " that the posterior finds them though a quarter of its draws explore, and that no accuracy is lost."
    ),
)
