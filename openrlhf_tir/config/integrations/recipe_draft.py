"""A recipe in the making: settings with the reason of each, what differs from where it came from, and its text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...algorithms.advantages import get_estimator
from ..catalog import all_settings
from ..fine_tuning import RANKS_OF, alone
from ..method_summary import method_summary
from ..problems import Problems
from ..rules import violations_of_fine_tuning
from ..schema import Config
from ..sections.conditions import is_user_code
from ..settings import attempt
from ..toml_file import literal

WIDTH = 116
"""Columns of a comment."""


class Difference(NamedTuple):
    """Arguments of another project that have no counterpart here.

    Attributes:
        names: Pattern of the arguments.
        sentence: Why, or what to do instead; it follows the argument and a colon.
        harmless: Values with which nothing differs.
    """

    names: str
    sentence: str
    harmless: tuple[Any, ...] = (None, False)


@dataclass
class Draft:
    """Settings of a recipe by dotted name, and what is said of them."""

    settings: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """Setting -> the comment beside its line."""
    differences: list[str] = field(default_factory=list)
    """What the recipe does not do as the command did, a sentence each."""
    defaults: list[str] = field(default_factory=list)
    """Settings whose value is the other project's default, where this project's is another."""

    def set(self, name: str, value: Any, why: str = "") -> None:
        """Give a setting a value, and the reason beside it."""
        self.settings[name] = value
        self.why.pop(name, None)
        if why:
            self.why[name] = why

    def unset(self, name: str) -> None:
        """Leave a setting at this project's default."""
        self.settings.pop(name, None)
        self.why.pop(name, None)

    def differs(self, sentence: str) -> None:
        """Say something that is not as the command had it, once."""
        if sentence not in self.differences:
            self.differences.append(sentence)


NO_SETTING = "there is no such setting here; left out"


def sentence_about(rows: Iterable[Difference], name: str, value: Any) -> str | None:
    """Return what is to be said of an argument: "" if nothing differs with its value, None if no row is about it."""
    row = next((row for row in rows if re.fullmatch(row.names, name)), None)
    if row is None:
        return None
    return "" if value in row.harmless else row.sentence


class Copied(NamedTuple):
    """A setting of another project that is one here.

    Attributes:
        theirs: The other project's name.
        ours: The setting here.
        value: Makes the value here of theirs; None leaves the setting at this project's default.
        why: The comment beside the setting.
    """

    theirs: str
    ours: str
    value: Callable[[Any], Any]
    why: str = ""


def if_set(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a `Copied.value` that takes nothing over where their value is null, 0, False or empty."""
    return lambda value: kind(value) if value else None


def if_positive(value: Any) -> int | None:
    """Return a number as a `Copied.value`; -1 and the like stand for none."""
    return int(value) if value is not None and int(value) > 0 else None


def copy(rows: Iterable[Copied], read: Callable[[str], Any], draft: Draft) -> None:
    """Set what the rows say; `read` returns a setting of the other project."""
    for row in rows:
        value = row.value(read(row.theirs))
        if value is not None:
            draft.set(row.ours, value, row.why)


@dataclass
class Imported:
    """A recipe that was made of another project's command, and the configuration that it makes."""

    draft: Draft
    config: Config
    problems: list[str]
    """What would still be refused, a line each."""
    summary: str
    """One sentence about what it trains."""
    nothing: list[str] = field(default_factory=list)
    """Options of the command that need nothing here."""


def checked(draft: Draft, nothing: Sequence[str] = (), unchecked: Sequence[str] = ()) -> Imported:
    """Return a finished draft with the configuration of a training run that it makes.

    Args:
        draft: The recipe.
        nothing: Options of the command that need nothing here.
        unchecked: Settings that are not looked at, as they name files which the import has yet to write.
    """
    problems = Problems()
    cfg = attempt(None, {name: value for name, value in draft.settings.items() if name not in unchecked}, problems)
    if not is_user_code(cfg.algo.advantage.estimator):  # a user's own is loaded when the recipe is checked
        with problems.caught(code="method"):
            get_estimator(cfg.algo.advantage.estimator)
    return Imported(draft, cfg, problems.lines, method_summary(cfg), list(nothing))


def checked_fine_tuning(draft: Draft, nothing: Sequence[str] = ()) -> Imported:
    """Return a finished draft with the configuration of a fine-tuning that it makes."""
    problems = Problems()
    cfg = attempt(None, draft.settings, problems, violations_of_fine_tuning, ranks_of=RANKS_OF)
    s = cfg.sft
    passes = f"{s.max_epochs} pass{'es' * (s.max_epochs > 1)} over {' '.join(s.datasets) or 'no rows'}"
    summary = f"fine-tuning: {passes}, {s.batch_size} rows an update, learning rate {s.learning_rate:g}"
    return Imported(draft, alone(cfg), problems.lines, summary, list(nothing))


def toml_of(draft: Draft, head: list[str]) -> str:
    """Return the recipe's text: the head as comments, then the settings in the order of the reference page."""
    lines = comment_lines(head)
    order = {s.name: i for i, s in enumerate(all_settings())}
    section = None
    for name in sorted(draft.settings, key=lambda n: (n.count(".") > 0, order.get(n, len(order)))):
        table, _, key = name.rpartition(".")
        if table != section and table:
            lines += ["", f"[{table}]"]
        elif section is None and not table:
            lines.append("")
        section = table
        comment = draft.why.get(name, "")
        lines.append(f"{key} = {literal(draft.settings[name])}{f'  # {comment}' if comment else ''}")
    return "\n".join(lines) + "\n"


def comment_lines(paragraphs: list[str]) -> list[str]:
    """Return paragraphs as TOML comments; one that begins with `- ` is an item, an empty one an empty line."""
    lines: list[str] = []
    for paragraph in paragraphs:
        if not paragraph:
            lines.append("#")
            continue
        item = paragraph.startswith("- ")
        text = " ".join(paragraph.split())
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent="# ",
            subsequent_indent="#   " if item else "# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
