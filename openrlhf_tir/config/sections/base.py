"""What every section shares: names that are not settings are refused, and so are numbers that are not finite or
need more than 64 bits."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from ..setting import REPORTED, Resume


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=(), allow_inf_nan=False)

    RESUME: ClassVar[Resume] = REPORTED
    """Policy of settings that declare none. By default, a change of a setting that nobody thought of is reported."""
    FINE_TUNING: ClassVar[bool] = False
    """True if `openrlhf-tir sft` reads the section's settings."""

    @field_validator("*", mode="after")
    @classmethod
    def _fits_into_64_bits(cls, value: Any) -> Any:
        """Refuse an integer that TOML cannot hold: the run's own config.toml could not be read again."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise PydanticCustomError("int_size", "input should fit into 64 bits")
        return value


def names_of(value: str | list[str]) -> list[str]:
    """Return the names in a list, or in a text that separates them by commas."""
    names = value.split(",") if isinstance(value, str) else value
    return [name.strip() for name in names if name.strip()]


Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a moving average: the share of the past that one step keeps."""
NonNegative = Annotated[float, Field(ge=0)]
Option = bool | int | float | str | list[Any] | dict[str, Any]
"""Value of an option that is passed to a method's function: any value of TOML."""
