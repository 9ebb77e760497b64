"""Convert a row as a method's own code publishes it to the columns that we read (input, label, meta).

There is one small function for each schema:

    orz              {"0": {"value": problem}, "1": {"ground_truth": {"value": answer}}}, or a list of these two;
                     Open-Reasoner-Zero
    dapo             verl's; the problem is taken out of the instructions that DAPO-Math-17k wraps around it
    verl             {"prompt": [messages], "reward_model": {"ground_truth": answer}, "data_source": ...}; ReTool's RL
                     rows, and others
    torl             verl's, system and user message; a text template uses the user message
    toolrl           verl's, with ToolRL's target text as the answer
    tooln1           raw tools, conversations, answer (tool_n1.py), or verl's
    searchr1         {"question", "golden_answers"}, or verl's with {"target": [answers]}; the question, for
                     data.input_template
    question_answer  {"problem" or "question" or ...} and {"answer" or "final_answer" or "solution" or ...}
                     (question_answer.py)
    swegym           agent_schemas.py
    bfcl_multi_turn  bfcl/rows.py

`data.row_schema` names one. If it is unset, rows that have the columns data.input_key and data.label_key are read as
they are, and others by the columns that they have. ZeroTIR's rows have prompt and label, and need no schema.
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
INPUT = "prompt"
"""Column of a converted row's input."""
LABEL = "label"
"""Column of a converted row's label."""
ENV_COLUMN = "env"
"""Column of the name of a row's environment, if it has one."""
DAPO_HEAD = "Solve the following math problem step by step."
DAPO_TAIL = "Remember to put your answer on its own line"
SEARCH_HEAD = "Answer the given question."
SEARCH_MARK = "Question: "

Row = Mapping[str, Any]


def orz(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of Open-Reasoner-Zero."""
    return {INPUT: text_of(where, row, "0.value"), LABEL: text_of(where, row, "1.ground_truth.value")}


def verl(where: str, row: Row, *, labels: bool = True) -> dict[str, Any]:
    """Convert a row of verl. The label is text, or JSON of the ground truth.

    The prompt is a chat, its JSON text, or the problem alone, as in DAPO-Math-17k-Processed. The column reward_model
    may be JSON text too. `labels` says whether the row must have a label.

    Raises:
        DataError: The prompt is neither a chat nor text, or the ground truth is no answer.
    """
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
    """Return the value of verl's column reward_model, also if it is JSON text."""
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
    """Convert a row of DAPO-Math-17k: the problem without the instructions around it."""
    converted = verl(where, row)
    text = _user_text(where, converted[INPUT]).strip()
    if text.startswith(DAPO_HEAD):
        text = text.partition("\n\n")[2]
        head, _, tail = text.rpartition("\n\n")
        text = head if tail.startswith(DAPO_TAIL) else text
    return {**converted, INPUT: text, LABEL: text_of(where, row, "reward_model.ground_truth")}


def torl(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of ToRL."""
    converted = verl(where, row)
    _user_text(where, converted[INPUT])
    return {**converted, LABEL: text_of(where, row, "reward_model.ground_truth")}


def toolrl(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of ToolRL, whose label is a target text that its reward can read.

    Raises:
        DataError: The label is no target text.
    """
    converted = verl(where, row)
    target = text_of(where, row, "reward_model.ground_truth")
    if not toolrl_reward.is_target(target):
        raise DataError(
            f"{where}: reward_model.ground_truth is {kind(target)}, no target text with <think>, <tool_call> or"
            " <response>. Correct the row."
        )
    _readable(where, toolrl_reward.gold_calls, target)
    return converted


def tooln1(where: str, row: Row) -> dict[str, Any]:
    """Convert a raw row of Tool-N1, or a row of verl with its list of calls.

    Raises:
        DataError: The label is one call, and not a list of calls.
    """
    if "tools" in row and ("answer" in row or "answers" in row):
        messages, calls = tool_n1.convert(where, row)
        return {INPUT: messages, LABEL: calls, "meta": {"datasource": "toolcall"}}
    converted = verl(where, row)
    label = text_of(where, row, "reward_model.ground_truth")
    if label.lstrip().startswith("{"):
        raise DataError(
            f"{where}: reward_model.ground_truth is one call, {label[:80]!r}, which no response can match."
            " Make it a JSON list of calls."
        )
    _readable(where, tooln1_reward.gold_calls, label)
    return {**converted, LABEL: label}


def _readable(where: str, gold_calls: Callable[[str], list[Any]], label: str) -> None:
    """Check that the reward can read the true calls. Raises DataError."""
    try:
        gold_calls(label)
    except ValueError as error:
        raise DataError(f"{where}: reward_model.ground_truth: {error}. Correct or remove the row.") from None


def searchr1(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of Search-R1. The label is {"target": [answers]}; only the question of its prompt is kept.

    Raises:
        DataError: The gold answers are not texts, or one of them is empty.
    """
    if "golden_answers" in row:
        question, target = text_of(where, row, "question"), row["golden_answers"]
        converted: dict[str, Any] = {}
    else:
        converted = verl(where, row)
        question, target = _user_text(where, converted[INPUT]).strip(), facts_of(row)["ground_truth"]
        if question.startswith(SEARCH_HEAD) and SEARCH_MARK in question:
            question = question.rpartition(SEARCH_MARK)[2].strip()
    target = target.get("target") if isinstance(target, Mapping) else target
    answers = [target] if isinstance(target, str) else target
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise DataError(
            f"{where}: the gold answers are {kind(target)}, not a list of texts. Correct or remove the row."
        )
    if not all(answer.strip() for answer in answers):
        raise DataError(
            f"{where}: the gold answers are {kind(target)}, one of them empty, which an empty answer would match."
            " Correct or remove the row."
        )
    return {
        **converted,
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


def detected(row: Row, *, keys: tuple[str | None, str | None] = (None, None), labels: bool = True) -> str | None:
    """Return the schema that a row's columns and data source show; None if they show none.

    Args:
        row: The row.
        keys: The columns that the settings name for question and answer.
        labels: Whether rows must have an answer.
    """
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
    """How the rows of a data set are read.

    Attributes:
        schema: Their schema; None if they are read as they are.
        columns: The columns of question and answer in the first row, if the schema is question_answer.
        labels: Whether rows must have a label.
    """

    schema: str | None
    columns: Columns | None = None
    labels: bool = True

    @classmethod
    def of(
        cls,
        wanted: str | None,
        row: Row,
        plain: bool,
        keys: tuple[str | None, str | None] = (None, None),
        labels: bool = True,
    ) -> Reader:
        """Return the reader for the data set of a row.

        Args:
            wanted: data.row_schema; None to detect it.
            row: The first row.
            plain: Whether that row has the columns that data.input_key and data.label_key name.
            keys: These columns.
            labels: Whether rows must have a label.

        Raises:
            ConfigError: The schema is unknown.
        """
        if wanted is not None and wanted not in SCHEMAS:
            raise unknown(
                "data.row_schema",
                wanted,
                SCHEMAS,
                "Leave it unset for rows with the columns data.input_key and data.label_key.",
            )
        schema = wanted or (None if plain else detected(row, keys=keys, labels=labels))
        columns = columns_of(row, *keys, labels=labels) if schema == QUESTION_ANSWER else None
        return cls(schema, columns, labels)

    @property
    def question(self) -> str:
        """The column from which a schema takes the prompt."""
        return self.columns.question if self.columns else INPUT

    def __call__(self, where: str, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row converted. The name of its environment stays."""
        if self.schema is None:
            return row
        if self.schema == QUESTION_ANSWER:
            converted = question_answer(where, row, self.columns, labels=self.labels)
        elif self.schema == "verl":
            converted = verl(where, row, labels=self.labels)
        else:
            converted = SCHEMAS[self.schema](where, row)
        return {**converted, ENV_COLUMN: row.get(ENV_COLUMN)}
