"""Fidelity: the settings of the official scripts beside those of our recipes -> the page docs/fidelity.md.

`official/METHOD.toml` holds what the official code says, a table for each recipe:

    title = "Search-R1"

    [[recipe]]
    name = "search_r1_7b"
    source = "the repository, its commit and the script"

    [[recipe.setting]]
    official = "data.train_batch_size = 512"    as the script writes it; its default where it writes nothing
    here = "rollout.batch_size"                 a setting of ours, or a property of the configuration that follows
    value = 512                                 what it must be for the two to be the same
    why = "..."                                 required where the recipe has another value

A fact that no setting holds has `stated`, what is done here, in place of `here` and `value`; with `why` it differs.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from .catalog import value_at
from .schema import Config
from .settings import load

FACTS = Path(__file__).parent / "official"
UNDECLARED = "nothing says why"
UNSET = "unset"
"""How a TOML file writes None."""


class Fact(BaseModel):
    """One setting of the official code and what it is here."""

    model_config = ConfigDict(extra="forbid")
    official: str
    here: str | None = None
    value: Any = None
    stated: str | None = None
    why: str | None = None

    @model_validator(mode="after")
    def _is_a_setting_or_a_statement(self) -> Fact:
        if (self.here is None) == (self.stated is None):
            raise ValueError(f"{self.official!r} needs either `here` with `value`, or `stated`.")
        return self


class RecipeFacts(BaseModel):
    """What the official code says of one recipe."""

    model_config = ConfigDict(extra="forbid")
    name: str
    source: str
    setting: list[Fact]


class Method(BaseModel):
    """One file of facts."""

    model_config = ConfigDict(extra="forbid")
    title: str
    recipe: list[RecipeFacts]


@dataclass(frozen=True)
class Row:
    """A fact held against a recipe; `same` compares values, whatever `why` says."""

    fact: Fact
    here: str
    same: bool


def methods() -> list[Method]:
    """Return every method's facts, by title."""
    found = [Method.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))) for path in FACTS.glob("*.toml")]
    return sorted(found, key=lambda method: method.title.lower())


def rows(recipe: RecipeFacts, config: Config | None = None) -> list[Row]:
    """Return the recipe's facts beside its values; `config` is another configuration to hold them against."""
    cfg = config or load(recipe.name)
    return [_row(fact, cfg) for fact in recipe.setting]


def _row(fact: Fact, cfg: Config) -> Row:
    if fact.here is None:
        return Row(fact, fact.stated or "", fact.why is None)
    actual = _plain(value_at(cfg, fact.here))
    return Row(fact, f"`{fact.here}` = {_shown(actual)}", actual == _plain(fact.value))


def _plain(value: Any) -> Any:
    if value == UNSET:
        return None
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if value is None:
        return UNSET
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


HEAD = """# Fidelity to the official code

This page holds every recipe of a published method beside the settings of its official scripts: what they say, what \
the recipe has, and why where the two differ.
It is written by `openrlhf-tir show-config --fidelity > docs/fidelity.md` from the recipes and from \
`openrlhf_tir/config/official/*.toml`. A test fails when a recipe changes and the page does not, and when a difference \
has no reason. What the recipes do and how to run them is on [another page](recipes.md).

Three things differ in all recipes, and no table repeats them: tokens are never re-tokenised and no end of text is \
invented; a sample that the infrastructure lost is left out instead of scored; the token mean of the loss is over the \
whole update, where verl takes that of each micro batch. Settings that change speed or memory alone (micro batches, \
offload, parallelism, memory fractions) and those of logging, saving and testing are not listed.
"""


def markdown() -> str:
    """Return the page docs/fidelity.md."""
    parts = [HEAD]
    for method in methods():
        parts.append(f"\n## {method.title}\n")
        for recipe in method.recipe:
            parts.append(f"\n### {recipe.name}\n\nOfficial: {recipe.source}.\n")
            parts.append("\n| official | here | same? |\n|---|---|---|\n")
            for row in rows(recipe):
                verdict = "same" if row.same else f"no: {row.fact.why or UNDECLARED}"
                parts.append(f"| {_cell(row.fact.official)} | {_cell(row.here)} | {_cell(verdict)} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
