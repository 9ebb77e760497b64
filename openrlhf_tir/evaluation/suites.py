"""Suites: the evaluation sets by name. Their rows come from the user's files: none is in the package, and none is
downloaded.

A set is never cut in silence: all rows of the file are taken, and where it has another number of rows than the
published set, that is said and told with the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..config import Reward
from ..config.paths import asked, local_path
from ..data import checks
from ..data.bfcl.functions import DIRECTORY, read_functions
from ..data.json_rows import read_json
from ..data.rows import SUFFIXES, read_rows
from ..data.schemas import INPUT
from ..errors import ConfigError, DataError, unknown
from .forms import Form, answers, ast, call, maths, multi_turn
from .items import ITEMS

MATHS = ("math", "zerotir", "torl", "retool", "artist")
ANSWER_DIRECTORY = "possible_answer"
V4 = {"simple": "simple_python"}
"""What the package calls a category's file since V4, where it is another name."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One set. `rows`: as published. `rewards`: those that grade it, the first where the recipe's is none of them."""

    name: str
    title: str
    rows: int
    source: str
    """Where the file can be had."""
    shape: str
    """The file's format and columns, as the publisher writes them."""
    form: Form
    rewards: tuple[str, ...]
    files: tuple[str, ...] = ()
    """Names that the publisher gives its file, besides NAME.jsonl, NAME.json and NAME.parquet."""
    category: str = ""
    """The category, for a suite of BFCL."""
    env: str = ""
    """The environment that its rows are played in; "" where the recipe's is as good as another."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"{self.name}{suffix}" for suffix in SUFFIXES), *self.files)


def _maths(name: str, title: str, rows: int, hub: str, columns: str) -> Suite:
    return Suite(name, title, rows, f"Hugging Face: {hub}", f"one problem a row: {columns}", maths, MATHS)


def _answers(name: str, title: str, rows: int, split: str) -> Suite:
    source = f"Hugging Face: RUC-NLPIR/FlashRAG_datasets, {split}"
    return Suite(
        name,
        title,
        rows,
        source,
        'one question a row: {"question", "golden_answers": [texts]}, or Search-R1\'s parquet',
        answers,
        ("searchr1", "otc"),
    )


def _apibank(level: int, rows: int) -> Suite:
    return Suite(
        f"apibank_l{level}",
        f"API-Bank level {level}",
        rows,
        "GitHub: qiancheng0/ToolRL, benchmarks/API-Bank (its processed rows); the original is"
        " AlibabaResearch/DAMO-ConvAI, api-bank",
        'one step a row: {"prompt": text or messages, "label": {"name", "parameters"}}',
        call,
        ("apibank",),
    )


def _bfcl(category: str, rows: int) -> Suite:
    return Suite(
        f"bfcl_{category}",
        f"BFCL V3 {category.replace('_', ' ')}",
        rows,
        "GitHub: ShishirPatil/gorilla, berkeley-function-call-leaderboard (data of the package bfcl-eval)",
        f"its own file BFCL_v3_{category}.json, with its directory {ANSWER_DIRECTORY} beside it",
        ast,
        ("bfcl",),
        (f"BFCL_v3_{category}.json", f"BFCL_v4_{V4.get(category, category)}.json"),
        category,
    )


def _multi_turn(variant: str, title: str) -> Suite:
    category = f"multi_turn_{variant}"
    return Suite(
        f"bfcl_{category}",
        f"BFCL V3 multi-turn, {title}",
        200,
        "the package bfcl-eval (pip install --no-deps bfcl-eval;"
        " its directory bfcl_eval/data), or GitHub: ShishirPatil/gorilla",
        f"its own file BFCL_v3_{category}.json or BFCL_v4_{category}.json, with its directories {ANSWER_DIRECTORY} and"
        f" {DIRECTORY} beside it",
        multi_turn,
        ("env",),
        (f"BFCL_v3_{category}.json", f"BFCL_v4_{category}.json"),
        category,
        "bfcl",
    )


SUITES: dict[str, Suite] = {
    s.name: s
    for s in (
        _maths(
            "aime24",
            "AIME 2024",
            30,
            "HuggingFaceH4/aime_2024 or math-ai/aime24",
            "problem, answer (or solution with a box)",
        ),
        _maths("aime25", "AIME 2025", 30, "math-ai/aime25", "problem, answer"),
        _maths("amc23", "AMC 2023", 40, "math-ai/amc23", "question, answer"),
        _maths("math500", "MATH-500", 500, "HuggingFaceH4/MATH-500", "problem, answer; level is its kind"),
        _maths(
            "olympiad",
            "OlympiadBench, English maths with text only",
            675,
            "math-ai/olympiadbench",
            "question, final_answer (a list); subfield is its kind",
        ),
        _maths(
            "hmmt25", "HMMT February 2025", 30, "MathArena/hmmt_feb_2025", "problem, answer; problem_type is its kind"
        ),
        _answers("nq", "Natural Questions", 3610, "nq, test"),
        _answers("hotpotqa", "HotpotQA", 7405, "hotpotqa, dev"),
        _answers("bamboogle", "Bamboogle", 125, "bamboogle, test"),
        *(_apibank(level, rows) for level, rows in ((1, 399), (2, 67), (3, 131))),
        *(
            _bfcl(category, rows)
            for category, rows in (
                ("simple", 400),
                ("multiple", 200),
                ("parallel", 200),
                ("parallel_multiple", 200),
                ("irrelevance", 240),
                ("live_simple", 258),
                ("live_multiple", 1053),
                ("live_parallel", 16),
                ("live_parallel_multiple", 24),
                ("live_irrelevance", 882),
            )
        ),
        _multi_turn("base", "base"),
        _multi_turn("miss_func", "missing functions"),
        _multi_turn("miss_param", "missing parameters"),
        _multi_turn("long_context", "long context"),
    )
}


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A suite and the file of the user's that holds it."""

    suite: Suite
    path: Path


def find(text: str, directory: str | Path) -> SuiteFile:
    """`NAME` (looked for in `directory`) or `NAME=FILE`. ConfigError says where the set is had, in which form."""
    name, given, file = text.partition("=")
    if name not in SUITES:
        raise unknown("suite", name, SUITES, "Or evaluate rows of your own: --eval.dataset FILE.")
    suite = SUITES[name]
    if given:
        path = local_path(file, "--suite")
        if asked(path, Path.is_file, "--suite"):
            return SuiteFile(suite, path)
        raise ConfigError(f"--suite {name}={file}: there is no such file. {where_from(suite)}")
    folder = local_path(directory, "--suites-dir")
    for candidate in suite.names:
        if asked(folder / candidate, Path.is_file, "--suites-dir"):
            return SuiteFile(suite, folder / candidate)
    raise ConfigError(
        f"{suite.title} ({name}) is not in {folder}: none of {', '.join(suite.names)}. {where_from(suite)}"
    )


def where_from(suite: Suite) -> str:
    return (
        f"Get it from {suite.source}; {suite.rows} rows, {suite.shape}."
        f" Then give --suite {suite.name}=FILE, or put it into --suites-dir."
    )


def rows_of(found: SuiteFile, protocol: str = "tool") -> Iterator[dict[str, Any]]:
    """Every row in our form; `protocol` is how the policy writes calls. Raises DataError with file, line and column for
    a row that has another form."""
    gold = _gold(found) if found.suite.category and "irrelevance" not in found.suite.category else {}
    told = (
        {"functions": read_functions(found.path.parent / DIRECTORY), "protocol": protocol}
        if found.suite.form is multi_turn
        else {}
    )
    try:
        for where, row in read_rows(str(found.path), "test"):
            if found.suite.category:
                name = row.get("id")
                row = {
                    **row,
                    "category": found.suite.category,
                    **told,
                    **({"ground_truth": gold[name]} if isinstance(name, str) and name in gold else {}),
                }
            yield _sound(where, found.suite.form(where, row))
    except DataError as e:
        raise DataError(f"{e} This is read as {found.suite.title}: {found.suite.shape}.") from None


def _sound(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row, once it is known that it can be asked and written. Raises DataError for a chat that is none, and for
    what UTF-8 cannot hold."""
    if isinstance(row[INPUT], list):
        checks.messages(row[INPUT], where, INPUT)
    for column, value in row.items():
        checks.json_value(value, where, column)
    return row


def _gold(found: SuiteFile) -> dict[str, Any]:
    """id -> the allowed calls, from the file of the same name in the directory of answers; {} where there is none (rows
    may have their own)."""
    path = found.path.parent / ANSWER_DIRECTORY / found.path.name
    if not asked(path, Path.is_file, "--suite"):
        return {}
    return {row["id"]: row.get("ground_truth") for _, row in read_json(path) if isinstance(row.get("id"), str)}


def convert(found: SuiteFile, target: Path, protocol: str = "tool") -> tuple[int, str]:
    """Write the set in our form; returns the number of rows and a digest of them. `protocol`: see rows_of.

    Raises DataError for a set without rows, ConfigError where `target` is another set and has items below its
    directory: it says what they answer."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(found, protocol)]
    if not lines:
        raise DataError(f"{found.path} holds no rows of {found.suite.title}. {where_from(found.suite)}")
    text = "".join(lines)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.read_bytes() != text.encode() and any(target.parent.rglob(ITEMS)):
        raise ConfigError(
            f"{target.parent} holds items of other problems than {found.path} has."
            " Choose another --items directory, or remove that one."
        )
    target.write_text(text, encoding="utf-8")
    return len(lines), xxhash.xxh3_64_hexdigest(text.encode())


def size_fact(suite: Suite, rows: int) -> str | None:
    """What is to be said of a file that is not the whole published set."""
    if rows == suite.rows:
        return None
    return f"{suite.title}: the file has {rows} rows, the published set {suite.rows}. The figures are of these {rows}"


def reward_for(suite: Suite, used: Reward) -> str:
    """The recipe's reward where it grades this set (OTC's: its base), one of the user's always; else the set's own."""
    base = str(used.options.get("base", "math")) if used.name == "otc" else used.name
    return used.name if base in suite.rewards or ":" in base else suite.rewards[0]
