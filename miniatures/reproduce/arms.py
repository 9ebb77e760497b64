"""Arms: what is run, as commands of this program, and what is read of it afterwards.

Train     RL from the base by `openrlhf-tir train`; the figures of its metrics
Tune      fine-tuning of the base by `openrlhf-tir sft`, then `openrlhf-tir eval`
Sweep     another arm's model under several N, by `openrlhf-tir eval --sweep env.max_calls=...`; no training
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from openrlhf_tir.telemetry import metrics

from .commands import Command
from .measures import MEASURES, USUAL, Curves, curves_of

RECIPE = "quickstart_cpu"
TUNING_RATE = "1e-3"
"""Half of the cold start's peak: batches are as small as its."""
TWICE_THE_RATE = ("--actor.learning_rate", "1e-3")
"""Twice the recipe's, for every arm of a comparison whose curves were still rising at the end with that: two cores have
no time for twice the updates."""
WARM = ("--actor.lr_warmup_ratio", "0.1")
"""Adam's first steps are as long as the rate, whatever the gradient: without it `toolrl` (1e-3, seed 42) and `skyrl`
(5e-4, seed 7) lost their format within six updates and never found it again."""
NO_TOOL = ("--env.max_calls", "0", "--filter.names")
"""Flags of an arm without the tool. Nothing is filtered: nearly all of its groups are all wrong, and a run that trains
on none of them ends as unproductive, without a figure."""
UPDATES, EVERY, PROBLEMS = 24, 6, 128
"""The quickstart's updates; between two evaluations, each of which takes as long as four to eight updates; held-out
problems, four samples each."""


class Place(NamedTuple):
    """Where an arm runs: `directory` is its own, `seed_dir` holds those of all arms of the seed, `base` is a run
    directory with base/ and data/."""

    directory: Path
    seed_dir: Path
    base: Path
    flags: tuple[str, ...]
    seed: int

    @property
    def started(self) -> list[str]:
        """Flags of every command of an arm."""
        data = [
            "--data.prompt_dataset",
            str(self.base / "data/train.jsonl"),
            "--eval.dataset",
            str(self.base / "data/test.jsonl"),
        ]
        return [
            "--recipe", RECIPE, "--run-dir", str(self.directory), "--train.seed", str(self.seed), *data, *self.flags,
        ]  # fmt: skip


class Read(NamedTuple):
    """The figures of an arm by name, and its curves."""

    figures: dict[str, float]
    curves: Curves


def tuning(place: Place, samples: int) -> Command:
    """Return the command that fine-tunes the base on `samples` of the lesson's examples, each once.

    Its model is in `directory`/model.
    """
    directory, base = place.directory.with_name(f"{place.directory.name}_start"), place.base / "base"
    words = [
        "sft", "--recipe", "sft_cpu", "--run-dir", str(directory), "--train.seed", str(place.seed),
        "--train.overwrite", "true",
    ]  # fmt: skip
    words += ["--actor.model_name_or_path", str(base), "--sft.dataset", str(place.base / "data/sft.jsonl")]
    words += ["--sft.learning_rate", TUNING_RATE, "--sft.max_len", "320"]
    words += [
        "--data.max_samples",
        str(samples),
        "--sft.max_epochs",
        "1",
        "--sft.append_eos",
        "true",
        "--sft.input_template",
        "user_assistant",
    ]
    return Command(words, directory, resumes=True, of=(base,))


class Arm(Protocol):
    """One side of a comparison."""

    @property
    def settings(self) -> str:
        """What tells this arm from one with other settings."""
        return repr(self)

    def commands(self, place: Place) -> list[Command]:
        """Return the commands, which are run one after the other."""

    def read(self, place: Place) -> Read:
        """Return the figures and curves, after all commands have ended well."""


@dataclass(frozen=True)
class Train(Arm):
    """An arm: RL from the base.

    Attributes:
        flags: Flags in addition to the recipe's and the protocol's.
        figures: Names in MEASURES, in addition to the usual ones.
        updates: Updates of the learner.
        every: Updates between two evaluations.
        tuned: Samples of a fine-tuning before it; 0: none.
    """

    flags: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    updates: int = UPDATES
    every: int = EVERY
    tuned: int = 0

    def commands(self, place: Place) -> list[Command]:
        model, before = place.base / "base", []
        if self.tuned:
            before = [tuning(place, self.tuned)]
            model = before[0].directory / "model"
        of_length = [
            "--train.max_steps",
            str(self.updates),
            "--eval.steps",
            str(self.every),
            "--eval.wait",  # they take as long as several updates: training beside them would be of older samples
            "--eval.max_samples",
            str(PROBLEMS),
        ]
        words = ["train", *place.started, "--actor.model_name_or_path", str(model), *of_length, *self.flags]
        words += ["--train.overwrite", "true"]  # an arm is run again when what it starts from has changed
        return [*before, Command(words, place.directory, resumes=True, of=(model,))]

    def read(self, place: Place) -> Read:
        columns = metrics.read(place.directory)
        found = {name: MEASURES[name](columns) for name in (*USUAL, *self.figures)}
        return Read({name: value for name, value in found.items() if value is not None}, curves_of(columns))


@dataclass(frozen=True)
class Tune(Arm):
    """An arm: fine-tuning on `samples` of the lesson's examples, each once. Its figures are those of the model."""

    samples: int

    def commands(self, place: Place) -> list[Command]:
        before, out = tuning(place, self.samples), figures_file(place)
        model = before.directory / "model"
        words = ["eval", *place.started, "--model", str(model), "--eval.max_samples", str(PROBLEMS), "--out", str(out)]
        return [before, Command(words, place.directory, of=(model,), out=out)]

    def read(self, place: Place) -> Read:
        said = json.loads(figures_file(place).read_text())
        figures = {name: said["sampled"][name] for name in ("accuracy", "code_ratio")} | {
            "greedy_accuracy": said["greedy"]["accuracy"]
        }
        return Read({name: value for name, value in figures.items() if value is not None}, {})


@dataclass(frozen=True)
class Sweep(Arm):
    """An arm: the model of another arm, `of`, with each of `calls` calls at most.

    Its figures are accuracy_N and calls_N, for each number N.
    """

    of: str
    calls: tuple[int, ...]

    def commands(self, place: Place) -> list[Command]:
        model, out = place.seed_dir / self.of / "model", figures_file(place)
        values = ",".join(map(str, self.calls))
        words = [
            "eval", *place.started, "--model", str(model), "--eval.max_samples", str(PROBLEMS),
            "--sweep", f"env.max_calls={values}",
        ]  # fmt: skip
        return [Command([*words, "--out", str(out)], place.directory, of=(model,), out=out)]

    def read(self, place: Place) -> Read:
        (suite,) = json.loads(figures_file(place).read_text())["suites"].values()
        return swept_figures(suite, self.calls)


def figures_file(place: Place) -> Path:
    """Return the file to which an evaluation writes the arm's figures."""
    return place.directory.with_name(f"{place.directory.name}.figures.json")


def swept_figures(suite: Mapping[str, Mapping], calls: Sequence[int]) -> Read:
    """Return the figures and curves of a sweep.

    Args:
        suite: What `eval --out` writes of one set under a sweep, by the swept value as text.
        calls: The swept values.
    """
    average = {n: suite[str(n)][f"avg@{suite[str(n)]['n']}"][0] for n in calls}
    made = {n: suite[str(n)]["tools"]["calls"][0] for n in calls}
    figures = {f"accuracy_{n}": value for n, value in average.items()} | {
        f"calls_{n}": value for n, value in made.items()
    }
    return Read(figures, {"accuracy by N": [*average.items()], "calls by N": [*made.items()]})
