"""Rows of a question and an answer. Most public sets of problems have them, under many names.

    question    the first of QUESTIONS among the columns: problem, question, prompt, messages, ...
    answer      the first of ANSWERS: answer, final_answer, expected_answer, ...; or in `solution` the last \\boxed{},
                or what follows "####"

docs/data.md has the table of data sets that are read in this way. The first row decides which column is which. A row
whose answer cannot be found in its solution is a bad row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..config.paths import shorten, shown
from ..errors import DataError
from ..rewards.checking.answer_text import last_boxed
from ..rewards.checking.json_value import json_or_none
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
"""The value that NuminaMath-1.5 has where a problem has no answer to compare with."""
BEHIND = "####"
"""GSM8K's mark before the answer."""
SHORT = 64
"""Maximum number of characters of a text that is an answer by itself, not a solution."""


class Columns(NamedTuple):
    """The columns of question and answer, as the row names them.

    Attributes:
        question: Column of the question.
        answer: Column of the answer; None if there is none.
        named: Whether the settings name the column of the answer.
    """

    question: str
    answer: str | None
    named: bool = False


def columns_of(
    row: Mapping[str, Any], question: str | None = None, answer: str | None = None, *, labels: bool = True
) -> Columns | None:
    """Return the columns of question and answer; the given ones if the row has them.

    Returns None if there is no question, or no answer although rows need one (`labels`).
    """
    named = {str(name).lower(): str(name) for name in row}
    question_column = question if question in row else _first(named, QUESTIONS)
    if question_column is None:
        return None
    named.pop(question_column.lower())
    answer_column = answer if answer in row else _first(named, (*ANSWERS, *SOLUTIONS))
    if question_column == answer_column or (answer_column is None and labels):
        return None
    return Columns(question_column, answer_column, named=answer in row)


def _first(named: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((named[name] for name in names if name in named), None)


def question_answer(
    where: str, row: Mapping[str, Any], columns: Columns | None = None, *, labels: bool = True
) -> dict[str, Any]:
    """Return the row's question, label and source.

    Args:
        where: The row, for messages.
        row: The row.
        columns: The columns of question and answer; None to find them in this row.
        labels: Whether the row must have an answer. If not, the label is the answer if there is one, else "".

    Raises:
        DataError: The question or the answer is missing, or the question's choices are in another column.
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
    answer_column = columns.answer
    if answer_column is None:  # The first row had no answer, but a row of another environment may have one.
        own_columns = columns_of(row, columns.question, labels=False)
        answer_column = own_columns and own_columns.answer
    label: Any = ""
    if answer_column is not None:
        try:
            label = _answer(where, answer_column, row.get(answer_column))
        except DataError:
            if labels or (columns.named and answer_column.lower() in SOLUTIONS):
                raise
    source = next((row[name] for name in SOURCES if isinstance(row.get(name), str)), None)
    return {"prompt": question, "label": label, "meta": {} if source is None else {"datasource": source}}


def _answer(where: str, name: str, value: Any) -> Any:
    """Return the answer to compare with: a text, a number, an object, or {"target": [texts]} for several right
    answers."""
    if name.lower() == "verification_info":
        value = _verified_by(where, value)
    if isinstance(value, float) and math.isnan(value):  # pandas writes NaN for a missing value.
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
    final_answer = _final_answer(value)
    if final_answer is not None:
        return final_answer
    if name.lower() in SOLUTIONS and (len(value) > SHORT or "\n" in value.strip()):
        raise DataError(
            f"{where}: {name} = {shown(value, 60)} has no \\boxed{{}} and no {BEHIND}, so its answer cannot be found."
            " Write the answer into a column, and name it with --data.label_key, or leave such rows out:"
            " --data.on_bad_row skip."
        )
    return one_of_a_list(value)


def _final_answer(text: str) -> str | None:
    """Return the answer at the end of a solution; None for a text that is the answer itself."""
    _, mark, after = text.rpartition(BEHIND)
    if mark and after.strip() and "\n" not in after.strip():
        return after.strip()
    boxed = last_boxed(text)
    return boxed if boxed and boxed.strip() else None


def one_of_a_list(text: str) -> str:
    """Return the text in the JSON text of a list of one text, as in Skywork-OR1; any other text as it is."""
    if not text.lstrip().startswith('["'):
        return text
    value = json_or_none(text)
    return str(value[0]) if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) else text


def _verified_by(where: str, value: Any) -> Any:
    """Return the ground_truth in verification_info, which is JSON text in SYNTHETIC-1 and INTELLECT-2."""
    parsed = json_or_none(value) if isinstance(value, str) else value
    truth = parsed.get("ground_truth") if isinstance(parsed, Mapping) else None
    if truth is None:
        raise DataError(
            f"{where}: verification_info = {shown(value, 60)} has no ground_truth: the row is verified in another way"
            " (tests of a program, a schema). Leave such rows out: --data.on_bad_row skip."
        )
    return truth


def _refuse_choices(where: str, row: Mapping[str, Any], question: Any) -> None:
    """Raise DataError if a question's choices are not in its text, because then no model could answer it."""
    for name in CHOICES:
        choices = row.get(name)
        if isinstance(choices, Mapping):
            choices = [*choices.values()]
        if not isinstance(choices, list) or not choices:
            continue
        text = question if isinstance(question, str) else json.dumps(question, ensure_ascii=False)
        if not all(str(choice) in text for choice in choices):
            raise DataError(
                f"{where}: the choices are in column {name!r} and not in the question. Write them into the question,"
                " with their letters, and name its column with --data.input_key."
            )
