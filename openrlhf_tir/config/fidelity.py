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
from .toml_file import UNSET

FACTS = Path(__file__).parent / "official"
UNDECLARED = "nothing says why"


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

This page tells you where a recipe of a published method differs from the method's official scripts, and why.

Every setting of the scripts that bears on the method is in \
[`openrlhf_tir/config/official`](../openrlhf_tir/config/official), one file a method, beside the setting that it is \
here. A test compares these files with the recipes and fails where a difference has no reason. Settings that change \
speed or memory alone are left out, and so are those of logging, saving and testing.

The page is generated: `openrlhf-tir show-config --fidelity > docs/fidelity.md`. How to run the recipes is on \
[another page](recipes.md).

Four things differ in every recipe for RL:

- samplers and learner have GPUs of their own, where most scripts alternate on the same ones;
- tokens are never re-tokenised, and no end of text is invented;
- a sample that the infrastructure lost is left out instead of scored;
- the loss's token mean is over the whole update, where verl takes that of each micro batch.
"""


def markdown() -> str:
    """Return the page docs/fidelity.md: the sources of each method's recipes, and what differs from them."""
    parts = [HEAD]
    for method in methods():
        compared = {recipe.name: rows(recipe) for recipe in method.recipe}
        parts.append(f"\n## {method.title}\n\n| recipe | official source | the same |\n|---|---|---|\n")
        for recipe in method.recipe:
            verdicts = [row.same for row in compared[recipe.name]]
            parts.append(f"| `{recipe.name}` | {_cell(recipe.source)} | {sum(verdicts)} of {len(verdicts)} |\n")
        parts.append(_differences(compared))
    return "".join(parts)


def _differences(compared: dict[str, list[Row]]) -> str:
    """Return a table with one line for each difference, which names the recipes that share it."""
    recipes_of: dict[tuple[str, str, str], list[str]] = {}
    for recipe, facts in compared.items():
        for row in facts:
            if not row.same:
                difference = (row.fact.official, row.here, row.fact.why or UNDECLARED)
                recipes_of.setdefault(difference, []).append(recipe)
    if not recipes_of:
        return ""
    lines = ["\n| recipe | official | here | why |\n|---|---|---|---|\n"]
    for difference, names in recipes_of.items():
        shared_by = "all" if names == [*compared] else ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {shared_by} | {' | '.join(map(_cell, difference))} |\n")
    return "".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
