"""Plan: the suites and the sweep that were asked for -> what is sampled of what, where its items are kept. Nothing
heavy runs before a plan stands.

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
from ..config.environments import one
from ..data.json_rows import read_json
from ..errors import ConfigError
from ..types import Task
from .made import with_rows
from .settings import SWEPT, Sampled, parse_sweep
from .store import PROBLEMS
from .suites import Suite, convert, find, reward_for, size_fact

OWN = "own"
"""What rows of eval.dataset are called where a suite's name stands."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One set: how its rows are read, where its items go, and what is to be said of it. `published`: rows of the
    published set, None for own rows."""

    name: str
    data: Data
    directory: Path
    rows: int | None
    published: int | None
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`cfg` has the reward that grades the sets. `swept`: the key that `settings` vary, "" for one setting."""

    cfg: Config
    asked: list[Asked]
    settings: list[Sampled]
    swept: str = ""

    def directory(self, asked: Asked, how: Sampled) -> Path:
        return asked.directory / f"{SWEPT[self.swept]}={self.value(how):g}" if self.swept else asked.directory

    def value(self, how: Sampled) -> float:
        """The swept setting's value."""
        return float(getattr(how, SWEPT[self.swept]))


def plan(cfg: Config, named: Sequence[str], suites_dir: str | Path, items_dir: Path, sweep: str | None) -> Plan:
    """Finds, makes and converts the sets. Raises ConfigError and DataError, among them for sets that one reward cannot
    grade together."""
    swept, settings = parse_sweep(sweep, Sampled.of(cfg)) if sweep else ("", [Sampled.of(cfg)])
    if not named:
        if not cfg.eval.dataset:
            raise ConfigError(
                "Evaluate what? Give --suite NAME (openrlhf-tir eval --list-suites), or rows of your own:"
                " --eval.dataset FILE."
            )
        return Plan(cfg, [Asked(OWN, cfg.held_out, items_dir / OWN, None, None)], settings, swept)
    if cfg.eval.dataset:
        raise ConfigError("--suite and --eval.dataset are both given. Evaluate one after the other.")
    if cfg.envs:
        raise ConfigError(
            f"A suite is for one environment, and this recipe has {', '.join(cfg.envs)}."
            " Give rows that name theirs: --eval.dataset FILE."
        )
    found = [find(text, suites_dir) for text in dict.fromkeys(named)]
    if twice := sorted({f.suite.name for f in found if sum(g.suite.name == f.suite.name for g in found) > 1}):
        raise ConfigError(
            f"--suite {twice[0]} is given with two files. Evaluate one after the other, with an --items directory each."
        )
    cfg, graded = _graded_by(cfg, [(f.suite.name, reward_for(f.suite, cfg.reward)) for f in found])
    asked = []
    for f in found:
        directory = items_dir / f.suite.name
        _check_env(cfg, f.suite)
        f = with_rows(f, directory, one(cfg.environments, cfg.env.name))
        rows, _ = convert(f, directory / PROBLEMS, cfg.env.protocol)
        _check_chat(cfg, f.suite.name, directory / PROBLEMS)
        facts = (*((said,) if (said := size_fact(f.suite, rows)) else ()), *graded)
        asked.append(
            Asked(f.suite.name, _data(cfg, directory / PROBLEMS), directory, rows, f.suite.rows or None, facts)
        )
    return Plan(cfg, asked, settings, swept)


def _graded_by(cfg: Config, wanted: list[tuple[str, str]]) -> tuple[Config, tuple[str, ...]]:
    """The configuration with the reward that grades all of them, and what to say where it is not the recipe's."""
    if cfg.reward.weights:
        return cfg, ()  # the first of the weights decides what is correct; who mixes rewards knows which
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
    """Raises ConfigError where the rows would be played in another environment, or without the user of later turns."""
    if not suite.env:
        return
    serves = one(cfg.environments, cfg.env.name).serves
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
    """All rows of a converted set; templates as the recipe says."""
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
    """A text template asks the last user message alone: what a system message says, the functions of BFCL for one,
    would be lost."""
    if cfg.data.apply_chat_template:
        return
    for _, row in read_json(path):
        prompt = row["prompt"]
        if isinstance(prompt, list) and any(m.get("role") == "system" for m in prompt):
            raise ConfigError(
                f"The prompts of {name} have system messages, which only a chat template renders."
                " Set --data.apply_chat_template."
            )


def check_whole(asked: Asked, tasks: Sequence[Task], dropped: dict[str, int], longest: int) -> str | None:
    """What is to be said of own rows that are left out. Raises ConfigError where problems of a suite do not fit, since
    figures without them would be of another set, and where no row is left."""
    what = ", ".join(f"{reason} {n}" for reason, n in dropped.items())
    if not tasks:
        raise ConfigError(
            f"No problem of {asked.name} can be asked ({what or 'it has none'}; a prompt may have {longest} tokens)."
            " Give other rows, or raise --data.max_len."
        )
    if asked.rows is None and dropped:
        return (
            f"{sum(dropped.values())} rows of {asked.name} are left out ({what};"
            f" a prompt may have {longest} tokens); raise data.max_len to ask them"
        )
    if asked.rows is not None and len(tasks) < asked.rows:
        raise ConfigError(
            f"{asked.rows - len(tasks)} of {asked.rows} problems of {asked.name} cannot be asked ({what}; a prompt may"
            f" have {longest} tokens). A set is not cut: raise --data.max_len, or lower --rollout.max_new_tokens."
        )
    return None


def digest_of(tasks: Sequence[Task]) -> str:
    """The digest of all problems as they are asked, in their order."""
    return xxhash.xxh3_64_hexdigest(json.dumps([[t.row, t.prompt, t.env] for t in tasks]).encode())
