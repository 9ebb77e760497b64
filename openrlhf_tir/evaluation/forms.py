"""Convert a row of a published evaluation set to {"prompt", "label", "meta"}, as data.prompts reads it.

There is one function per family; each raises DataError.

    maths      problem or question; answer, final_answer, label, or a solution with one box
    answers    question; golden_answers, answers or answer: a text or a list of texts (FlashRAG's rows, Search-R1's,
               plain ones), TriviaQA's answer with aliases, MuSiQue's answer_aliases, PopQA's possible_answers
    call       prompt or messages, or system and user (API-Bank as ToolRL processed it), or instruction and input; the
               gold call in label, answer or expected_output
    ast        question and function (BFCL's file) with ground_truth (its possible_answer file), joined by id
    multi_turn question, initial_config and involved_classes (BFCL's multi-turn files) with ground_truth; functions by
               class, protocol
    played     prompt, label and meta, as the make_tasks of our environments write them; the environment gets meta

Case does not matter in names of columns. A row of verl's form is converted by its schema first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..config.paths import shorten
from ..data import checks
from ..data.agent_schemas import SWE_TESTS
from ..data.bfcl.rows import with_functions
from ..data.fields import kind
from ..data.schemas import INPUT, LABEL, SCHEMAS, detected
from ..errors import DataError
from ..rewards.checking.answer_text import last_boxed

Row = Mapping[str, Any]
Form = Callable[[str, Row], dict[str, Any]]

QUESTIONS = ("problem", "question", "prompt")
MATHS_ANSWERS = ("answer", "final_answer", "label", "ground_truth", "solution")
PLAYED = {"domains", "repo", "tau_domain"}
"""The keys of meta from which our environments functions, swe and tau play an episode."""
KINDS = ("level", "problem_type", "subfield", "difficulty", "kind", "subject")
"""Columns that say of what kind a problem is, the preferred one first."""

FUNCTIONS = (
    "You can call functions. Answer the user's request with the calls that it needs and nothing else, as a Python list"
    " of calls with keyword arguments: [first_function(name=value, other=value), second_function(name=value)]. Where"
    " none of the functions fits, or a required value is not given, say so in words and call nothing."
    " The functions, as JSON:\n"
)
"""The system message of `ast`, in our words. The official prompting handler asks for the same notation."""


def maths(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of a set of mathematical problems.

    Raises:
        DataError: The row has no answer.
    """
    row = _lower(row)
    if isinstance(row.get("reward_model"), Mapping):
        converted = SCHEMAS["dapo" if detected(row) == "dapo" else "verl"](where, row)
        return {INPUT: converted[INPUT], LABEL: _one_answer(where, converted[LABEL]), "meta": _kind(row)}
    question = _text(where, row, QUESTIONS, "the problem")
    name = next((column for column in MATHS_ANSWERS if row.get(column) not in (None, "", [])), None)
    if name is None:
        raise DataError(
            f"{where} has no answer: none of {', '.join(MATHS_ANSWERS)} among its columns {shorten(', '.join(row))}."
            " Fill it in."
        )
    answer = row[name]
    if name == "solution":
        answer = last_boxed(str(answer))
        if answer is None:
            raise DataError(
                f"{where} has neither an answer column nor a \\boxed{{}} in its solution."
                " Give the answer in column 'answer'."
            )
    return {INPUT: question, LABEL: _one_answer(where, answer), "meta": _kind(row)}


def question(where: str, row: Row) -> str | list[Any]:
    """Return the question of a row of `maths` or `answers`, whether it has an answer or not."""
    text = _text(where, _lower(row), QUESTIONS, "the problem")
    return checks.messages(text, where, "the problem") if isinstance(text, list) else text


def _one_answer(where: str, answer: Any) -> str:
    """Return an answer as text. Several parts of one answer are joined, because they are asked for together."""
    parts = answer if isinstance(answer, list) and answer else [answer]
    for part in parts:
        if not _states_something(part):
            raise DataError(f"{where}: the answer is {kind(part)}, not text or a number. Correct the row.")
    return ", ".join(map(_plain, parts))


def _states_something(answer: Any) -> bool:
    """Return True for a text or a number.

    Not for NaN: pandas writes it for a missing answer, and no response would be right.
    """
    if isinstance(answer, str):
        return bool(answer.strip())
    if isinstance(answer, float):
        return math.isfinite(answer)
    return isinstance(answer, int) and not isinstance(answer, bool)


def _plain(answer: str | int | float) -> str:
    """Return an answer without dollars around it; 204.0 as 204."""
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    text = str(answer).strip()
    inner = text.strip("$").strip()
    return inner if text.startswith("$") and text.endswith("$") and "$" not in inner and inner else text


def answers(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of a question and its gold answers."""
    row = _lower(row)
    if "golden_answers" in row or isinstance(row.get("reward_model"), Mapping):
        converted = SCHEMAS["searchr1"](where, row)
    else:
        plain = {"question": row.get("question"), "golden_answers": _golds(row)}
        converted = SCHEMAS["searchr1"](where, plain)
    return {INPUT: converted[INPUT], LABEL: converted[LABEL], "meta": _kind(row)}


def _golds(row: Row) -> Any:
    """Return the gold answers of a row in the form of TriviaQA, PopQA, MuSiQue or 2WikiMultihopQA, each once.

    A value that is not a list of texts is returned as it is, and the schema refuses it.
    """
    gold = row.get("answers", row.get("answer", row.get("possible_answers")))
    aliases = row.get("answer_aliases")
    if isinstance(gold, Mapping):  # TriviaQA
        aliases = gold.get("aliases")
        gold = gold.get("value")
    if isinstance(gold, str) and "possible_answers" in row:  # PopQA writes its list as JSON text
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            return gold
    if isinstance(gold, str):
        gold = [gold]
    if isinstance(gold, list) and isinstance(aliases, list):
        gold = [*gold, *(alias for alias in aliases if alias not in gold)]
    return gold


def call(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of one step with a gold call.

    Raises:
        DataError: The row has no prompt, or its gold call has another form.
    """
    if isinstance(row.get("reward_model"), Mapping):
        converted = SCHEMAS["verl"](where, row)
        prompt, gold = converted[INPUT], converted[LABEL]
    else:
        prompt = (
            row.get("prompt")
            or row.get("messages")
            or _system_and_user(row)
            or "\n".join(str(row[column]) for column in ("instruction", "input") if row.get(column))
        )
        gold = next(
            (row[column] for column in ("label", "answer", "expected_output", "ground_truth") if row.get(column)), None
        )
    if not isinstance(prompt, str | list) or not prompt:
        raise DataError(
            f"{where} has no prompt: text or messages in 'prompt' or 'messages', or 'system' and 'user', or"
            " 'instruction' and 'input'."
            f" Columns: {shorten(', '.join(row))}."
        )
    try:
        gold_calls = json.loads(gold) if isinstance(gold, str) else gold
    except (ValueError, RecursionError):
        gold_calls = None
    first = gold_calls[0] if isinstance(gold_calls, list) and gold_calls else gold_calls
    if (
        not isinstance(first, Mapping)
        or not isinstance(first.get("name"), str)
        or not isinstance(first.get("parameters"), Mapping)
    ):
        raise DataError(
            f'{where}: the gold call is {kind(gold)}, not {{"name": ..., "parameters": {{...}}}} or a list of such.'
            " Correct the row."
        )
    return {INPUT: prompt, LABEL: json.dumps(gold_calls, ensure_ascii=False), "meta": _kind(_lower(row))}


def _system_and_user(row: Row) -> list[dict[str, Any]]:
    """Return the messages of a row with the columns system and user; [] for another row."""
    texts = [(role, row.get(role)) for role in ("system", "user")]
    if not all(isinstance(text, str) and text for _, text in texts):
        return []
    return [{"role": role, "content": text} for role, text in texts]


def ast(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of BFCL.

    The row's `category` (simple, multiple, parallel, irrelevance, ...) is also its kind. For an irrelevance row no call
    is right.

    Raises:
        DataError: Functions or question have another form, or the true calls are missing.
    """
    functions = row.get("function")
    turns = row.get("question")
    category = str(row.get("category", "simple"))
    functions = [functions] if isinstance(functions, Mapping) else functions
    if not isinstance(functions, list) or not all(
        isinstance(function, Mapping) and isinstance(function.get("name"), str) for function in functions
    ):
        raise DataError(
            f"{where}: function is {kind(functions)}, not a list of function descriptions. Give BFCL's own file."
        )
    if isinstance(turns, list) and turns and isinstance(turns[0], list):
        if len(turns) > 1:
            raise DataError(
                f"{where}: question has {len(turns)} turns, and a row of this set has one."
                f" Give the file of category {category}."
            )
        turns = turns[0]
    if (
        not isinstance(turns, list)
        or not turns
        or not all(isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in turns)
    ):
        raise DataError(
            f"{where}: question is {kind(row.get('question'))}, not a list of chat messages. Give BFCL's own file."
        )
    has_answers = "relevance" not in category
    gold = row.get("ground_truth") if has_answers else []
    if (
        not isinstance(gold, list)
        or not (gold or not has_answers)
        or not all(isinstance(call, Mapping) for call in gold)
    ):
        raise DataError(
            f"{where} (id {row.get('id')!r}) has no ground_truth."
            " Put the possible_answer directory of BFCL beside the file of questions."
        )
    system = FUNCTIONS + json.dumps(functions, ensure_ascii=False)
    system_text = "\n\n".join(message["content"] for message in turns if message.get("role") == "system")
    messages = [
        {"role": "system", "content": f"{system}\n\n{system_text}" if system_text else system},
        *(dict(message) for message in turns if message.get("role") != "system"),
    ]
    label = {"function": functions, "possible_answer": gold, "category": category}
    return {INPUT: messages, LABEL: json.dumps(label, ensure_ascii=False), "meta": {"kind": category}}


def multi_turn(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of BFCL's multi-turn files. Later turns and the state travel in meta; `category` is the kind."""
    converted = with_functions(where, row, row["functions"], row["protocol"])
    return {
        INPUT: converted[INPUT],
        LABEL: json.dumps(converted[LABEL], ensure_ascii=False),
        "meta": converted["meta"] | {"kind": str(row["category"])},
    }


def played(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of one of our environments. Its kind is its own, or its repository.

    Raises:
        DataError: The row has no prompt, nothing that an environment plays, or tests that are not pytest's.
    """
    prompt = row.get(INPUT)
    label = row.get(LABEL, "")
    meta = row.get("meta")
    if not isinstance(prompt, str | list) or not prompt:
        raise DataError(f"{where} has no prompt: text or messages in 'prompt'. Columns: {shorten(', '.join(row))}.")
    if not isinstance(meta, Mapping) or not (PLAYED & meta.keys()):
        raise DataError(
            f"{where}: meta is {kind(meta)}, and the environment plays an episode from {' or '.join(sorted(PLAYED))} in"
            " it. Give rows of its make_tasks."
        )
    names = [name for key in SWE_TESTS for name in _names(meta.get(key))]
    if strange := [name for name in names if "::" not in name]:
        raise DataError(
            f"{where}: {' or '.join(SWE_TESTS)} names {strange[0]!r}, which is not a test of pytest (FILE::NAME)."
            " Django's and SymPy's runners are not supported. Leave the row out."
        )
    label_text = label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)
    return {INPUT: prompt, LABEL: label_text, "meta": {"kind": str(meta.get("repo", "all"))} | dict(meta)}


def _names(value: Any) -> list[str]:
    """Return the names of tests. SWE-bench keeps its lists as JSON texts. Other values are for the environment to
    refuse."""
    try:
        names = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _lower(row: Row) -> dict[str, Any]:
    return {str(name).lower(): value for name, value in row.items()}


def _kind(row: Row) -> dict[str, Any]:
    name = next((column for column in KINDS if row.get(column) not in (None, "", [])), None)
    if name is None:
        return {}
    value = row[name]
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"kind": f"level {text}" if name == "level" and text.isdigit() else text}


def _text(where: str, row: Row, names: tuple[str, ...], what: str) -> str | list[Any]:
    """Return the first of these columns that holds a text or a chat. Raises DataError."""
    for name in names:
        value = row.get(name)
        if (isinstance(value, str) and value.strip()) or (isinstance(value, list) and value):
            return value
    raise DataError(
        f"{where} has no column with {what}: one of {', '.join(names)}. Its columns: {shorten(', '.join(row))}."
    )
