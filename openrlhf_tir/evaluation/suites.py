"""The evaluation sets by name.

Published rows come from the user's files: no set is in the package, and none is downloaded. Tasks of our own
environments are generated if no file is given (generated.py).

A set is never cut silently: all rows of the file are taken, and if their number differs from the published set's, that
is printed and stored with the figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Reward
from ..config.paths import ROW_FILES, local_path, query_path
from ..config.rewards import REWARDS
from ..data import checks
from ..data.bfcl.functions import DIRECTORY, read_functions
from ..data.json_rows import read_json
from ..data.rows import read_rows
from ..data.schemas import INPUT
from ..errors import ConfigError, DataError, unknown
from .forms import Form, answers, ast, call, maths, multi_turn, played
from .items import ITEMS

MATHS = ("math", *(name for name, reward in REWARDS.items() if reward.compares == ("answer",) and name != "math"))
"""Rewards that compare an answer to mathematics; the first is a suite's own."""
ANSWER_DIRECTORY = "possible_answer"
"""Directory of BFCL's answers, beside its files of questions."""
V4 = {"simple": "simple_python"}
"""BFCL category -> the name that the package uses since V4, if it differs."""


@dataclass(frozen=True, slots=True)
class Maker:
    """The command that generates a suite's rows.

    Attributes:
        command: Its module and arguments, without --protocol and --out.
        protocols: Values of env.protocol for which it writes prompts; "" stands for a protocol of the user's own.
        flags: Further flags.
        takes_rows: Whether it turns the user's file into prompts (--rows, --root). Otherwise it needs no file, and a
            given file is taken as it is.
    """

    command: tuple[str, ...]
    protocols: tuple[str, ...]
    flags: tuple[str, ...] = ()
    takes_rows: bool = False


@dataclass(frozen=True, slots=True)
class Suite:
    """One set.

    Attributes:
        name: Name on the command line.
        title: Name for people.
        rows: Number of rows of the published set; 0 if any number is fine.
        source: Where the file can be found.
        shape: Format and columns of the file, as the publisher writes them.
        form: Converts a row.
        rewards: Rewards that grade it. The first is used unless the recipe's is among them.
        files: Names that the publisher gives the file, besides NAME.jsonl, NAME.json and NAME.parquet.
        category: The category of a BFCL suite.
        env: The environment that its rows need; "" if any will do.
        user: Whether a user speaks in later turns.
        maker: The command that generates its rows; None if there is none.
    """

    name: str
    title: str
    rows: int
    source: str
    shape: str
    form: Form
    rewards: tuple[str, ...]
    files: tuple[str, ...] = ()
    category: str = ""
    env: str = ""
    user: bool = False
    maker: Maker | None = field(default=None, compare=False)

    @property
    def made(self) -> bool:
        """Whether the rows are generated, so that no file is needed."""
        return self.maker is not None and not self.maker.takes_rows

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which the file is looked for."""
        return (*(f"{self.name}{suffix}" for suffix in ROW_FILES), *self.files)


def _maths(name: str, title: str, rows: int, hub: str, columns: str) -> Suite:
    return Suite(name, title, rows, f"Hugging Face: {hub}", f"one problem a row: {columns}", maths, MATHS)


def _answers(name: str, title: str, rows: int, split: str) -> Suite:
    source = f"Hugging Face: RUC-NLPIR/FlashRAG_datasets, {split}"
    return Suite(
        name,
        title,
        rows,
        source,
        'one question a row: {"question", "golden_answers": [texts]}, Search-R1\'s parquet, or the set\'s own columns:'
        ' answer (a text, or TriviaQA\'s {"value", "aliases"}), MuSiQue\'s answer_aliases, PopQA\'s possible_answers',
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
        'one step a row: {"system", "user", "answer": {"name", "parameters"} or a list of one, "other"}, or'
        ' {"prompt": text or messages, "label": {"name", "parameters"}}',
        call,
        ("apibank",),
        (f"level-{level}-api_processed.json",),
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
        "the package bfcl-eval (pip install --no-deps bfcl-eval; its directory bfcl_eval/data), or GitHub:"
        " ShishirPatil/gorilla",
        f"its own file BFCL_v3_{category}.json or BFCL_v4_{category}.json, with its directories {ANSWER_DIRECTORY} and"
        f" {DIRECTORY} beside it",
        multi_turn,
        ("env",),
        (f"BFCL_v3_{category}.json", f"BFCL_v4_{category}.json"),
        category,
        "bfcl",
        True,
    )


def _tau_like() -> Suite:
    """Return the suite after tau-bench (arXiv 2406.12045). Training rows use seeds from 0 upwards, so not this one."""
    protocols = ("tool", "hermes", "messages", "")
    flags = ("--policy", "--count", str(TAU_ROWS), "--seed", "240612045")
    return Suite(
        "tau_like",
        "a help desk with a policy and users, after tau-bench",
        TAU_ROWS,
        "nowhere: it is generated if no file is given, by `python -m env_servers.functions.make_tasks --policy`",
        'rows of the environment functions: {"prompt", "label", "meta": {"domains", "gold", "check": "end", ...}}',
        played,
        ("env",),
        env="functions",
        user=True,
        maker=Maker(("env_servers.functions.make_tasks",), protocols, flags),
    )


def _tau(domain: str, rows: int) -> Suite:
    maker = Maker(("env_servers.adapters.tau.make_tasks",), ("messages",), ("--domain", domain))
    return Suite(
        f"tau_{domain}",
        f"tau-bench, {domain}",
        rows,
        "GitHub: sierra-research/tau-bench (pip install git+https://github.com/sierra-research/tau-bench): its rows are"
        " generated from the installed package if no file is given",
        'rows of the environment tau: {"prompt", "label", "meta": {"tau_domain", "split", "index", ...}}',
        played,
        ("env",),
        env="tau",
        user=True,
        maker=maker,
    )


def _swe(name: str, title: str, rows: int, source: str, shape: str, maker: Maker) -> Suite:
    return Suite(name, title, rows, source, shape, played, ("env",), env="swe", maker=maker)


TAU_ROWS = 48
SWE_ROWS = 60
SWE_TASKS = "env_servers.swe.make_tasks"
SWE_PROTOCOLS = ("skyrl", "tool", "hermes", "messages", "")
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
        _maths(
            "hmmt24", "HMMT February 2024", 30, "MathArena/hmmt_feb_2024", "problem, answer; problem_type is its kind"
        ),
        _maths("cmimc25", "CMIMC 2025", 40, "MathArena/cmimc_2025", "problem, answer; problem_type is its kind"),
        *(
            _maths(
                f"olymmath_{language}_{level}",
                f"OlymMATH, {name}, {level}",
                100,
                f"RUC-AIBOX/OlymMATH, {language}-{level}",
                "problem, answer; subject is its kind",
            )
            for language, name in (("en", "English"), ("zh", "Chinese"))
            for level in ("easy", "hard")
        ),
        _answers("nq", "Natural Questions", 3610, "nq, test"),
        _answers("hotpotqa", "HotpotQA", 7405, "hotpotqa, dev"),
        _answers("bamboogle", "Bamboogle", 125, "bamboogle, test"),
        _answers("triviaqa", "TriviaQA", 11313, "triviaqa, test"),
        _answers("popqa", "PopQA", 14267, "popqa, test"),
        _answers("2wiki", "2WikiMultihopQA", 12576, "2wikimultihopqa, dev"),
        _answers("musique", "MuSiQue", 2417, "musique, dev"),
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
                ("live_relevance", 18),
            )
        ),
        _multi_turn("base", "base"),
        _multi_turn("miss_func", "missing functions"),
        _multi_turn("miss_param", "missing parameters"),
        _multi_turn("long_context", "long context"),
        _tau_like(),
        _tau("airline", 50),
        _tau("retail", 115),
        _swe(
            "swe_like",
            "bugs in twelve small repositories, held out from training",
            SWE_ROWS,
            f"nowhere: it is generated if no file is given, by `python -m {SWE_TASKS} --split held_out`",
            'rows of the environment swe: {"prompt", "label", "meta": {"repo", ...}}',
            Maker((SWE_TASKS,), SWE_PROTOCOLS, ("--split", "held_out", "--count", str(SWE_ROWS))),
        ),
        _swe(
            "swe_rows",
            "issues of SWE-Gym or SWE-bench",
            0,
            "Hugging Face: SWE-Gym/SWE-Gym, SWE-Gym/SWE-Gym-Lite, princeton-nlp/SWE-bench_Verified or SWE-bench_Lite"
            " (rows whose tests are pytest's), with a directory of their repositories or their images"
            " (docs/environments.md)",
            "one issue a row: instance_id, repo, base_commit, problem_statement, test_patch, FAIL_TO_PASS,"
            " PASS_TO_PASS; or what python -m env_servers.swe.make_tasks --rows made of such",
            Maker((SWE_TASKS,), SWE_PROTOCOLS, takes_rows=True),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A suite and the file that holds it; None if it is still to be generated (generated.py)."""

    suite: Suite
    path: Path | None

    @property
    def file(self) -> Path:
        """The file of a suite that has one."""
        assert self.path is not None, f"the rows of {self.suite.name} are made first: made.with_rows"
        return self.path


def find(text: str, directory: str | Path) -> SuiteFile:
    """Return the suite that the user names.

    Args:
        text: NAME, whose file is looked for in `directory`, or NAME=FILE. A generated set needs no file.
        directory: The value of --suites-dir.

    Raises:
        ConfigError: There is no such suite or file. The message says where to get it and in which form.
    """
    name, given, file = text.partition("=")
    if name not in SUITES:
        raise unknown("suite", name, SUITES, "Or evaluate your own rows: --eval.dataset FILE.")
    suite = SUITES[name]
    if given:
        path = local_path(file, "--suite")
        if query_path(path, Path.is_file, "--suite"):
            return SuiteFile(suite, path)
        raise ConfigError(f"--suite {name}={file}: there is no such file. {where_from(suite)}")
    folder = local_path(directory, "--suites-dir")
    for candidate in suite.names:
        if query_path(folder / candidate, Path.is_file, "--suites-dir"):
            return SuiteFile(suite, folder / candidate)
    if suite.made:
        return SuiteFile(suite, None)
    raise ConfigError(
        f"{suite.title} ({name}) is not in {folder}: none of {', '.join(suite.names)}. {where_from(suite)}"
    )


def where_from(suite: Suite) -> str:
    """Return where to get the file of a suite, and in which form, as a sentence."""
    return (
        f"Get it from {suite.source}; {suite.rows or 'any number of'} rows, {suite.shape}. Then give --suite"
        f" {suite.name}=FILE, or put it into --suites-dir."
    )


def rows_of(suite_file: SuiteFile, protocol: str = "tool") -> Iterator[dict[str, Any]]:
    """Yield every row of a suite in our form.

    Args:
        suite_file: The suite and its file.
        protocol: How the policy writes calls.

    Raises:
        DataError: A row has another form. The message names file, line and column.
    """
    gold = _gold(suite_file) if suite_file.suite.category and "relevance" not in suite_file.suite.category else {}
    meta = (
        {"functions": read_functions(suite_file.file.parent / DIRECTORY), "protocol": protocol}
        if suite_file.suite.form is multi_turn
        else {}
    )
    try:
        for where, row in read_rows(str(suite_file.file), "test"):
            if suite_file.suite.category:
                name = row.get("id")
                row = {
                    **row,
                    "category": suite_file.suite.category,
                    **meta,
                    **({"ground_truth": gold[name]} if isinstance(name, str) and name in gold else {}),
                }
            yield _checked(where, suite_file.suite.form(where, row))
    except DataError as error:
        raise DataError(f"{error} This is read as {suite_file.suite.title}: {suite_file.suite.shape}.") from None


def _checked(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row if it can be asked and written.

    Raises:
        DataError: Its chat is malformed, or it holds text that UTF-8 cannot.
    """
    if isinstance(row[INPUT], list):
        checks.messages(row[INPUT], where, INPUT)
    for column, value in row.items():
        checks.json_value(value, where, column)
    return row


def _gold(suite_file: SuiteFile) -> dict[str, Any]:
    """Return id -> the allowed calls, from the file of the same name in the directory of answers.

    Returns {} if there is no such file: rows may have their own answers.
    """
    path = suite_file.file.parent / ANSWER_DIRECTORY / suite_file.file.name
    if not query_path(path, Path.is_file, "--suite"):
        return {}
    gold: dict[str, Any] = {}
    for where, row in read_json(path):
        name, truth = row.get("id"), row.get("ground_truth")
        if isinstance(name, str) and gold.setdefault(name, truth) != truth:
            raise DataError(
                f"{where} has the id {name!r} of an earlier row and another ground_truth. Keep one of them."
            )
    return gold


def convert(suite_file: SuiteFile, target: Path, protocol: str = "tool") -> int:
    """Write the set in our form and return the number of rows.

    Args:
        suite_file: The suite and its file.
        target: The file to write.
        protocol: See `rows_of`.

    Raises:
        DataError: The set has no rows.
        ConfigError: `target` is another set, to which items below its directory belong.
    """
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(suite_file, protocol)]
    if not lines:
        raise DataError(f"{suite_file.path} holds no rows of {suite_file.suite.title}. {where_from(suite_file.suite)}")
    text = "".join(lines)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.read_bytes() != text.encode() and any(target.parent.rglob(ITEMS)):
        raise ConfigError(
            f"{target.parent} holds items of other problems than {suite_file.path} has. Choose another --items"
            " directory, or remove that one."
        )
    target.write_text(text, encoding="utf-8")
    return len(lines)


def size_fact(suite: Suite, rows: int) -> str | None:
    """Return a remark on a file that is not the whole published set, or None."""
    if rows == suite.rows or not suite.rows:
        return None
    whole = "the set that is made" if suite.made else "the published set"
    return f"{suite.title}: the file has {rows} rows, {whole} {suite.rows}. The figures are of these {rows}"


def reward_for(suite: Suite, used: Reward) -> str:
    """Return the recipe's reward if it grades this set (of OTC its base) or is the user's own; otherwise the set's."""
    base = str(used.options.get("base", "math")) if used.name == "otc" else used.name
    return used.name if base in suite.rewards or ":" in base else suite.rewards[0]
