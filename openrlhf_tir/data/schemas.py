"""Schemas: a row as a method's own code publishes it -> the columns that we read (input, label, meta). One small
function each.

    orz              {"0": {"value": problem}, "1": {"ground_truth": {"value": answer}}}, or a list of these two;
                     Open-Reasoner-Zero
    dapo             verl's; the problem is taken out of the instructions that DAPO-Math-17k wraps around it
    verl             {"prompt": [messages], "reward_model": {"ground_truth": answer}, "data_source": ...}; ReTool's RL
                     rows, and others
    torl             verl's, system and user message; a text template asks for the user message
    toolrl           verl's, with ToolRL's target text as the answer
    tooln1           raw tools, conversations, answer (tool_n1.py), or verl's
    searchr1         {"question", "golden_answers"}, or verl's with {"target": [answers]}; the question, for
                     data.input_template
    question_answer  {"problem" or "question" or ...} and {"answer" or "final_answer" or "solution" or ...}
                     (question_answer.py)
    swegym           agent_schemas.py
    bfcl_multi_turn  bfcl/rows.py

`data.row_schema` names one; unset, rows that have the columns data.input_key and data.label_key are read as they are,
and others by the columns that they have. ZeroTIR's rows have prompt and label, and need none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import DataError, unknown
from ..rewards import tooln1 as tooln1_reward
from ..rewards import toolrl as toolrl_reward
from . import tool_n1
from .agent_schemas import swegym
from .bfcl.rows import bfcl_multi_turn
from .chat_values import chat_of
from .fields import field, kind, text_of
from .question_answer import Columns, columns_of, one_of_a_list, question_answer

QUESTION_ANSWER = "question_answer"
INPUT, LABEL = "prompt", "label"
"""What a converted row calls its input and its label."""
DAPO_HEAD, DAPO_TAIL = "Solve the following math problem step by step.", "Remember to put your answer on its own line"
SEARCH_HEAD, SEARCH_MARK = "Answer the given question.", "Question: "

Row = Mapping[str, Any]


def orz(where: str, row: Row) -> dict[str, Any]:
    return {INPUT: text_of(where, row, "0.value"), LABEL: text_of(where, row, "1.ground_truth.value")}


def verl(where: str, row: Row, *, labels: bool = True) -> dict[str, Any]:
    """The label is text, or JSON of what is there. The prompt is a chat, its JSON text, or the problem alone, as in
    DAPO-Math-17k-Processed; the facts of the reward may be JSON text too. labels: whether the row must have a label."""
    messages = chat_of(field(where, row, "prompt", object, "a list of chat messages"))
    if not isinstance(messages, str | list) or not messages:
        raise DataError(
            f"{where}: prompt is {kind(messages)}, not a list of chat messages, nor a problem's text. Correct or remove"
            " the row."
        )
    row = {**row, "reward_model": facts_of(row)}
    if not labels and not (row["reward_model"] or {}).get("ground_truth"):
        row["reward_model"] = {**(row["reward_model"] or {}), "ground_truth": ""}
    truth = field(where, row, "reward_model.ground_truth", object, "the answer")
    if labels and (truth is None or truth in ("", [], {})):
        raise DataError(
            f"{where}: reward_model.ground_truth is {kind(truth)}, not an answer: text, a number, a list or an object."
            " Fill it in or remove the row."
        )
    source = row.get("data_source")
    if isinstance(truth, list) and len(truth) == 1 and isinstance(truth[0], str):
        truth = truth[0]
    truth = one_of_a_list(truth) if isinstance(truth, str) else truth
    return {INPUT: messages, LABEL: truth, "meta": {} if source is None else {"datasource": source}}


def facts_of(row: Row) -> Any:
    """Return what verl's column reward_model holds, also where it is JSON text."""
    facts = row.get("reward_model")
    if isinstance(facts, str):
        with suppress(ValueError, RecursionError):
            return json.loads(facts)
    return facts


def _user_text(where: str, messages: list[Any] | str) -> str:
    if isinstance(messages, str):
        return messages
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"])
    raise DataError(f"{where}: prompt is {kind(messages)}, without a user message. Correct or remove the row.")


def dapo(where: str, row: Row) -> dict[str, Any]:
    made = verl(where, row)
    text = _user_text(where, made[INPUT]).strip()
    if text.startswith(DAPO_HEAD):
        text = text.partition("\n\n")[2]
        head, _, tail = text.rpartition("\n\n")
        text = head if tail.startswith(DAPO_TAIL) else text
    return {**made, INPUT: text, LABEL: text_of(where, row, "reward_model.ground_truth")}


def torl(where: str, row: Row) -> dict[str, Any]:
    made = verl(where, row)
    _user_text(where, made[INPUT])
    return {**made, LABEL: text_of(where, row, "reward_model.ground_truth")}


def toolrl(where: str, row: Row) -> dict[str, Any]:
    made = verl(where, row)
    target = text_of(where, row, "reward_model.ground_truth")
    if not any(tag in target for tag in ("<think>", "<tool_call>", "<response>")):
        raise DataError(
            f"{where}: reward_model.ground_truth is {kind(target)}, no target text with <think>, <tool_call> or"
            " <response>. Correct the row."
        )
    _readable(where, toolrl_reward.gold_calls, target)
    return made


def tooln1(where: str, row: Row) -> dict[str, Any]:
    if "tools" in row and ("answer" in row or "answers" in row):
        messages, calls = tool_n1.convert(where, row)
        return {INPUT: messages, LABEL: calls, "meta": {"datasource": "toolcall"}}
    made, label = verl(where, row), text_of(where, row, "reward_model.ground_truth")
    if label.lstrip().startswith("{"):
        raise DataError(
            f"{where}: reward_model.ground_truth is one call, {label[:80]!r}, which no response can match."
            " Make it a JSON list of calls."
        )
    _readable(where, tooln1_reward.gold_calls, label)
    return {**made, LABEL: label}


def _readable(where: str, gold_calls: Callable[[str], list[Any]], label: str) -> None:
    """The reward reads the true calls. Raises DataError where it cannot."""
    try:
        gold_calls(label)
    except ValueError as error:
        raise DataError(f"{where}: reward_model.ground_truth: {error}. Correct or remove the row.") from None


def searchr1(where: str, row: Row) -> dict[str, Any]:
    """The label is {"target": [answers]}. Of Search-R1's own prompt the question is left: a template has its words."""
    if "golden_answers" in row:
        question, target = text_of(where, row, "question"), row["golden_answers"]
        made: dict[str, Any] = {}
    else:
        made = verl(where, row)
        question, target = _user_text(where, made[INPUT]).strip(), facts_of(row)["ground_truth"]
        if question.startswith(SEARCH_HEAD) and SEARCH_MARK in question:
            question = question.rpartition(SEARCH_MARK)[2].strip()
    target = target.get("target") if isinstance(target, Mapping) else target
    answers = [target] if isinstance(target, str) else target
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) for a in answers):
        raise DataError(
            f"{where}: the gold answers are {kind(target)}, not a list of texts. Correct or remove the row."
        )
    if not all(answer.strip() for answer in answers):
        raise DataError(
            f"{where}: the gold answers are {kind(target)}, one of them empty, which an empty answer would match."
            " Correct or remove the row."
        )
    return {
        **made,
        INPUT: question if question.endswith("?") else question + "?",
        LABEL: json.dumps({"target": answers}, ensure_ascii=False),
    }


SCHEMAS: dict[str, Callable[[str, Row], dict[str, Any]]] = {
    "bfcl_multi_turn": bfcl_multi_turn,
    "dapo": dapo,
    "orz": orz,
    QUESTION_ANSWER: question_answer,
    "searchr1": searchr1,
    "swegym": swegym,
    "tooln1": tooln1,
    "toolrl": toolrl,
    "torl": torl,
    "verl": verl,
}


def named(name: str) -> Callable[[str, Row], dict[str, Any]]:
    """Raises ConfigError for a schema that is not known."""
    if name not in SCHEMAS:
        raise unknown(
            "data.row_schema",
            name,
            SCHEMAS,
            "Leave it unset for rows with the columns data.input_key and data.label_key.",
        )
    return SCHEMAS[name]


def detected(row: Row, *, keys: tuple[str | None, str | None] = (None, None), labels: bool = True) -> str | None:
    """The schema that a row's columns and data source show, None where they show none. keys: the columns that the
    settings name for question and answer. labels: whether rows must have an answer."""
    columns = set(row)
    if {"0", "1"} <= columns:
        return "orz"
    if "golden_answers" in columns and "question" in columns:
        return "searchr1"
    if "tools" in columns and ({"conversations", "answer"} <= columns or {"query", "answers"} <= columns):
        return "tooln1"
    if {"question", "involved_classes"} <= columns:
        return "bfcl_multi_turn"
    if any(
        isinstance(part, Mapping) and {"instance_id", "problem_statement"} <= set(part)
        for part in (row, row.get("instance"), row.get("prompt"))
    ):
        return "swegym"
    by_columns = QUESTION_ANSWER if columns_of(row, *keys, labels=labels) else None
    facts = facts_of(row)
    if "prompt" in columns and isinstance(facts, Mapping) and ("ground_truth" in facts or by_columns is None):
        return _of_verl(facts, row.get("data_source"))
    return by_columns


def _of_verl(facts: Mapping[str, Any], source: Any) -> str:
    if source == "rlla":
        return "toolrl"
    if source == "toolcall":
        return "tooln1"
    if isinstance(facts.get("ground_truth"), Mapping) and "target" in facts["ground_truth"]:
        return "searchr1"
    if source == "math_dapo":
        return "dapo"
    return "torl" if "stype" in facts else "verl"


class Reader(NamedTuple):
    """How the rows of a data set are read: by a schema, or as they are (None)."""

    schema: str | None
    columns: Columns | None = None
    """The columns of question and answer in the first row, where the schema is question_answer."""
    labels: bool = True
    """Whether rows must have a label."""

    @classmethod
    def of(
        cls,
        wanted: str | None,
        row: Row,
        plain: bool,
        keys: tuple[str | None, str | None] = (None, None),
        labels: bool = True,
    ) -> Reader:
        """`plain`: the first row has the columns that data.input_key and data.label_key name; `keys` are these.
        `labels`: whether rows must have a label."""
        if wanted is not None:
            named(wanted)
        schema = wanted or (None if plain else detected(row, keys=keys, labels=labels))
        columns = columns_of(row, *keys, labels=labels) if schema == QUESTION_ANSWER else None
        return cls(schema, columns, labels)

    @property
    def question(self) -> str:
        """The column that a schema takes the prompt from."""
        return self.columns.question if self.columns else INPUT

    def __call__(self, where: str, row: dict[str, Any], env_key: str) -> dict[str, Any]:
        """The row converted; what names its environment stays."""
        if self.schema is None:
            return row
        if self.schema == QUESTION_ANSWER:
            made = question_answer(where, row, self.columns, labels=self.labels)
        elif self.schema == "verl":
            made = verl(where, row, labels=self.labels)
        else:
            made = SCHEMAS[self.schema](where, row)
        return {**made, env_key: row.get(env_key)}
