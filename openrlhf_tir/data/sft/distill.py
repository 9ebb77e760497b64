"""Turn a run's kept trajectories into rows for fine-tuning by rejection sampling. What the model wrote stays the
model's, word for word.

    kept trajectory -> refused, for one reason (the first that holds)               counted
                    -> the same response to the same prompt as another one          duplicate; the one of the highest
                                                                                    reward stays
                    -> of each prompt the best `per_prompt`                         over_cap
                    -> {"prompt", "segments": [{"source", "text", "end"}], ...}

Best means the highest reward. Between equal rewards a hash of the text decides, so that neither the order of files nor
the time matters, and short responses have no advantage (Yuan et al., arXiv 2308.01825, keep distinct correct paths in
the same way).
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import DataError
from ...types import CORRECT_ABOVE

FIELDS = (
    "prompt", "label", "env", "reward", "key", "index", "versions", "parts", "failed", "masked", "finish_reason",
    "branches", "runs",
)  # fmt: skip
"""Columns of a kept trajectory that are read."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Selection:
    """Which responses are kept.

    Attributes:
        per_prompt: Maximum number of responses of a prompt.
        min_reward: Responses of a lower reward are refused; None for no limit.
        wrong: Whether incorrect responses are taken too, which requires a min_reward.
    """

    per_prompt: int = 4
    min_reward: float | None = None
    wrong: bool = False

    def refused(self, row: Row) -> str:
        """Return the reason for refusing a response; "" if it is kept."""
        if row["failed"]:
            return "failed"
        if row["masked"]:
            return "masked"
        if row["finish_reason"] == "length":
            return "truncated"
        if not self.wrong and not row["parts"].get("correct", 0.0) > CORRECT_ABOVE:
            return "wrong"
        if self.min_reward is not None and not (row["reward"] is not None and row["reward"] >= self.min_reward):
            return "low_reward"
        if row["branches"]:
            return "several_chains"
        return "" if any(run["source"] == "model" and run["text"].strip() for run in row["runs"]) else "no_response"


@dataclass
class Distilled:
    """The result.

    Attributes:
        rows: Rows for `sft`, in the order of the prompts' first response.
        counts: Number of kept responses, and of the others by reason.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def distill(kept: Iterable[Row], selection: Selection) -> Distilled:
    """Select responses and convert them to rows for `sft`.

    Raises:
        DataError: A column is missing.
    """
    result = Distilled()
    by_prompt: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in kept:
        _check(row)
        if reason := selection.refused(row):
            result.counts[reason] += 1
            continue
        responses, text = by_prompt[row["prompt"]], _text(row)
        result.counts["duplicate"] += text in responses
        if text not in responses or _reward(row) > _reward(responses[text]):
            responses[text] = row
    for responses in by_prompt.values():
        best = sorted(responses.items(), key=lambda item: (-_reward(item[1]), zlib.crc32(item[0].encode()), item[0]))
        result.rows += [_row_of(row) for _, row in best[: selection.per_prompt]]
        result.counts["over_cap"] += max(0, len(best) - selection.per_prompt)
    result.counts["kept"] = len(result.rows)
    return result


def _text(row: Row) -> str:
    """Return who wrote what as one text. Responses with another text differ in what is learned, or in its context."""
    return "\0".join(f"{run['source']}:{run['text']}" for run in row["runs"])


def _reward(row: Row) -> float:
    return row["reward"] or 0.0


def _check(row: Row) -> None:
    if missing := [name for name in FIELDS if name not in row]:
        raise DataError(
            f"A kept trajectory (prompt {row.get('key')}) has no {', '.join(missing)}. Run again with"
            " --logger.trajectories 1."
        )


def _row_of(row: Row) -> dict[str, Any]:
    facts = {name: row[name] for name in ("label", "env", "reward", "key", "index", "versions")}
    return {"prompt": row["prompt"], "segments": [_segment(run) for run in row["runs"]], **facts}


def _segment(run: Row) -> dict[str, Any]:
    return {name: run[name] for name in ("source", "text", "end", "rendered", "spelled") if name in run}
