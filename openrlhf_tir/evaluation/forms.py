"""Forms: a row of a published evaluation set -> {"prompt", "label", "meta"} as data.prompts reads it. One function per
family; each raises DataError.

    maths      problem or question; answer, final_answer, label, or a solution with one box
    answers    question; golden_answers, answers or answer: a text or a list of texts (FlashRAG's rows, Search-R1's,
               plain ones), TriviaQA's answer with aliases, MuSiQue's answer_aliases, PopQA's possible_answers
    call       prompt or messages, or system and user (API-Bank as ToolRL processed it), or instruction and input; the
               gold call in label, answer or expected_output
    ast        question and function (BFCL's file) with ground_truth (its possible_answer file), joined by id
    multi_turn question, initial_config and involved_classes (BFCL's multi-turn files) with ground_truth; functions by
               class, protocol
    played     prompt, label and meta, as the make_tasks of our environments write them; meta is told to the environment
Column names are compared without case. A row of verl's form goes through its schema first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..config.paths import shorten
from ..data import checks
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
"""What our environments functions, swe and tau play from."""
TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
KINDS = ("level", "problem_type", "subfield", "difficulty", "kind", "subject")

FUNCTIONS = (
    "You can call functions. Answer the user's request with the calls that it needs and nothing else, as a Python list"
    " of calls with keyword arguments: [first_function(name=value, other=value), second_function(name=value)]. Where"
    " none of the functions fits, or a required value is not given, say so in words and call nothing."
    " The functions, as JSON:\n"
)
"""The system message of `ast`, in our words; the official prompting handler's asks for the same notation."""


def maths(where: str, row: Row) -> dict[str, Any]:
    row = _lower(row)
    if isinstance(row.get("reward_model"), Mapping):
        made = SCHEMAS["dapo" if detected(row) == "dapo" else "verl"](where, row)
        return {INPUT: made[INPUT], LABEL: _one_answer(where, made[LABEL]), "meta": _kind(row)}
    question = _text(where, row, QUESTIONS, "the problem")
    name = next((n for n in MATHS_ANSWERS if row.get(n) not in (None, "", [])), None)
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
    """What a row of `maths` or `answers` asks, whether it has an answer or not."""
    asked = _text(where, _lower(row), QUESTIONS, "the problem")
    return checks.messages(asked, where, "the problem") if isinstance(asked, list) else asked


def _one_answer(where: str, answer: Any) -> str:
    """Several parts of one answer are joined, as they are asked for together. NaN is what pandas writes for no answer:
    no response would be right."""
    if isinstance(answer, list) and answer and all(isinstance(a, str | int | float) for a in answer):
        return ", ".join(_plain(a) for a in answer)
    if (
        isinstance(answer, bool)
        or not isinstance(answer, str | int | float)
        or not str(answer).strip()
        or (isinstance(answer, float) and not math.isfinite(answer))
    ):
        raise DataError(f"{where}: the answer is {kind(answer)}, not text or a number. Correct the row.")
    return _plain(answer)


def _plain(answer: str | int | float) -> str:
    """Without the dollars around it; 204.0 as 204."""
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    text = str(answer).strip()
    inner = text.strip("$").strip()
    return inner if text.startswith("$") and text.endswith("$") and "$" not in inner and inner else text


def answers(where: str, row: Row) -> dict[str, Any]:
    row = _lower(row)
    if "golden_answers" in row or isinstance(row.get("reward_model"), Mapping):
        made = SCHEMAS["searchr1"](where, row)
        return {INPUT: made[INPUT], LABEL: made[LABEL], "meta": _kind(row)}
    said = _golds(row)
    return {
        INPUT: (made := SCHEMAS["searchr1"](where, {"question": row.get("question"), "golden_answers": said}))[INPUT],
        LABEL: made[LABEL],
        "meta": _kind(row),
    }


def _golds(row: Row) -> Any:
    """Return the gold answers of a row in the form of TriviaQA, PopQA, MuSiQue or 2WikiMultihopQA, each once.

    What is no list of texts is returned as it is, for the schema to refuse.
    """
    said = row.get("answers", row.get("answer", row.get("possible_answers")))
    aliases = row.get("answer_aliases")
    if isinstance(said, Mapping):  # TriviaQA
        aliases = said.get("aliases")
        said = said.get("value")
    if isinstance(said, str) and "possible_answers" in row:  # PopQA writes its list as JSON text
        try:
            said = json.loads(said)
        except (ValueError, RecursionError):
            return said
    if isinstance(said, str):
        said = [said]
    if isinstance(said, list) and isinstance(aliases, list):
        said = [*said, *(alias for alias in aliases if alias not in said)]
    return said


def call(where: str, row: Row) -> dict[str, Any]:
    if isinstance(row.get("reward_model"), Mapping):
        made = SCHEMAS["verl"](where, row)
        asked, gold = made[INPUT], made[LABEL]
    else:
        asked = (
            row.get("prompt")
            or row.get("messages")
            or _system_and_user(row)
            or "\n".join(str(row[k]) for k in ("instruction", "input") if row.get(k))
        )
        gold = next((row[k] for k in ("label", "answer", "expected_output", "ground_truth") if row.get(k)), None)
    if not isinstance(asked, str | list) or not asked:
        raise DataError(
            f"{where} has no prompt: text or messages in 'prompt' or 'messages', or 'system' and 'user', or"
            " 'instruction' and 'input'."
            f" Columns: {shorten(', '.join(row))}."
        )
    try:
        found = json.loads(gold) if isinstance(gold, str) else gold
    except (ValueError, RecursionError):
        found = None
    first = found[0] if isinstance(found, list) and found else found
    if (
        not isinstance(first, Mapping)
        or not isinstance(first.get("name"), str)
        or not isinstance(first.get("parameters"), Mapping)
    ):
        raise DataError(
            f'{where}: the gold call is {kind(gold)}, not {{"name": ..., "parameters": {{...}}}} or a list of such.'
            " Correct the row."
        )
    return {INPUT: asked, LABEL: json.dumps(found, ensure_ascii=False), "meta": _kind(_lower(row))}


def _system_and_user(row: Row) -> list[dict[str, Any]]:
    """Return the messages of a row with the columns system and user; [] for another row."""
    texts = [(role, row.get(role)) for role in ("system", "user")]
    if not all(isinstance(text, str) and text for _, text in texts):
        return []
    return [{"role": role, "content": text} for role, text in texts]


def ast(where: str, row: Row) -> dict[str, Any]:
    """`category` of the row: simple, multiple, parallel, irrelevance, ...; it is the kind too. Of an irrelevance row no
    call is right."""
    functions, turns, category = row.get("function"), row.get("question"), str(row.get("category", "simple"))
    functions = [functions] if isinstance(functions, Mapping) else functions
    if not isinstance(functions, list) or not all(
        isinstance(f, Mapping) and isinstance(f.get("name"), str) for f in functions
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
        or not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in turns)
    ):
        raise DataError(
            f"{where}: question is {kind(row.get('question'))}, not a list of chat messages. Give BFCL's own file."
        )
    gold = [] if "irrelevance" in category else row.get("ground_truth")
    if (
        not isinstance(gold, list)
        or not (gold or "irrelevance" in category)
        or not all(isinstance(g, Mapping) for g in gold)
    ):
        raise DataError(
            f"{where} (id {row.get('id')!r}) has no ground_truth."
            " Put the possible_answer directory of BFCL beside the file of questions."
        )
    system = FUNCTIONS + json.dumps(functions, ensure_ascii=False)
    own = "\n\n".join(m["content"] for m in turns if m.get("role") == "system")
    messages = [
        {"role": "system", "content": f"{system}\n\n{own}" if own else system},
        *(dict(m) for m in turns if m.get("role") != "system"),
    ]
    label = {"function": functions, "possible_answer": gold, "category": category}
    return {INPUT: messages, LABEL: json.dumps(label, ensure_ascii=False), "meta": {"kind": category}}


def multi_turn(where: str, row: Row) -> dict[str, Any]:
    """Later turns and the classes' state travel in meta to the environment; `category` is the kind."""
    made = with_functions(where, row, row["functions"], row["protocol"])
    return {
        INPUT: made[INPUT],
        LABEL: json.dumps(made[LABEL], ensure_ascii=False),
        "meta": made["meta"] | {"kind": str(row["category"])},
    }


def played(where: str, row: Row) -> dict[str, Any]:
    """The kind is the row's own, else its repository."""
    prompt, label, meta = row.get(INPUT), row.get(LABEL, ""), row.get("meta")
    if not isinstance(prompt, str | list) or not prompt:
        raise DataError(f"{where} has no prompt: text or messages in 'prompt'. Columns: {shorten(', '.join(row))}.")
    if not isinstance(meta, Mapping) or not (PLAYED & meta.keys()):
        raise DataError(
            f"{where}: meta is {kind(meta)}, and the environment plays an episode from {' or '.join(sorted(PLAYED))} in"
            " it. Give rows of its make_tasks."
        )
    names = [name for key in TESTS for name in _names(meta.get(key))]
    if strange := [name for name in names if "::" not in name]:
        raise DataError(
            f"{where}: {' or '.join(TESTS)} names {strange[0]!r}, which is no test of pytest's (FILE::NAME): Django's"
            " and SymPy's runners are not run here. Leave the row out."
        )
    said = label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)
    return {INPUT: prompt, LABEL: said, "meta": {"kind": str(meta.get("repo", "all"))} | dict(meta)}


def _names(value: Any) -> list[str]:
    """SWE-bench keeps its lists as JSON texts. What is neither is for the environment to refuse."""
    try:
        names = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return []
    return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []


def _lower(row: Row) -> dict[str, Any]:
    return {str(k).lower(): v for k, v in row.items()}


def _kind(row: Row) -> dict[str, Any]:
    name = next((n for n in KINDS if row.get(n) not in (None, "", [])), None)
    if name is None:
        return {}
    value = row[name]
    said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"kind": f"level {said}" if name == "level" and said.isdigit() else said}


def _text(where: str, row: Row, names: tuple[str, ...], what: str) -> str | list[Any]:
    """Text, or a chat's messages."""
    for name in names:
        value = row.get(name)
        if (isinstance(value, str) and value.strip()) or (isinstance(value, list) and value):
            return value
    raise DataError(
        f"{where} has no column with {what}: one of {', '.join(names)}. Its columns: {shorten(', '.join(row))}."
    )
