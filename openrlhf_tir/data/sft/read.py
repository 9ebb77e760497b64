"""Read the data sets of a fine-tuning run as rows of tokens, with facts about them.

Everything is read and tokenised before a model is loaded, so that all bad rows are reported at once, with file, line,
field and value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...config import Config
from ...errors import ConfigError, DataError, TirError
from ..bad_rows import MOST_LISTED, BadRows
from ..chat_template import ChatTemplate
from ..fields import BY_SCHEMA
from ..rows import SPLIT_SETTING, read_rows
from .pieces import Reader
from .tokens import Piece, RowDigest, SftRow, Vocabulary, tokenised

MAX_LISTED = 50
"""Bad rows that are listed when they refuse the data; the others are counted."""
SETTINGS = {
    "train": {"data.prompt_dataset": "sft.dataset", SPLIT_SETTING: "data.prompt_split"},
    "eval": {"data.prompt_dataset": "sft.eval_dataset", SPLIT_SETTING: "eval.split"},
}
"""Names of settings in the reader's errors -> their names here."""


@dataclass
class SftSet:
    """The rows of one data set.

    Attributes:
        rows: The rows.
        counts: Rows that were read, and sequences that are too long or have nothing to learn.
        said: Further lines to print.
        digest: A digest of all tokens and weights, in order, with the time of FIXED_DAY if the chat template writes
            the time. It shows whether a resumed run learns from the same rows.
    """

    rows: list[SftRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    digest: str = ""

    def facts(self, named: str, max_len: int) -> list[str]:
        """Return lines to print about the data set `named`."""
        lengths = [len(row.token_ids) for row in self.rows]
        learned = sum(row.trained for row in self.rows)
        tokens = (
            f"{len(self.rows)} sequences of {sum(lengths):,} tokens, {learned / sum(lengths):.0%} learned;"
            f" the longest has {max(lengths)}"
        )
        lines = [f"{named}: {self.counts['read']} rows, {tokens}"]
        if n := self.counts["too_long"]:
            lines.append(
                f"{named}: {n} sequences of more than sft.max_len = {max_len} tokens are left out;"
                " raise it to keep them"
            )
        if n := self.counts["nothing_learned"]:
            lines.append(f"{named}: {n} sequences in which nothing is learned are left out")
        return [*lines, *self.said]


def load_set(
    cfg: Config,
    vocabulary: Vocabulary,
    template: ChatTemplate | None,
    *,
    held_out: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> SftSet:
    """Read the rows of sft.dataset, or with `held_out` those of sft.eval_dataset.

    Args:
        cfg: The configuration.
        vocabulary: The tokenizer.
        template: Its chat template, if it has one.
        held_out: Whether to read sft.eval_dataset.
        tick: Called for each row.

    Raises:
        ConfigError: There is no such data.
        DataError: Rows are bad (data.on_bad_row), or none is left.
    """
    reader = Reader(cfg.sft, template, vocabulary.bos, tuple(vocabulary.specials))
    undated = None
    if template is not None and template.writes_time:
        undated = Reader(cfg.sft, template.on_one_day(), vocabulary.bos, tuple(vocabulary.specials))
    rows = SftSet()
    digest = RowDigest()
    bad = BadRows("skip", MAX_LISTED if cfg.data.on_bad_row == "error" else MOST_LISTED)
    names = [cfg.sft.eval_dataset] if held_out else cfg.sft.datasets
    for where, row in _rows(cfg, names, bad, held_out):
        try:
            chains = reader(where, row)
        except DataError as error:
            bad(DataError(str(error).replace(BY_SCHEMA, "name its columns by sft.input_key and sft.output_key")))
            continue
        rows.counts["read"] += 1
        known: dict[tuple[Piece, bool], list[int]] = {}
        kept = _add(rows, [tokenised(chain, vocabulary, known) for chain in chains], cfg.sft.max_len)
        if undated is not None and kept:
            # Only the pieces with the date are tokenised again.
            kept = [tokenised(chain, vocabulary, known) for chain in undated(where, row)]
        for sequence in kept:
            digest.add(sequence)
        tick()
    if bad.count and cfg.data.on_bad_row == "error":
        more = (
            f"\n{bad.count} bad rows. Correct them, or leave them out: --data.on_bad_row skip." if bad.count > 1 else ""
        )
        raise DataError("\n".join(bad.listed) + more)
    bad.check_some_good(rows.counts["read"], names)
    rows.digest = str(digest)
    rows.said = [*bad.facts(), *(f"{note}: {count}" for note, count in reader.notes.items())]
    if not rows.rows:
        reasons = (
            ", ".join(
                f"{reason.replace('_', ' ')} {count}" for reason, count in rows.counts.items() if reason != "read"
            )
            or "it has no rows"
        )
        raise DataError(
            f"{', '.join(names)}: nothing is left to learn from ({reasons})."
            f" {f'Raise sft.max_len = {cfg.sft.max_len}, or give' if rows.counts['too_long'] else 'Give'} other rows."
        )
    return rows


def _add(rows: SftSet, made: list[SftRow], max_len: int) -> list[SftRow]:
    """Add the sequences of a row that can be learned, and return them."""
    kept = []
    for row in made:
        fault = ""
        if len(row.token_ids) > max_len:
            fault = "too_long"
        elif not row.trained:
            fault = "nothing_learned"
        rows.counts[fault or "kept"] += 1
        if not fault:
            kept.append(row)
    rows.rows += kept
    return kept


def _rows(cfg: Config, names: list[str], bad: BadRows, held_out: bool) -> Iterator[tuple[str, Mapping[str, Any]]]:
    split = cfg.eval.split if held_out else cfg.data.prompt_split
    for name in names:
        try:
            yield from islice(read_rows(name, split, bad), cfg.data.max_samples)
        except (ConfigError, DataError) as error:
            raise _renamed(error, SETTINGS["eval" if held_out else "train"]) from None


def _renamed(error: TirError, names: Mapping[str, str]) -> TirError:
    def change(text: str) -> str:
        for theirs, ours in names.items():
            text = text.replace(theirs, ours)
        return text

    return error.reworded(change)
