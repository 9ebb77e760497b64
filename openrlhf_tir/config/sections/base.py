"""What every section shares: names that are not settings are refused, and so are numbers that are not finite."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from ..setting import REPORTED, Resume


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=(), allow_inf_nan=False)

    RESUME: ClassVar[Resume] = REPORTED
    """Policy of settings that declare none. By default, a change of a setting that nobody thought of is reported."""
    FINE_TUNING: ClassVar[bool] = False
    """True if `openrlhf-tir sft` reads the section's settings."""


Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a moving average: the share of the past that one step keeps."""
NonNegative = Annotated[float, Field(ge=0)]
Option = bool | int | float | str | list[Any] | dict[str, Any]
"""Value of an option that is passed to a method's function: any value of TOML."""
