"""The plan of an evaluation: what is sampled of which sets under which settings, and where the items are kept.

Nothing heavy runs before the plan is complete.

DIR/SUITE/                    or, in a sweep, DIR/SUITE/max_calls=4/ and so on: one store each (store.py)
DIR/SUITE/problems.jsonl      the set's rows in our form
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ..config import Config, Data
from ..config.environments import entry_of
from ..data.json_rows import read_json
from ..errors import ConfigError
from ..types import Task
from .generated import with_rows
from .settings import SWEPT, Sampled, parse_sweep
from .store import PROBLEMS
from .suites import Suite, convert, find, reward_for, size_fact

OWN = "own"
"""The name of the rows of eval.dataset, in place of a suite's."""


@dataclass(frozen=True, slots=True)
class PlannedSet:
    """One set.

    Attributes:
        name: Name of the suite, or OWN.
        data: How its rows are read.
        directory: Where its items go.
        rows: Number of its rows; None for the user's own rows.
        published: Number of rows of the published set; None for the user's own rows.
        facts: Lines to print about it.
    """

    name: str
    data: Data
    directory: Path
    rows: int | None
    published: int | None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is evaluated.

    Attributes:
        cfg: The configuration, with the reward that grades the sets.
        sets: The sets.
        settings: The settings, one unless a setting is swept.
        swept: The key of the swept setting; "" if none is.
    """

    cfg: Config
    sets: list[PlannedSet]
    settings: list[Sampled]
    swept: str = ""

    def directory(self, planned: PlannedSet, sampling: Sampled) -> Path:
        """Return the directory of a set's items under a setting."""
        if not self.swept:
            return planned.directory
        return planned.directory / f"{SWEPT[self.swept]}={self.value(sampling):g}"

    def value(self, sampling: Sampled) -> float:
        """Return the value of the swept setting."""
        return float(getattr(sampling, SWEPT[self.swept]))


def plan(cfg: Config, named: Sequence[str], suites_dir: str | Path, items_dir: Path, sweep: str | None) -> Plan:
    """Find, generate and convert the sets.

    Args:
        cfg: The configuration.
        named: The suites, NAME or NAME=FILE.
        suites_dir: Where files of suites are looked for.
        items_dir: Where items are kept.
        sweep: KEY=VALUE,VALUE; None for one setting.

    Raises:
        ConfigError: There is nothing to evaluate, a file is missing, or one reward cannot grade all sets.
        DataError: A file has rows of another form.
    """
    swept, settings = parse_sweep(sweep, Sampled.of(cfg)) if sweep else ("", [Sampled.of(cfg)])
    if not named:
        if not cfg.eval.dataset:
            raise ConfigError(
                "There is nothing to evaluate. Give --suite NAME (openrlhf-tir eval --list-suites), or your own rows:"
                " --eval.dataset FILE."
            )
        return Plan(cfg, [PlannedSet(OWN, cfg.held_out, items_dir / OWN, None, None)], settings, swept)
    if cfg.eval.dataset:
        raise ConfigError("--suite and --eval.dataset are both given. Evaluate one after the other.")
    if cfg.envs:
        raise ConfigError(
            f"A suite is for one environment, and this recipe has {', '.join(cfg.envs)}."
            " Give rows that name theirs: --eval.dataset FILE."
        )
    suite_files = [find(text, suites_dir) for text in dict.fromkeys(named)]
    names = [suite_file.suite.name for suite_file in suite_files]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"--suite {duplicates[0]} is given with two files. Evaluate one after the other, with an --items directory"
            " each."
        )
    cfg, graded = _graded_by(
        cfg, [(suite_file.suite.name, reward_for(suite_file.suite, cfg.reward)) for suite_file in suite_files]
    )
    sets = []
    for suite_file in suite_files:
        directory = items_dir / suite_file.suite.name
        _check_env(cfg, suite_file.suite)
        suite_file = with_rows(suite_file, directory, entry_of(cfg.environments, cfg.env.name))
        rows = convert(suite_file, directory / PROBLEMS, cfg.env.protocol)
        _check_chat(cfg, suite_file.suite.name, directory / PROBLEMS)
        size_note = size_fact(suite_file.suite, rows)
        facts = (size_note, *graded) if size_note else graded
        sets.append(
            PlannedSet(
                suite_file.suite.name,
                _data(cfg, directory / PROBLEMS),
                directory,
                rows,
                suite_file.suite.rows or None,
                facts,
            )
        )
    return Plan(cfg, sets, settings, swept)


def _graded_by(cfg: Config, wanted: list[tuple[str, str]]) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with the reward that grades all sets, and lines to print if it is not the recipe's."""
    if cfg.reward.weights:
        return cfg, ()  # With several rewards the first decides what is correct, as the user intended.
    names = sorted({reward for _, reward in wanted})
    if len(names) > 1:
        pairs = ", ".join(f"{suite} by {reward!r}" for suite, reward in wanted)
        raise ConfigError(
            f"These suites are graded by different rewards ({pairs}), and a command has one."
            " Evaluate them one after the other."
        )
    if names[0] == cfg.reward.name:
        return cfg, ()
    reward = cfg.reward.model_copy(update={"name": names[0], "options": {}, "group": None, "group_options": {}})
    fact = f"graded by reward {names[0]!r}: the recipe's, {cfg.reward.name!r}, does not grade this set"
    return cfg.model_copy(update={"reward": reward}), (fact,)


def _check_env(cfg: Config, suite: Suite) -> None:
    """Raise ConfigError if the rows need another environment, or a user who speaks in later turns."""
    if not suite.env:
        return
    serves = entry_of(cfg.environments, cfg.env.name).serves
    if serves != suite.env:
        raise ConfigError(
            f"{suite.name} is played in the environment {suite.env!r}, and this run has {serves!r}. Set --env.name"
            f" {suite.env} (docs/environments.md says what its server needs)."
        )
    if suite.user and not cfg.env.options.get("user"):
        raise ConfigError(
            f"{suite.name} has a user who speaks in later turns, and env.options.user is not set."
            " Set --env.options user=true."
        )


def _data(cfg: Config, path: Path) -> Data:
    """Return the settings to read all rows of a converted set. Templates are the recipe's."""
    return cfg.data.model_copy(
        update={
            "prompt_dataset": str(path),
            "prompt_probs": None,
            "prompt_split": "test",
            "input_key": "prompt",
            "label_key": "label",
            "row_schema": None,
            "max_samples": 100_000_000,
            "on_bad_row": "error",
        }
    )


def _check_chat(cfg: Config, name: str, path: Path) -> None:
    """Raise ConfigError if a text template would lose system messages, such as the functions of BFCL.

    A text template only uses the last user message.
    """
    if cfg.data.apply_chat_template:
        return
    for _, row in read_json(path):
        prompt = row["prompt"]
        if isinstance(prompt, list) and any(message.get("role") == "system" for message in prompt):
            raise ConfigError(
                f"The prompts of {name} have system messages, which only a chat template renders."
                " Set --data.apply_chat_template."
            )


def check_whole(planned: PlannedSet, tasks: Sequence[Task], dropped: dict[str, int], longest: int) -> str | None:
    """Return a remark on the user's own rows that are left out, or None.

    Args:
        planned: The set.
        tasks: Its problems that fit.
        dropped: Reason -> number of rows that were left out.
        longest: Maximum number of tokens of a prompt.

    Raises:
        ConfigError: Problems of a suite do not fit (its figures would describe another set), or no row is left.
    """
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
    if not tasks:
        raise ConfigError(
            f"No problem of {planned.name} can be asked ({reasons or 'it has none'}; a prompt may have {longest}"
            " tokens). Give other rows, or raise --data.max_len."
        )
    if planned.rows is None and dropped:
        return (
            f"{sum(dropped.values())} rows of {planned.name} are left out ({reasons};"
            f" a prompt may have {longest} tokens); raise data.max_len to ask them"
        )
    if planned.rows is not None and len(tasks) < planned.rows:
        raise ConfigError(
            f"{planned.rows - len(tasks)} of {planned.rows} problems of {planned.name} cannot be asked ({reasons}; a"
            f" prompt may have {longest} tokens). A set is not cut: raise --data.max_len, or lower"
            " --rollout.max_new_tokens."
        )
    return None


def digest_of(tasks: Sequence[Task]) -> str:
    """Return a digest of all problems with their prompts, in order."""
    return xxhash.xxh3_64_hexdigest(json.dumps([[task.row, task.prompt, task.env] for task in tasks]).encode())
