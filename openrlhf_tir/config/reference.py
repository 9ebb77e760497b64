"""Write docs/settings.md, the reference page of all settings, from what their sections declare."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from .catalog import Setting, all_settings
from .removed_settings import REMOVED
from .schema import Config
from .toml_file import literal

HEAD = """\
# Settings

Every field of the configuration. It is `section.name` in a recipe's `[section]` and the flag `--section.name`;
[configuration.md](configuration.md) says what is accepted, and how recipes and flags add up.

"On resume" says what happens if a run resumes from a checkpoint that was made with another value: it is allowed,
reported at the start, or refused ([checkpoints.md](checkpoints.md)).
This page is written by `openrlhf-tir show-config --reference > docs/settings.md`.
"""

REMOVED_HEAD = """
## Removed

Settings of earlier versions. Each is refused with what to do instead.

| setting | instead |
|---|---|
"""


def markdown() -> str:
    """Return the whole page: a table for each section, in the order of the schema, and what was removed."""
    sections: dict[str, list[Setting]] = {}
    for setting in all_settings():
        sections.setdefault(setting.section, []).append(setting)
    tables = "".join(f"\n## {name}\n\n{_intro(name, rows)}{_table(rows)}" for name, rows in sections.items())
    return HEAD + tables + _removed()


def _removed() -> str:
    rows = "".join(f"| `{name}` | {_cell(remedy)} |\n" for name, remedy in sorted(REMOVED.items()))
    return REMOVED_HEAD + rows


def _intro(name: str, rows: list[Setting]) -> str:
    about = rows[0].section_doc
    return f"{about}\n\n" if about and name != "run" else ""


def _table(rows: list[Setting]) -> str:
    lines = ["| setting | values | default | meaning | on resume |", "|---|---|---|---|---|"]
    for setting in rows:
        cells = (
            f"`{setting.name}`",
            values(setting),
            f"`{_default(setting)}`",
            _meaning(setting),
            ": ".join(filter(None, (setting.resume.policy, setting.resume.reason))),
        )
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _meaning(setting: Setting) -> str:
    """Return the description, the conditions of an effect, and OpenRLHF's name if it is another one."""
    sentences = [setting.info.description or "", *(f"Only {c.text}." for c in setting.active_when)]
    if isinstance(setting.metadata.openrlhf, str):
        sentences.append(f"OpenRLHF's name: `{setting.metadata.openrlhf}`.")
    return " ".join(sentences)


def values(setting: Setting) -> str:
    """Return what a setting takes: its type or choices, "unset" if it may have no value, its bounds, its unit."""
    parts = _type(setting.info.annotation)
    bounds = [
        f"{sign} {getattr(entry, name)}"
        for entry in setting.info.metadata
        for name, sign in BOUNDS.items()
        if getattr(entry, name, None) is not None
    ]
    unit = [setting.metadata.unit] if setting.metadata.unit else []
    return ", ".join([" or ".join(dict.fromkeys(parts)), *bounds, *unit])


BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
NAMES: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", types.NoneType: "unset"}


def _type(annotation: Any) -> list[str]:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return [name for arg in args for name in _type(arg)]
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return [f"`{arg}`" for arg in args]
    if origin in (list, tuple):
        return [
            "list of " + "/".join(dict.fromkeys(name for arg in args if arg is not Ellipsis for name in _type(arg)))
        ]
    if origin is dict:
        return ["table"]
    return [NAMES.get(annotation, "path" if getattr(annotation, "__name__", "") == "Path" else "text")]


def _default(setting: Setting) -> str:
    value: Any = Config().model_dump(mode="json")
    for part in setting.name.split("."):
        value = value[part]
    return "unset" if value is None else literal(value)
