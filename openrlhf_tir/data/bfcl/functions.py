"""Convert the package's descriptions of BFCL's multi-turn functions to JSON schemas in OpenAI's form.

    DIRECTORY/math_api.json       one description a line: {"name", "description", "parameters": {"type": "dict", ...},
                                  "response": ...}

Source: bfcl_eval, constants/executable_backend_config.py and type_mappings.py; its function-calling handlers convert
in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import DataError
from ..json_rows import read_json

DIRECTORY = "multi_turn_func_doc"
"""Directory of the descriptions, beside the files of questions in the data of the package bfcl-eval."""
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
"""Class of the multi-turn categories -> its file. The agentic classes (web search, memory) are not supported."""
TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "bool": "boolean", "any": "string"}
"""Type of a description -> type of a JSON schema."""

Schema = dict[str, Any]


def read_functions(directory: Path) -> dict[str, list[Schema]]:
    """Return class -> schemas of its functions, in the order of the file.

    Raises:
        DataError: A file is missing, or is not one of descriptions.
    """
    return {name: [_schema(where, row) for where, row in _rows(directory / file)] for name, file in FILES.items()}


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        raise DataError(
            f"{path} does not exist. BFCL's multi-turn rows name classes, and it describes the functions of one. "
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
    """Return a description with the types of JSON schema. A `type` that is an object is a parameter of that name."""
    if isinstance(described, Mapping):
        return {
            name: TYPES.get(value, value) if name == "type" and isinstance(value, str) else _converted(value)
            for name, value in described.items()
        }
    return [_converted(value) for value in described] if isinstance(described, list) else described


def offered(
    functions: Mapping[str, Sequence[Schema]], classes: Iterable[str], withheld: Iterable[str] = ()
) -> list[Schema]:
    """Return the schemas of the classes' functions except those `withheld`. Raises KeyError for an unknown class."""
    hidden = set(withheld)
    return [function for name in classes for function in functions[name] if function["name"] not in hidden]
