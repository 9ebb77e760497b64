"""Schemas of tasks that an agent works on in its own world. What the world needs travels in `meta` to the environment.

swegym            {"instance_id", "repo", "base_commit", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS", "patch",
                  "test_patch", ...}
                  SWE-Gym's and SWE-bench's, as they are or inside "instance" or "prompt" (SkyRL-v0)

BFCL's multi-turn rows are in bfcl/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from .fields import json_list, kind, text_of

Row = Mapping[str, Any]
SWE_TEXTS = ("repo", "base_commit", "problem_statement", "test_patch")
SWE_TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
"""Columns, and keys of meta, with the names of tests."""


def swegym(where: str, row: Row) -> dict[str, Any]:
    """Convert a row of SWE-Gym or SWE-bench.

    The input is the issue, the label the name of the instance, and `meta.instance` the whole row. Lists of tests may be
    JSON text, as SWE-bench writes them.

    Raises:
        DataError: The tests are not names of tests, or no test recognises a solution.
    """
    column = next((key for key in ("instance", "prompt") if isinstance(row.get(key), Mapping)), None)
    instance: Row = row[column] if column else row
    for name in SWE_TEXTS:
        text_of(where, instance, name)
    tests = {name: json_list(where, instance, name) for name in SWE_TESTS}
    for name, listed in tests.items():
        if not_names := [test for test in listed if not isinstance(test, str)]:
            raise DataError(
                f"{where}: {name} holds {kind(not_names[0])}, not names of tests. Correct or remove the row."
            )
    if not tests["FAIL_TO_PASS"]:
        raise DataError(f"{where}: FAIL_TO_PASS is empty: no test recognises a solution. Remove the row.")
    name = text_of(where, instance, "instance_id")
    return {
        "prompt": instance["problem_statement"],
        "label": name,
        "meta": {"datasource": "swe", "instance": {**instance, **tests}},
    }
