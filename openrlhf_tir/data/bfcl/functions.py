"""Functions of BFCL's multi-turn classes: the package's descriptions -> JSON schemas, as OpenAI's {"name",
"description", "parameters"}.

    DIRECTORY/math_api.json       one description a line: {"name", "description", "parameters": {"type": "dict", ...},
                                  "response": ...}

Source: bfcl_eval, constants/executable_backend_config.py and type_mappings.py; its function-calling handlers convert
the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..json_rows import read_json

DIRECTORY = "multi_turn_func_doc"
"""Beside the files of questions, in the data of the package bfcl-eval."""
FILES = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TwitterAPI": "posting_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "VehicleControlAPI": "vehicle_control.json",
}
"""The classes of the multi-turn categories. Those of the agentic ones (web search, memory) are not among them."""
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "bool": "boolean", "any": "string"}

Schema = dict[str, Any]


def read_functions(directory: Path) -> dict[str, list[Schema]]:
    """Class -> schemas of its functions, in the file's order. DataError for a file that is not there, or no such."""
    return {name: [_schema(where, row) for where, row in _rows(directory / file)] for name, file in FILES.items()}


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        raise DataError(
            f"{path} is not there: BFCL's multi-turn rows name classes, and this describes the functions of one. "
            f"Copy the directory {DIRECTORY} of the package bfcl-eval (bfcl_eval/data) beside the file of questions."
        )
    return read_json(path)


def _schema(where: str, row: Mapping[str, Any]) -> Schema:
    name, parameters = row.get("name"), row.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise DataError(
            f"{where} describes no function: it has no name or no parameters. Take the file from the package bfcl-eval."
        )
    return {"name": name, "description": str(row.get("description", "")), "parameters": _converted(parameters)}


def _converted(described: Any) -> Any:
    """With the types of JSON schema. A `type` that is an object is a parameter of that name."""
    if isinstance(described, Mapping):
        return {
            k: TYPES.get(v, v) if k == "type" and isinstance(v, str) else _converted(v) for k, v in described.items()
        }
    return [_converted(v) for v in described] if isinstance(described, list) else described


def offered(
    functions: Mapping[str, Sequence[Schema]], classes: Iterable[str], withheld: Iterable[str] = ()
) -> list[Schema]:
    """Schemas of the classes' functions but for those `withheld`. Raises KeyError for a class that is not known."""
    hidden = set(withheld)
    return [f for c in classes for f in functions[c] if f["name"] not in hidden]
