"""What every section shares: unknown names are refused, and so is what is no finite number."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=(), allow_inf_nan=False)


Beta = Annotated[float, Field(ge=0, lt=1)]
"""What an average of the past keeps of it."""
NonNegative = Annotated[float, Field(ge=0)]
Option = bool | int | float | str | list[Any] | dict[str, Any]
"""What an option of a method's function may be: what TOML can say."""
