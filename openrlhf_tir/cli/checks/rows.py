"""Checks that each row fits its environment: its reward can compare the label, and the environment can play the row.

    answer      a number, a formula, a text                     mathematics; exact match takes it as the one gold answer
    answers     {"target": [text, ...]}                         exact match of Search-R1
    steps       <think>, <tool_call>, <response>                ToolRL
    calls       [{"name": ..., "arguments": {...}}, ...]        Tool-N1
    tests       {"inputs": [...], "outputs": [...]}             programs of PRIME, APPS, TACO: a user's reward

A user's reward takes any label.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from typing import Literal

from ...config.environments import Environment
from ...config.rewards import OWN, REWARDS, LabelKind
from ...data.prompts import Problem
from ...errors import DataError
from ...rewards import toolrl, verl_default

DESCRIPTIONS: dict[LabelKind, str] = {
    "answer": "an answer as text",
    "answers": "Search-R1's list of gold answers (recipe search_r1_7b)",
    "steps": "ToolRL's steps (recipe toolrl_3b)",
    "calls": "Tool-N1's list of calls (recipe tool_n1_7b)",
    "tests": "the tests of a program, which your own reward can run (docs/rewards.md)",
}
"""Kind of a label -> its description in messages."""
TESTS = ({"inputs", "outputs"}, {"input", "output"}, {"test_list"}, {"fn_name"})
"""Keys of a label that holds the tests of a program."""
REPOSITORY_OPTIONS = ("mirror", "docker", "runtime_api")
"""Options of swe's server, by its flags. Rows of SWE-Gym need one of them."""


def check_row(problem: Problem, e: Environment) -> None:
    """Check that a row is of this method.

    Raises:
        DataError: The reward cannot compare the label, or our server cannot play the row.
    """
    kind = _kind(problem.label)
    for reward in _rewards(e):
        info = REWARDS.get(reward, OWN)
        source = verl_default.source_of(problem.extra, problem.meta)
        if reward == "verl" and verl_default.kind_of(source, problem.label) is None:
            raise DataError(f"{problem.where}: {verl_default.no_reward(source)}")
        if kind and info.compares and kind not in info.compares:
            comparable = " or ".join(DESCRIPTIONS[name] for name in info.compares)
            raise DataError(
                f"{problem.where}: the label {problem.label[:60]!r} is {DESCRIPTIONS[kind]}, and the reward {reward!r}"
                f" of {e.section} compares with {comparable}. Give rows of this method, or use the recipe of these"
                " rows."
            )
        try:
            if info.label_reader:
                pkgutil.resolve_name(info.label_reader)(problem.label)
        except ValueError as error:
            raise DataError(
                f"{problem.where}: the label, which the reward {reward!r} reads: {error}. Correct or remove the row."
            ) from None
    if missing := [key for key in e.server_info.needs_meta if key not in problem.meta and not e.urls]:
        raise DataError(
            f"{problem.where}: meta has no {missing[0]!r}, from which the environment {e.serves!r} plays an episode."
            f" Give rows of its own (python -m env_servers.{e.serves}.make_tasks), or use the recipe of these rows."
        )
    options = {key.replace("-", "_") for key in e.env.server_options}
    if (
        e.serves == "swe"
        and "/" in str(problem.meta.get("repo", ""))
        and not e.urls
        and not e.env.file
        and not options & {*REPOSITORY_OPTIONS}
    ):
        raise DataError(
            f"{problem.where}: repo = {problem.meta['repo']!r} is not one of the server's own, and no option says where"
            f" it is. Give {e.section}.server_options mirror=DIR, or containers (docs/swe.md)."
        )


def _rewards(e: Environment) -> Iterator[str]:
    """Yield the names of the rewards that look at the label."""
    for name in e.reward.used:
        options = e.reward.options_of(name)
        if name == "otc":
            name, inner = str(options.get("base", "math")), options.get("base_options")
            options = inner if isinstance(inner, dict) else {}
        if not (name == "artist" and options.get("functions")):
            yield name


def _kind(label: str) -> LabelKind | Literal[""]:
    """Return the kind of a label; "" if nothing is to be answered or called, which several methods have."""
    if toolrl.is_target(label):
        return "steps"
    try:
        value = json.loads(label)
    except (ValueError, RecursionError):
        return "answer"
    if value is None or value == []:
        return ""
    if isinstance(value, dict) and "target" in value:
        return "answers"
    if isinstance(value, dict) and any(keys <= value.keys() for keys in TESTS):
        return "tests"
    if isinstance(value, list) and all(isinstance(call, dict) and "name" in call for call in value):
        return "calls"
    return "answer"
