"""HTML: the templates of this folder, rendered. All that is put in is escaped; a missing name is an error."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    loader = PackageLoader("openrlhf_tir.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=False)


def render(template: str, **values: Any) -> str:
    """`template`: a file's name in report/templates."""
    return _environment().get_template(template).render(values)
