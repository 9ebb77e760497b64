"""The task of one row, checked: the meta column that openrlhf_tir/data/bfcl/rows.py writes, and the label, BFCL's
ground truth.

    {"id": "multi_turn_base_0", "involved_classes": [...], "initial_config": {class: {...}}, "turns": [[messages], ...],
     "missed_function": {"3": ["sort"]}, "functions_told": true, "label": [["cd(folder='document')", ...], ...]}

A true call is text in Python's notation. It is parsed, and its arguments are literals: nothing is evaluated.
"""

from __future__ import annotations

import ast
import json
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from openrlhf_tir.data.bfcl.functions import FILES


class Call(NamedTuple):
    """A call. `values` are positional arguments, which only true calls have."""

    name: str
    values: tuple[Any, ...]
    arguments: dict[str, Any]


def parse_call(text: str) -> Call:
    """Parse "sort('a.txt', reverse=True)". Raises ValueError if it is not a call of a name with literal arguments."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and all(k.arg for k in call.keywords):
            values = tuple(ast.literal_eval(v) for v in call.args)
            return Call(call.func.id, values, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords})
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ValueError(
            f"ground truth: {text[:200]!r} is not a call with literal arguments: {e}. Correct the row."
        ) from None
    raise ValueError(f"ground truth: {text[:200]!r} is not a call of a function by its name. Correct the row.")


class BfclTask(BaseModel):
    """A multi-turn task. `turns` has the messages of the later turns; those of the first one are in the prompt."""

    model_config = ConfigDict(extra="ignore")
    id: str
    involved_classes: list[str] = Field(min_length=1)
    initial_config: dict[str, dict[str, Any]] = Field(default_factory=dict)
    turns: list[list[dict[str, Any]]] = Field(default_factory=list)
    missed_function: dict[str, list[str]] = Field(default_factory=dict)
    functions_told: bool = Field(
        False, description="the prompt has the functions; otherwise the first observation lists them"
    )
    label: list[list[str]]

    @field_validator("label", mode="before")
    @classmethod
    def _from_json(cls, label: Any) -> Any:
        """Parse a label that comes as text, as a run sends it."""
        return json.loads(label) if isinstance(label, str) else label

    @model_validator(mode="after")
    def _fits(self) -> BfclTask:
        if unknown := [c for c in self.involved_classes if c not in FILES]:
            raise ValueError(f"involved_classes: {', '.join(unknown)}: the multi-turn classes are {', '.join(FILES)}.")
        if len(self.label) != 1 + len(self.turns):
            raise ValueError(
                f"label has the true calls of {len(self.label)} turns, and the task has 1 + {len(self.turns)}."
            )
        return self

    @property
    def long_context(self) -> bool:
        """True for the categories in which the classes fill files and lists with irrelevant content."""
        category = self.id.rpartition("_")[0]
        return "long_context" in category or "composite" in category

    @property
    def withheld(self) -> list[str]:
        """Names of the functions that are offered only in a later turn."""
        return [name for names in self.missed_function.values() for name in names]
