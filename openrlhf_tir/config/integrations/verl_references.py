"""OmegaConf's references in values of verl: `${data.train_files}` and `${oc.env:NAME,default}`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from .bash_script import readable
from .recipe_draft import Draft
from .verl_overrides import value_of

_INTERPOLATION = re.compile(r"\$\{(?P<source>[^${}]*)\}")
"""OmegaConf's reference to another value, or to a variable of the environment."""
MAX_INTERPOLATIONS = 20
"""References of a text that are replaced; a variable of the environment that names itself never ends."""
_ABSENT = object()


def resolved(values: Mapping[str, Any], defaults: Mapping[str, Any], draft: Draft) -> dict[str, Any]:
    """Return values with what OmegaConf puts in the place of their references.

    Args:
        values: Dotted name -> value.
        defaults: The values of verl's own configuration, which references may lead to; None where one is not known.
        draft: Where a value is said that refers to what is not known. It is left out: verl's default of it holds.
    """
    known = {name: value for name, value in defaults.items() if value is not None} | dict(values)
    out: dict[str, Any] = {}
    for key, value in values.items():
        found = _interpolated(value, known, draft, (key,))
        if found is _ABSENT:
            draft.differs(f"{key}={readable(str(value))}: what it refers to is not known here. Left at verl's default.")
        else:
            out[key] = found
    return out


def _interpolated(value: Any, known: Mapping[str, Any], draft: Draft, followed: tuple[str, ...]) -> Any:
    """Return one value with its interpolations resolved; _ABSENT where one of them is not known.

    Args:
        value: The value. The items of a list that a part of it refers to become items of that list.
        known: The values that it may refer to.
        draft: Where a variable that is not set is said.
        followed: The names that led to it; a reference to one of them would never end.
    """
    if isinstance(value, list):
        items: list[Any] = []
        for part in value:
            found = _interpolated(part, known, draft, followed)
            if found is _ABSENT:
                return _ABSENT
            items += found if isinstance(found, list) and isinstance(part, str) else [found]
        return items
    for _ in range(MAX_INTERPOLATIONS):
        match = _INTERPOLATION.search(value) if isinstance(value, str) else None
        if match is None:
            return value
        source = match["source"]
        kind, colon, rest = source.partition(":")
        found = _ABSENT
        if kind == "oc.env" and colon:
            name, comma, default = rest.partition(",")
            found = os.environ.get(name, default if comma else _ABSENT)
            if name not in os.environ:
                instead = f"{default} is taken" if comma else "left out"
                draft.differs(f"${{{source}}}: {name} is not set here, {instead}. Export it, and import again.")
        elif kind == "oc.decode":
            found = rest
        elif source in known and source not in followed:
            found = _interpolated(known[source], known, draft, (*followed, source))
        whole = match.span() == (0, len(value))
        if found is _ABSENT or (isinstance(found, list) and not whole):
            return _ABSENT
        value = found if whole else f"{value[: match.start()]}{found}{value[match.end() :]}"
        value = value_of(value) if isinstance(value, str) else value
    return _ABSENT
