"""Schemas of tasks that an agent works on in a world of its own: what the world needs travels in `meta`, to the environment's server.

swegym            {"instance_id", "repo", "base_commit", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS", "patch", "test_patch", ...}
                  SWE-Gym's and SWE-bench's, as they are or below "instance" or "prompt" (SkyRL-v0)
bfcl_multi_turn   {"id", "question": [[messages of a turn], ...], "initial_config", "involved_classes", "ground_truth": [[call, ...], ...]}
                  BFCL v3's multi-turn tasks, joined by id with its possible_answer file (openrlhf-tir data convert --join)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from .fields import field, json_list, kind, text_of

Row = Mapping[str, Any]
SWE_TEXTS = ("repo", "base_commit", "problem_statement", "test_patch")
SWE_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def swegym(where: str, row: Row) -> dict[str, Any]:
    """The input is the issue, the label the instance's name, `meta.instance` all of the row. Test lists may be JSON text, as SWE-bench writes them."""
    at = next((key for key in ("instance", "prompt") if isinstance(row.get(key), Mapping)), None)
    instance: Row = row[at] if at else row
    for name in SWE_TEXTS:
        text_of(where, instance, name)
    tests = {name: json_list(where, instance, name) for name in SWE_TESTS}
    for name, listed in tests.items():
        if strange := [t for t in listed if not isinstance(t, str)]:
            raise DataError(f"{where}: {name} holds {kind(strange[0])}, not names of tests. Correct or remove the row.")
    if not tests["FAIL_TO_PASS"]:
        raise DataError(f"{where}: FAIL_TO_PASS is empty: no test tells a solution from none. Remove the row.")
    name = text_of(where, instance, "instance_id")
    return {"prompt": instance["problem_statement"], "label": name, "meta": {"datasource": "swe", "instance": {**instance, **tests}}}


def bfcl_multi_turn(where: str, row: Row) -> dict[str, Any]:
    """The input is the first turn's messages, the label the true calls of every turn; later turns and the classes' state are in `meta`."""
    name = text_of(where, row, "id")
    turns = field(where, row, "question", list, "a list of turns, each a list of chat messages")
    for i, turn in enumerate(turns):
        if not isinstance(turn, list):
            raise DataError(f"{where}: question[{i}] is {kind(turn)}, not a list of chat messages. Correct or remove the row.")
    if not turns or not turns[0]:
        raise DataError(f"{where}: question is {kind(turns)}, without a first message. Correct or remove the row.")
    classes = field(where, row, "involved_classes", list, "a list of class names")
    if "ground_truth" not in row:
        raise DataError(f"{where} has no field 'ground_truth'. Join the file possible_answer of the same name: openrlhf-tir data convert --join FILE.")
    truth = field(where, row, "ground_truth", list, "a list of calls for each turn")
    if len(truth) != len(turns):
        raise DataError(f"{where}: ground_truth has {len(truth)} turns, question has {len(turns)}. Correct or remove the row.")
    for i, calls in enumerate(truth):
        if not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
            raise DataError(f"{where}: ground_truth[{i}] is {kind(calls)}, not a list of calls as text. Correct or remove the row.")
    meta = {"datasource": "bfcl_multi_turn", "id": name, "turns": turns[1:], "involved_classes": classes, "initial_config": row.get("initial_config") or {}}
    return {"prompt": turns[0], "label": truth, "meta": meta}
