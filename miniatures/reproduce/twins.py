"""Twins: methods whose claim is tried with a real language model, SmolLM2-135M-Instruct, beside the toy miniatures.

Every arm is the quickstart of a task (miniatures/tasks.py) with flags of its own, on two CPU cores or on one GPU,
whichever the machine has; or an evaluation of a model on the held-out rows of another arm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from openrlhf_tir.errors import unknown
from openrlhf_tir.machine.gpus import usable_gpus
from openrlhf_tir.telemetry import metrics

from ..results import FIGURES, evaluation_in, evaluations
from ..seeds import digest
from ..tasks import NUMBERS, TASKS
from .arms import NO_TOOL, Arm, Place, Read, figures_file
from .commands import Command
from .measures import MEASURES, USUAL, curves_of
from .miniature import Arms, Check, Miniature, Packaged, Panel, at_least, at_most

MODEL = "smollm2"
LENIENT = ("--reward.name", "miniatures.lookup_reward:contained")
"""Flags of an evaluation: the right answer may stand anywhere in what the model says."""
FUNCTIONS = "functions"
SEARCH = "search"
THREE_CALLS = (
    "--env.max_calls", "3", "--rollout.max_new_tokens", "160", "--data.max_len", "336",
    "--algo.advantage.estimator", "group_norm", "--filter.names", "[]",
)  # fmt: skip
"""GRPO with up to three calls. Nothing is filtered: a group that is all right still differs in its calls."""
EIGHT_UPDATES = ("--train.max_steps", "8")
"""What a cold start gains shows early: after the recipe's twenty updates RL alone has nearly everything right too."""


def recipe_of(task: str) -> str:
    """Return the task's recipe for this machine."""
    recipe = TASKS[task].recipe
    return recipe.replace("_cpu", "_one_gpu") if usable_gpus() else recipe


@dataclass(frozen=True)
class Quickstart(Arm):
    """An arm: RL by `quickstart --model smollm2`, evaluated before and after.

    Attributes:
        task: The task, a key of TASKS.
        flags: Flags in addition to the recipe's.
        figures: Names in MEASURES, in addition to the usual ones.
        cold_start: Demonstrations of the cold start; None for the task's own number.
    """

    task: str = NUMBERS
    flags: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    cold_start: int | None = None

    @property
    def settings(self) -> str:
        """Digest of the resolved settings."""
        task = TASKS[self.task]
        demonstrations = task.cold_start if self.cold_start is None else self.cold_start
        return digest(task, recipe_of(self.task), self.flags, demonstrations)

    def commands(self, place: Place) -> list[Command]:
        """Return the quickstart's command."""
        model = place.base / "base"
        number = () if self.cold_start is None else ("--cold-start", str(self.cold_start))
        words = [
            "quickstart", "--model", MODEL, "--task", self.task, *number, "--recipe", recipe_of(self.task),
            "--run-dir", str(place.directory), "--train.seed", str(place.seed),
            "--actor.model_name_or_path", str(model), *self.flags,
        ]  # fmt: skip
        settings = f"{self.settings}/{place.seed}"
        return [Command(words, place.directory, resumes=True, of=(model,), settings=settings)]

    def read(self, place: Place) -> Read:
        """Return the figures of the run's metrics, and those of the trained kinds and of the others alone."""
        columns = metrics.read(place.directory)
        found = {name: MEASURES[name](columns) for name in (*USUAL, *self.figures)}
        unseen = TASKS[self.task].unseen
        for suffix, evaluation in zip(("_before", ""), evaluations(place.directory), strict=True):
            if evaluation is not None:
                for figure in FIGURES:
                    found[f"trained_kinds_{figure}{suffix}"] = evaluation.mean(
                        figure, unseen=False, unseen_kinds=unseen
                    )
                    found[f"other_kinds_{figure}{suffix}"] = evaluation.mean(figure, unseen=True, unseen_kinds=unseen)
        return Read({name: value for name, value in found.items() if value is not None}, curves_of(columns))


@dataclass(frozen=True)
class Evaluated(Arm):
    """An arm: an evaluation by the settings of another arm, without training unless `tuned` asks for some.

    Attributes:
        of: The arm whose settings and held-out rows are used. It comes before this one.
        model: "base", or the arm whose model is measured.
        rows: File of the other arm's data.
        flags: Flags in addition to the other arm's settings.
        tuned: Fine-tune the base first, on all demonstrations of the other arm's task, and measure the result.
        task: The other arm's task, which says what kinds are trained.
    """

    of: str
    task: str
    model: str = "base"
    rows: str = "test.jsonl"
    flags: tuple[str, ...] = ()
    tuned: bool = False

    def commands(self, place: Place) -> list[Command]:
        """Return the fine-tuning if there is one, and the evaluation."""
        other = place.seed_dir / self.of
        model = place.base / "base" if self.model == "base" else place.seed_dir / self.model / "model"
        before: list[Command] = []
        if self.tuned:
            directory = place.directory.with_name(f"{place.directory.name}_start")
            words = [
                "sft", "--recipe", str(other / "config.toml"), "--run-dir", str(directory),
                "--train.seed", str(place.seed), "--actor.model_name_or_path", str(model),
                "--sft.dataset", str(other / "data" / "demonstrations.jsonl"), "--train.overwrite", "true",
            ]  # fmt: skip
            before = [Command(words, directory, resumes=True, of=(model,))]
            model = directory / "model"
        words = [
            "eval", "--recipe", str(other / "config.toml"), "--run-dir", str(place.directory), "--model", str(model),
            "--eval.dataset", str(other / "data" / self.rows), *self.flags, "--out", str(figures_file(place)),
        ]  # fmt: skip
        return [*before, Command(words, place.directory, of=(model,), out=figures_file(place))]

    def read(self, place: Place) -> Read:
        """Return the figures of the evaluation, also by kind of problem."""
        results: Mapping[str, dict] = json.loads(figures_file(place).read_text(encoding="utf-8"))
        figures: dict[str, float | None] = {
            "accuracy": results["sampled"]["accuracy"],
            "greedy_accuracy": results["greedy"]["accuracy"],
            "code_ratio": results["sampled"]["code_ratio"],
        }
        evaluation = evaluation_in(figures_file(place))
        unseen = TASKS[self.task].unseen
        for figure in FIGURES:
            figures[f"trained_kinds_{figure}"] = evaluation.mean(figure, unseen=False, unseen_kinds=unseen)
            figures[f"other_kinds_{figure}"] = evaluation.mean(figure, unseen=True, unseen_kinds=unseen)
        return Read({name: value for name, value in figures.items() if value is not None}, {})


def _torl(arms: Arms) -> list[Check]:
    with_tool, without = arms["tool"], arms["no_tool"]
    return [
        at_least("accuracy with the tool minus that without", with_tool["accuracy"] - without["accuracy"], 0.3),
        at_least("the rise of the accuracy with the tool", with_tool["accuracy"] - with_tool["accuracy_before"], 0.3),
    ]


def _zerotir(arms: Arms) -> list[Check]:
    with_tool = arms["tool"]
    return [
        *_torl(arms),
        at_least("the rise of the code ratio", with_tool["code_ratio"] - with_tool["code_ratio_before"], 0.2),
    ]


def _zero_tir_rl(arms: Arms) -> list[Check]:
    on, scheduled = arms["on"], arms["off_then_on"]
    return [
        at_least("the rise of the accuracy with the mask on", on["accuracy"] - on["accuracy_before"], 0.3),
        at_least("accuracy off-then-on minus accuracy on", scheduled["accuracy"] - on["accuracy"], -0.03),
    ]


def _interaction_scaling(arms: Arms) -> list[Check]:
    figure = "trained_kinds_sampled"
    none, one, two, four = (arms[name][figure] for name in ("none", "one", "rl", "four"))
    return [
        at_least("accuracy with one search minus that with none", one - none, 0.3),
        at_least("accuracy with two searches minus that with one", two - one, 0.05),
        at_most("the distance of the accuracy with four searches from that with two", abs(four - two), 0.03),
    ]


def _retool(arms: Arms) -> list[Check]:
    alone, both = arms["rl"], arms["sft_rl"]
    return [
        at_least("accuracy of RL after a cold start minus RL's alone", both["accuracy"] - alone["accuracy"], 0.05),
        at_least("what RL adds to the cold start", both["accuracy"] - both["accuracy_before"], 0.05),
    ]


def _otc(arms: Arms) -> list[Check]:
    plain, otc = arms["grpo"], arms["otc_grpo"]
    share = otc["calls"] / plain["calls"] if plain["calls"] else 1.0  # without calls there is nothing to save
    return [
        at_most("calls with OTC, as a share of GRPO's,", share, 0.9),
        at_least("accuracy with OTC minus GRPO's", otc["accuracy"] - plain["accuracy"], -0.03),
    ]


def _tool_n1(arms: Arms) -> list[Check]:
    """Irrelevance is left out: nothing that is trained says when not to call."""
    rl, tuned = arms["rl"], arms["sft"]
    figure = "trained_kinds_sampled"
    return [
        at_least("what RL adds to the cold start", rl[figure] - rl[f"{figure}_before"], 0.15),
        at_least("accuracy of RL minus that of fine-tuning on all rows", rl[figure] - tuned[figure], 0.0),
    ]


def _search_r1(arms: Arms) -> list[Check]:
    rl, untrained = arms["rl"], arms["untrained"]
    return [
        at_least("exact match after RL minus the untrained model's", rl["accuracy"] - untrained["accuracy"], 0.3),
        at_least("what RL adds to the cold start", rl["accuracy"] - rl["accuracy_before"], 0.05),
        at_least(
            "answers that hold the right one, after RL, minus those of the untrained model with the passage in its"
            " prompt",
            arms["rl_lenient"]["accuracy"] - arms["passages"]["accuracy"],
            0.0,
        ),
    ]


def _pipeline(arms: Arms) -> list[Check]:
    pipeline, sync = arms["pipeline"], arms["sync"]
    share = pipeline["seconds_to_60"] / sync["seconds_to_60"]
    return [
        at_least("accuracy of 60 % is reached in mode pipeline (1: yes)", pipeline["reached_60"], 1.0),
        at_most("seconds to 60 % in mode pipeline, as a share of mode sync's,", share, 0.8),
    ]


_HELD_OUT = Panel("eval/accuracy", "Held-out accuracy")
_CODE = Panel("eval/code_ratio", "Responses with a call")
_COLUMNS = ("accuracy_before", "accuracy", "greedy_accuracy", "code_ratio_before", "code_ratio")


def _twin(
    name: str, title: str, claim: str, arms: Mapping[str, Arm], checks, *more: str, by_construction: str = ""
) -> Miniature:
    return Miniature(
        name=name,
        title=title,
        claim=claim,
        base=Packaged(MODEL),
        arms=arms,
        checks=checks,
        panels=(_HELD_OUT, _CODE),
        columns=(*_COLUMNS, *more),
        by_construction=by_construction,
    )


TWINS = {
    twin.name: twin
    for twin in (
        _twin(
            "zerotir",
            "ZeroTIR with SmolLM2: code is used more and more",
            "Rewarded for right answers alone, the model runs code more often and is right more often; without the tool"
            " the same RL does not get there.",
            {"tool": Quickstart(), "no_tool": Quickstart(flags=NO_TOOL)},
            _zerotir,
        ),
        _twin(
            "zero_tir_rl",
            "ZERO-TIR-RL with SmolLM2: what masking tool output does",
            "Training on tool output first and masking it from then on ends as high as masking it always.",
            {
                "on": Quickstart(),
                "off_then_on": Quickstart(flags=("--train.env_mask_from", "6")),
                "off": Quickstart(flags=("--train.env_mask_from", "never", "--filter.names", "[]")),
            },
            _zero_tir_rl,
        ),
        _twin(
            "interaction_scaling",
            "Interaction scaling with SmolLM2: accuracy by the number of searches",
            "The same model answers more with more searches, up to the number that the questions need, and no more"
            " beyond.",
            {
                "rl": Quickstart(SEARCH),
                **{
                    name: Evaluated("rl", SEARCH, model="rl", flags=("--env.max_calls", number))
                    for name, number in (("none", "0"), ("one", "1"), ("four", "4"))
                },
            },
            _interaction_scaling,
            "trained_kinds_sampled",
            by_construction="Six of the eight trained kinds of question need one search and two need two.",
        ),
        _twin(
            "torl",
            "ToRL with SmolLM2: RL with a tool against RL without",
            "RL with a Python call answers questions about numbers that the same RL without it does not.",
            {
                "tool": Quickstart(),
                "no_tool": Quickstart(flags=NO_TOOL),
            },
            _torl,
        ),
        _twin(
            "retool",
            "ReTool with SmolLM2: a cold start, then RL",
            "After a short cold start eight updates of RL end higher than eight without it, and than the cold start.",
            {"rl": Quickstart(flags=EIGHT_UPDATES), "sft_rl": Quickstart(flags=EIGHT_UPDATES, cold_start=32)},
            _retool,
        ),
        _twin(
            "otc",
            "OTC with SmolLM2: fewer calls at equal accuracy",
            "With OTC's efficiency in its reward, GRPO answers as well with fewer calls than GRPO without.",
            {
                "grpo": Quickstart(flags=THREE_CALLS, figures=("calls_before", "calls", "productivity")),
                "otc_grpo": Quickstart(
                    flags=(*THREE_CALLS, "--reward.group", "otc", "--reward.group_options", "c=3"),
                    figures=("calls_before", "calls", "productivity"),
                ),
            },
            _otc,
            "calls_before",
            "calls",
            "productivity",
        ),
        _twin(
            "tool_n1",
            "Tool-N1 with SmolLM2: a binary reward, against fine-tuning on the same rows",
            "RL with a binary reward calls functions that were never trained better than fine-tuning on all rows does.",
            {
                "rl": Quickstart(FUNCTIONS),
                "untrained": Evaluated("rl", FUNCTIONS),
                "sft": Evaluated("rl", FUNCTIONS, tuned=True),
            },
            _tool_n1,
            "trained_kinds_sampled_before",
            "trained_kinds_sampled",
            "trained_kinds_greedy",
            "other_kinds_sampled",
        ),
        _twin(
            "search_r1",
            "Search-R1 with SmolLM2: a model learns to search",
            "Rewarded for exact answers alone, the model searches, and answers what it could not.",
            {
                "rl": Quickstart(SEARCH),
                "untrained": Evaluated("rl", SEARCH),
                "passages": Evaluated(
                    "rl", SEARCH, rows="test_with_passages.jsonl", flags=("--env.max_calls", "0", *LENIENT)
                ),
                "rl_lenient": Evaluated("rl", SEARCH, model="rl", flags=LENIENT),
            },
            _search_r1,
        ),
        _twin(
            "pipeline",
            "The asynchronous pipeline with SmolLM2: time to accuracy",
            "Rollout beside the learner reaches the same accuracy in less time than one after the other.",
            {
                "pipeline": Quickstart(figures=("seconds_to_60", "reached_60", "seconds_per_update")),
                "sync": Quickstart(
                    flags=("--pipeline.mode", "sync", "--pipeline.max_staleness", "0"),
                    figures=("seconds_to_60", "reached_60", "seconds_per_update"),
                ),
            },
            _pipeline,
            "seconds_to_60",
            "seconds_per_update",
        ),
    )
}
"""Twins by name. `pipeline` has no toy: the others are of the miniature of the same name."""


def named(name: str) -> Miniature:
    """Return the twin `name`.

    Raises:
        ConfigError: There is none.
    """
    if name not in TWINS:
        raise unknown(
            f"miniature with --model {MODEL}", name, TWINS, "Without --model there are more: --list shows them all."
        )
    return TWINS[name]
