"""Render the HTML templates of this folder. Values are escaped, and a missing value is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    loader = PackageLoader("openrlhf_tir.observability.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=False)


def render(template: str, **values: Any) -> str:
    """Return the template filled with the values.

    Args:
        template: Name of a file in observability/report/templates.
        values: What the template shows, by name.
    """
    return _environment().get_template(template).render(values)
