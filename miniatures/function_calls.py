"""Function calls: rows of the Berkeley Function Calling Leaderboard as a task that is scored as Tool-N1 scores calls.

The package `bfcl-eval` ships questions, descriptions of functions and allowed answers; nothing of it is imported. The
split is by function: a hash of a function's name decides, a row is tested if every function that it calls is of the
test split, and trained if no function that it offers is. Rows in between are left out, and so are long ones, which cost
a CPU more than they teach. Functions are shown as calls with types in the place of values, and a line for each
parameter: some 70 % of the characters of their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.bfcl import check_calls

from .rows import Split, split_of, write_jsonl

PACKAGE = "bfcl_eval"
REQUIREMENT = "bfcl-eval==2026.3.23"
HELD_OUT_OF = 4
"""One function name in so many is of the test split."""
MAX_CHARS = 1000
"""Characters of functions and question together: a prompt has 190 tokens on average and 341 at most."""
FILES: dict[str, tuple[str, str]] = {
    "simple_python": ("simple", "simple"),
    "multiple": ("multiple", "multiple"),
    "parallel": ("parallel", "parallel"),
    "live_simple": ("live", "simple"),
    "live_multiple": ("live", "multiple"),
    "live_parallel": ("live", "parallel"),
}
"""File of the package -> the kind that an evaluation tells accuracy by, and the category of BFCL's checker."""
IRRELEVANCE = ("irrelevance", "live_irrelevance")
"""Files of questions that none of the functions answers: nothing is to be called. They are tested and never trained."""
UNSEEN = ("irrelevance",)
"""Kinds of row that are tested and never trained: a model that is only ever rewarded for calls forgets to make none."""
PER_KIND = 32
"""Held-out rows of each kind, where there are as many."""

SYSTEM = "You call functions."
ASKED = '{functions}\n{question}\nWrite the calls as <tool_call>[{{"name": name, "arguments": {{}}}}]</tool_call>'


@dataclass(frozen=True, slots=True)
class Row:
    """A row of BFCL.

    Attributes:
        kind: Its kind here: simple, multiple, parallel, live, irrelevance.
        category: Category of BFCL's checker.
        question: What the user asks.
        functions: Descriptions of the functions that are offered.
        answers: The calls that are right, in any order: {name: {parameter: allowed values}}, "" for left out.
    """

    kind: str
    category: str
    question: str
    functions: tuple[dict[str, Any], ...]
    answers: tuple[dict[str, Any], ...]

    @property
    def split(self) -> Split | None:
        """The split of the row; None for one that belongs to neither."""
        offered = {function["name"] for function in self.functions}
        called = {name for answer in self.answers for name in answer} or offered
        if all(split_of(name, HELD_OUT_OF) == "test" for name in called):
            return "test"
        return "train" if all(split_of(name, HELD_OUT_OF) == "train" for name in offered | called) else None


def data_directory() -> Path:
    """Return the directory of BFCL's files.

    Raises:
        ConfigError: The package is missing or has other files.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"The rows of this task are in the package {PACKAGE}, which is not installed. Install it with:"
            f" pip install --no-deps {REQUIREMENT}"
        )
    directory = Path(next(iter(spec.submodule_search_locations))) / "data"
    missing = [name for name in (*FILES, *IRRELEVANCE) if not (directory / f"BFCL_v4_{name}.json").is_file()]
    if missing:
        raise ConfigError(
            f"{directory} has no BFCL_v4_{missing[0]}.json: this is another version of {PACKAGE}. Install"
            f" the tested one with: pip install --no-deps {REQUIREMENT}"
        )
    return directory


def signature(function: Mapping[str, Any]) -> str:
    """Return a function as the call that it takes, with types in the place of values and "?" behind what may be left
    out, its description, and a line for each parameter: its description and the values that it allows. Defaults and the
    types of entries are shown only where a description tells them."""
    parameters = function["parameters"]
    required = set(parameters["required"])
    types = ", ".join(
        f'"{name}": {described["type"]}{"" if name in required else "?"}'
        for name, described in parameters["properties"].items()
    )
    call = f'{{"name": "{function["name"]}", "arguments": {{{types}}}}}  # {function["description"]}'
    return "\n".join([call, *(_parameter(*item) for item in parameters["properties"].items())])


def _parameter(name: str, described: Mapping[str, Any]) -> str:
    """Return the line of a parameter."""
    allowed = f" One of {json.dumps(described['enum'])}." if "enum" in described else ""
    return f"#   {name}: {described.get('description', '')}{allowed}"


def read(directory: Path) -> list[Row]:
    """Return the package's rows in the files' order. Long ones, those of several messages and those that no call
    answers are left out."""
    return [
        made
        for name in (*FILES, *IRRELEVANCE)
        for made in _file(directory, name)
        if sum(map(len, [*map(signature, made.functions), made.question])) <= MAX_CHARS and _answerable(made)
    ]


def _file(directory: Path, name: str) -> Iterator[Row]:
    answers: dict[str, Sequence[dict[str, Any]]] = {}
    if name in FILES:
        answers = {row["id"]: row["ground_truth"] for row in _lines(directory / "possible_answer", name)}
    kind, category = FILES.get(name, ("irrelevance", "simple"))
    for row in _lines(directory, name):
        turns = row["question"]
        if len(turns) == 1 and len(turns[0]) == 1 and row["function"]:
            true = tuple(answers.get(row["id"], ()))
            yield Row(kind, category, turns[0][0]["content"].strip(), tuple(row["function"]), true)


def _lines(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (directory / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def data_row(row: Row) -> dict[str, Any]:
    """Return the trainer's row: a chat, and as label what BFCL's checker wants to know."""
    functions = "\n".join(map(signature, row.functions))
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": ASKED.format(functions=functions, question=row.question)},
    ]
    label = {"function": row.functions, "possible_answer": row.answers, "category": row.category}
    return {"prompt": messages, "label": json.dumps(label), "meta": {"kind": row.kind}}


def true_calls(row: Row) -> list[dict[str, Any]]:
    """Return calls that are right: of every parameter the first allowed value, those that may be left out left out."""
    required = {function["name"]: function["parameters"]["required"] for function in row.functions}
    return [
        {
            "name": name,
            "arguments": {
                parameter: _value(next(value for value in allowed if value != ""))
                for parameter, allowed in arguments.items()
                if ("" not in allowed or parameter in required[name]) and any(value != "" for value in allowed)
            },
        }
        for answer in row.answers
        for name, arguments in answer.items()
    ]


def _answerable(row: Row) -> bool:
    """Return whether BFCL's checker takes the row's own true calls: a few rows allow nothing that it would."""
    made = [{call["name"]: call["arguments"]} for call in true_calls(row)]
    return check_calls(list(row.functions), made, list(row.answers), row.category) is None


def _value(allowed: Any) -> Any:
    """Return a value of an allowed one: BFCL writes the entries of an object as lists of allowed values as well."""
    if isinstance(allowed, dict):
        return {
            key: _value(values[0]) if isinstance(values, list) else _value(values)
            for key, values in allowed.items()
            if not (isinstance(values, list) and "" in values)
        }
    return [_value(item) for item in allowed] if isinstance(allowed, list) else allowed


def demonstration(row: Row) -> dict[str, Any]:
    """Return a conversation in which the true calls are made."""
    said = f"<tool_call>{json.dumps(true_calls(row), ensure_ascii=False)}</tool_call>"
    return {"messages": [*data_row(row)["prompt"], {"role": "assistant", "content": said}]}


def training_rows(rows: Sequence[Row], seed: int) -> list[dict[str, Any]]:
    """Return all rows of the training split, in an order that follows from the seed. Irrelevance is not trained."""
    return [data_row(row) for row in _trained(rows, Random(f"function_calls/train/{seed}"))]


def _trained(rows: Sequence[Row], rng: Random) -> list[Row]:
    """Return the rows of the training split, shuffled, kind after kind in turns until a kind has none left: the first
    ones, of which a cold start and a short run consist, are as many of each."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        if row.split == "train" and row.answers:
            by_kind.setdefault(row.kind, []).append(row)
    for of_kind in by_kind.values():
        rng.shuffle(of_kind)
    return [row for turn in zip_longest(*by_kind.values()) for row in turn if row is not None]


def held_out_rows(rows: Sequence[Row], per_kind: int = PER_KIND) -> list[dict[str, Any]]:
    """Return up to `per_kind` rows of every kind of the test split, the same for every seed."""
    rng = Random("function_calls/test")
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        if row.split == "test":
            by_kind.setdefault(row.kind, []).append(row)
    return [data_row(row) for of_kind in by_kind.values() for row in rng.sample(of_kind, min(per_kind, len(of_kind)))]


def demonstrations(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return conversations about all rows of the training split, the kinds in turns."""
    return [demonstration(row) for row in _trained(rows, Random("function_calls/demonstrations"))]


@dataclass(frozen=True, slots=True)
class Files:
    """Where the files of the task are.

    Attributes:
        train: Training rows.
        test: Held-out rows.
        demonstrations: Conversations about all training rows. A cold start takes the first ones.
    """

    train: Path
    test: Path
    demonstrations: Path


def write_files(directory: Path, seed: int) -> Files:
    """Write all files of the task to `directory`, which is made if it does not exist.

    Args:
        directory: Where the files go.
        seed: Seed of the order of the training rows; nothing else depends on it.

    Raises:
        ConfigError: The package with BFCL's rows is missing or has other files.
    """
    rows = read(data_directory())
    directory.mkdir(parents=True, exist_ok=True)
    names = ("train", "test", "demonstrations")
    files = Files(*(directory / f"{name}.jsonl" for name in names))
    contents = {
        files.train: training_rows(rows, seed),
        files.test: held_out_rows(rows),
        files.demonstrations: demonstrations(rows),
    }
    for path, made in contents.items():
        write_jsonl(made, path)
    return files
