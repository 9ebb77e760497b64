"""Convert the rows of BFCL's multi-turn files: the first turn is the prompt, the others travel in meta to the
environment (env_servers/adapters/bfcl).

    {"id", "question": [[messages of a turn], ...], "initial_config", "involved_classes", "ground_truth": [[call, ...],
    ...]}

`ground_truth` is joined by id from the possible_answer file. In a turn without messages, of multi_turn_miss_func,
`missed_function` offers the functions that it withheld: {"3": ["sort"]}. The package reads neither `path` nor
`excluded_function`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import DataError
from ..fields import field, kind, text_of
from .functions import FILES, Schema, offered
from .prompt import prompt_and_meta

Row = Mapping[str, Any]


def bfcl_multi_turn(where: str, row: Row) -> dict[str, Any]:
    """Convert a row.

    The input is the messages of the first turn, the label the true calls of every turn; later turns and the state of
    the classes are in `meta`.

    Raises:
        DataError: The turns or their true calls have another form, or the true calls are in a file of their own.
    """
    name = text_of(where, row, "id")
    turns = field(where, row, "question", list, "a list of turns, each a list of chat messages")
    for number, turn in enumerate(turns):
        if not isinstance(turn, list):
            raise DataError(
                f"{where}: question[{number}] is {kind(turn)}, not a list of chat messages. Correct or remove the row."
            )
    if not turns or not turns[0]:
        raise DataError(f"{where}: question is {kind(turns)}, without a first message. Correct or remove the row.")
    classes = field(where, row, "involved_classes", list, "a list of class names")
    if "ground_truth" not in row:
        raise DataError(
            f"{where} has no field 'ground_truth'. Join the file possible_answer of the same name:"
            " openrlhf-tir data convert --join FILE."
        )
    truth = field(where, row, "ground_truth", list, "a list of calls for each turn")
    if len(truth) != len(turns):
        raise DataError(
            f"{where}: ground_truth has {len(truth)} turns, question has {len(turns)}. Correct or remove the row."
        )
    for number, calls in enumerate(truth):
        if not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
            raise DataError(
                f"{where}: ground_truth[{number}] is {kind(calls)}, not a list of calls as text. Correct or remove the"
                " row."
            )
    meta = {
        "datasource": "bfcl_multi_turn",
        "id": name,
        "turns": turns[1:],
        "involved_classes": classes,
        "initial_config": row.get("initial_config") or {},
    }
    return {"prompt": turns[0], "label": truth, "meta": meta | {"missed_function": _missed(where, row)}}


def _missed(where: str, row: Row) -> dict[str, list[str]]:
    """Return turn (counted from 0, as text) -> the functions that are offered only from that turn on."""
    missed = row.get("missed_function") or {}
    if not isinstance(missed, Mapping) or not all(
        isinstance(names, list) and all(isinstance(n, str) for n in names) for names in missed.values()
    ):
        raise DataError(
            f'{where}: missed_function is {kind(missed)}, not lists of names by turn: {{"3": ["sort"]}}. Correct or'
            " remove the row."
        )
    return dict(missed)


def with_functions(where: str, row: Row, functions: Mapping[str, Sequence[Schema]], protocol: str) -> dict[str, Any]:
    """Convert a row, with a prompt that shows the functions of its classes in the form of `protocol`.

    Raises:
        DataError: As `bfcl_multi_turn`, or the row names an unknown class.
    """
    converted = bfcl_multi_turn(where, row)
    meta = converted["meta"]
    if unknown := [name for name in meta["involved_classes"] if name not in functions]:
        raise DataError(
            f"{where}: involved_classes has {kind(unknown[0])}. The multi-turn classes are {', '.join(FILES)}."
            " Correct or remove the row."
        )
    withheld = [name for names in meta["missed_function"].values() for name in names]
    prompt, prompt_meta = prompt_and_meta(
        converted["prompt"], offered(functions, meta["involved_classes"], withheld), protocol
    )
    return {**converted, "prompt": prompt, "meta": meta | prompt_meta}
