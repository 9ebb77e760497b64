"""Labels: whether a row is of the kind that its environment's reward compares and its environment plays, before a model
is loaded.

    answer      a number, a formula, a text                     mathematics; exact match takes it as the one gold answer
    answers     {"target": [text, ...]}                         exact match of Search-R1
    steps       <think>, <tool_call>, <response>                ToolRL
    calls       [{"name": ..., "arguments": {...}}, ...]        Tool-N1
    tests       {"inputs": [...], "outputs": [...]}             programs of PRIME, APPS, TACO: a reward of one's own

A reward of one's own takes any label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ...config.environments import Environment
from ...data.prompts import Problem
from ...errors import DataError
from ...rewards import tooln1, toolrl, verl_default

MATHS = ("math", "zerotir", "torl", "retool", "artist")
COMPARES = {
    **dict.fromkeys(MATHS, ("answer",)),
    "searchr1": ("answer", "answers"),
    "toolrl": ("steps",),
    "tooln1": ("calls",),
}
SAID = {
    "answer": "an answer as text",
    "answers": "Search-R1's list of gold answers (recipe search_r1_7b)",
    "steps": "ToolRL's steps (recipe toolrl_3b)",
    "calls": "Tool-N1's list of calls (recipe tool_n1_7b)",
    "tests": "the tests of a program, which a reward of one's own can run (docs/rewards.md)",
}
TESTS = ({"inputs", "outputs"}, {"input", "output"}, {"test_list"}, {"fn_name"})
"""Keys of a label that holds the tests of a program."""
READ = {"toolrl": toolrl.gold_calls, "tooln1": tooln1.gold_calls}
"""By reward: the true calls of a label, which raises ValueError for what the reward cannot read."""
PLAYED_FROM = {"functions": ("domains", "gold"), "swe": ("repo",)}
"""What an environment needs of a row's meta."""
HOLDS_REPOSITORIES = ("mirror", "docker", "runtime_api")
"""Options of swe's server, by its flags, one of which rows of SWE-Gym need."""


def check_row(problem: Problem, e: Environment) -> None:
    """Raises DataError for a row that is of another method: whose label its reward cannot compare, or that says nothing
    our server could play."""
    found = _kind(problem.label)
    for reward in _rewards(e):
        source = verl_default.source_of(problem.extra, problem.meta)
        if reward == "verl" and verl_default.kind_of(source) is None:
            raise DataError(f"{problem.where}: {verl_default.no_reward(source)}")
        if found and found not in COMPARES.get(reward, (found,)):
            wanted = " or ".join(SAID[kind] for kind in COMPARES[reward])
            raise DataError(
                f"{problem.where}: the label {problem.label[:60]!r} is {SAID[found]}, and the reward {reward!r} of"
                f" {e.section} compares with {wanted}. Give rows of this method, or use the recipe of these rows."
            )
        try:
            READ.get(reward, str)(problem.label)
        except ValueError as fault:
            raise DataError(
                f"{problem.where}: the label, which the reward {reward!r} reads: {fault}. Correct or remove the row."
            ) from None
    if missing := [
        key for key in PLAYED_FROM.get(e.serves, ()) if key not in problem.meta and not e.urls and not e.env.file
    ]:
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
        and not options & {*HOLDS_REPOSITORIES}
    ):
        raise DataError(
            f"{problem.where}: repo = {problem.meta['repo']!r} is none of the server's own, and it is not told where it"
            f" is. Give {e.section}.server_options mirror=DIR, or containers (docs/environments.md)."
        )


def _rewards(e: Environment) -> Iterator[str]:
    """Those that look at the label, by name."""
    for name in e.reward.used:
        options = e.reward.options_of(name)
        if name == "otc":
            name, inner = str(options.get("base", "math")), options.get("base_options")
            options = inner if isinstance(inner, dict) else {}
        if not (name == "artist" and options.get("functions")):
            yield name


def _kind(label: str) -> str:
    """ "" where nothing is to be answered or called, which several methods have."""
    if any(tag in label for tag in ("<think>", "<tool_call>", "<response>")):
        return "steps"
    try:
        said = json.loads(label)
    except (ValueError, RecursionError):
        return "answer"
    if said is None or said == []:
        return ""
    if isinstance(said, dict) and "target" in said:
        return "answers"
    if isinstance(said, dict) and any(keys <= said.keys() for keys in TESTS):
        return "tests"
    if isinstance(said, list) and said and all(isinstance(call, dict) and "name" in call for call in said):
        return "calls"
    return "answer"
