"""Rows of a question and an answer, as most public sets of problems have them, under many names.

    question    the first of QUESTIONS among the columns: problem, question, prompt, messages, ...
    answer      the first of ANSWERS: answer, final_answer, expected_answer, ...; or in `solution` the last \\boxed{},
                or what stands behind "####"

docs/data.md has the table of data sets that are read so. Which column is which is decided by the first row; a row whose
answer cannot be told from its solution is a bad row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..config.paths import shorten, shown
from ..errors import DataError
from ..rewards.checking.answer_text import last_boxed
from .chat_values import question_of

QUESTIONS = (
    "problem",
    "question",
    "prompt",
    "query",
    "instruction",
    "input",
    "context_messages",
    "messages",
    "conversations",
)
ANSWERS = (
    "answer",
    "final_answer",
    "expected_answer",
    "gold_answer",
    "reference_answer",
    "ground_truth",
    "gt_answer",
    "gold",
    "target",
    "verification_info",
)
SOLUTIONS = ("solution", "response", "output", "rationale")
"""Columns with a whole solution, from which the answer is taken."""
CHOICES = ("options", "choices")
SOURCES = ("data_source", "datasource", "source", "dataset")
NO_ANSWER = ("proof", "notfound")
"""What NuminaMath-1.5 writes where a problem has no answer to compare with."""
BEHIND = "####"
"""GSM8K's mark of the answer."""
SHORT = 64
"""Characters of a text that is an answer by itself, not a solution."""


class Columns(NamedTuple):
    """Which columns hold question and answer; the names as the row has them. `answer` None: nothing holds one. `named`:
    the answer's is the one that the settings name."""

    question: str
    answer: str | None
    named: bool = False


def columns_of(
    row: Mapping[str, Any], question: str | None = None, answer: str | None = None, *, labels: bool = True
) -> Columns | None:
    """Return the columns of question and answer, the given ones where the row has them.

    None where there is no question, or no answer though rows need one (`labels`).
    """
    named = {str(name).lower(): str(name) for name in row}
    asked = question if question in row else _first(named, QUESTIONS)
    if asked is None:
        return None
    named.pop(asked.lower())
    answered = answer if answer in row else _first(named, (*ANSWERS, *SOLUTIONS))
    if asked == answered or (answered is None and labels):
        return None
    return Columns(asked, answered, named=answer in row)


def _first(named: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((named[name] for name in names if name in named), None)


def question_answer(
    where: str, row: Mapping[str, Any], columns: Columns | None = None, *, labels: bool = True
) -> dict[str, Any]:
    """Return the row's question, label and source.

    Args:
        where: The row, for messages.
        row: The row.
        columns: Those of question and answer; found here unless given.
        labels: Whether the row must have an answer. Where it need not, the label is the answer if there is one, else
            "".

    Raises:
        DataError: The question or the answer is not there, or the question's choices are in another column.
    """
    columns = columns or columns_of(row, labels=labels)
    if columns is None:
        known = shorten(", ".join(map(str, row)))
        raise DataError(
            f"{where} has no column with a question ({', '.join(QUESTIONS)}) or none with an answer"
            f" ({', '.join(ANSWERS)}, {', '.join(SOLUTIONS)}). Its columns: {known}. Name them with --data.input_key"
            " and --data.label_key."
        )
    question = question_of(where, columns.question, row.get(columns.question))
    _refuse_choices(where, row, question)
    answered = columns.answer
    if answered is None:  # the first row had none; one of another environment may
        own = columns_of(row, columns.question, labels=False)
        answered = own and own.answer
    label: Any = ""
    if answered is not None:
        try:
            label = _answer(where, answered, row.get(answered))
        except DataError:
            if labels or (columns.named and answered.lower() in SOLUTIONS):
                raise
    source = next((row[name] for name in SOURCES if isinstance(row.get(name), str)), None)
    return {"prompt": question, "label": label, "meta": {} if source is None else {"datasource": source}}


def _answer(where: str, name: str, value: Any) -> Any:
    """The answer to compare with: text, a number, an object; {"target": [texts]} for several right ones."""
    if name.lower() == "verification_info":
        value = _verified_by(where, value)
    if isinstance(value, float) and math.isnan(value):  # what pandas writes for nothing
        value = None
    if isinstance(value, Mapping) and isinstance(value.get("aliases"), list):  # TriviaQA
        value = [value.get("value"), *value["aliases"]]
    if isinstance(value, list):
        texts = list(dict.fromkeys(part for part in value if isinstance(part, str) and part.strip()))
        if texts and len(texts) == len(dict.fromkeys(map(str, filter(None, value)))):
            return texts[0] if len(texts) == 1 else json.dumps({"target": texts}, ensure_ascii=False)
    if not isinstance(value, str):
        return value
    if value.strip().lower() in NO_ANSWER:
        raise DataError(
            f"{where}: {name} is {value!r}: there is no answer to compare with."
            " Leave such rows out: --data.on_bad_row skip."
        )
    taken = _taken(value)
    if taken is not None:
        return taken
    if name.lower() in SOLUTIONS and (len(value) > SHORT or "\n" in value.strip()):
        raise DataError(
            f"{where}: {name} = {shown(value, 60)} has no \\boxed{{}} and no {BEHIND}, so that its answer cannot be"
            " told. Write the answer into a column, and name it with --data.label_key, or leave such rows out:"
            " --data.on_bad_row skip."
        )
    return one_of_a_list(value)


def _taken(text: str) -> str | None:
    """The answer that a solution ends with; None for a text that is the answer itself."""
    _, mark, behind = text.rpartition(BEHIND)
    if mark and behind.strip() and "\n" not in behind.strip():
        return behind.strip()
    boxed = last_boxed(text)
    return boxed if boxed and boxed.strip() else None


def one_of_a_list(text: str) -> str:
    """JSON text of a list of one text is that text, as in Skywork-OR1; any other text may be the answer itself."""
    if not text.lstrip().startswith('["'):
        return text
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return str(read[0]) if isinstance(read, list) and len(read) == 1 and isinstance(read[0], str) else text


def _verified_by(where: str, value: Any) -> Any:
    """The answer in verification_info (SYNTHETIC-1, INTELLECT-2), JSON text whose ground_truth it is."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        read = None
    truth = read.get("ground_truth") if isinstance(read, Mapping) else None
    if truth is None:
        raise DataError(
            f"{where}: verification_info = {shown(value, 60)} has no ground_truth: the row is verified in another way"
            " (tests of a program, a schema). Leave such rows out: --data.on_bad_row skip."
        )
    return truth


def _refuse_choices(where: str, row: Mapping[str, Any], question: Any) -> None:
    """Raise DataError where a question's choices are not in its text: nobody could answer it."""
    for name in CHOICES:
        choices = row.get(name)
        if isinstance(choices, Mapping):
            choices = [*choices.values()]
        if not isinstance(choices, list) or not choices:
            continue
        asked = question if isinstance(question, str) else json.dumps(question, ensure_ascii=False)
        if not all(str(choice) in asked for choice in choices):
            raise DataError(
                f"{where}: the choices are in column {name!r} and not in the question. Write them into the question,"
                " with their letters, and name its column with --data.input_key."
            )
