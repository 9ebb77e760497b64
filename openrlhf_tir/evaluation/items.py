"""Item: what was sampled of one problem, one JSONL row of it. Lists are per valid sample, in order of their index.

    suite index row kind env prompt label epoch    which problem; `row` is its name in whatever file it is
                                                   (data/identity.py)
    correct rewards answers                        the verdicts, and what the samples answered (None: nothing)
    calls calls_ok used_code                       calls that were run, those of them without an error, whether there
                                                   was code
    response_tokens model_tokens truncated texts   lengths in tokens, all and the model's own; cut by a limit; the
                                                   responses
    signals                                        what the environment last said of each (KEPT); [] where it says none
    failures                                       reason -> samples that infrastructure lost: no part of any figure
    failed                                         only where no sample is valid: why

`data select --samples` reads these rows (data/prepare/outcomes.py): row, correct, epoch, failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..config.paths import shorten
from ..data.prepare.outcomes import HALF
from ..errors import DataError
from ..rewards.checking.answer_text import last_boxed, model_text, without_code
from ..rewards.environment import MOST
from ..rewards.searchr1 import last_answer
from ..types import Group, Task, Trajectory

MAX_ANSWER_CHARS = 1000
KEPT = (
    *("turn", "viewed_first", "evaluation", "patch_bytes", "tests_passed", "tests_total", "finished"),
    *("state_match", "state_total", "functions_matched", "functions_total", "errors"),
)
"""Signals of an environment that an item keeps, besides `ended`."""
TEXTS = ("evaluation",)
"""Those that are texts; the others are numbers and truths."""
ITEMS = "items.jsonl"
"""The file of one set under one setting, a row per problem."""


@dataclass(slots=True)
class Item:
    suite: str
    index: int
    row: str
    kind: str
    env: str
    prompt: str
    label: str
    correct: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    calls_ok: list[int] = field(default_factory=list)
    used_code: list[bool] = field(default_factory=list)
    response_tokens: list[int] = field(default_factory=list)
    model_tokens: list[int] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    signals: list[dict[str, Any]] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Valid samples."""
        return len(self.correct)

    @property
    def lost(self) -> int:
        return sum(self.failures.values())

    def as_row(self) -> dict[str, Any]:
        return asdict(self) | (
            {"failed": max(self.failures, key=lambda r: self.failures[r])} if not self.n and self.failures else {}
        )


LISTS = (
    "correct", "rewards", "answers", "calls", "calls_ok", "used_code", "response_tokens", "model_tokens", "truncated",
    "texts",
)  # fmt: skip


def item_of(suite: str, index: int, task: Task, sampled: Group | str, n: int) -> Item:
    """`sampled`: the group of n samples, or the reason why there is none."""
    item = Item(suite, index, task.row, str(task.meta.get("kind", "all")), task.env, task.prompt, task.label)
    if isinstance(sampled, str):
        item.failures = {sampled: n}
        return item
    item.failures = dict(Counter(t.failed for t in sampled.trajectories if t.failed))
    for t in sampled.valid:
        item.correct.append(t.parts["correct"] > HALF)
        item.rewards.append(t.scored)
        item.answers.append(answer_of(t))
        item.calls.append(len(t.calls))
        item.calls_ok.append(sum(c.outcome == "ok" for c in t.calls))
        item.used_code.append(bool(t.parts.get("used_code", t.calls)))
        item.response_tokens.append(t.response_tokens)
        item.model_tokens.append(t.model_tokens)
        item.truncated.append(t.finish_reason == "length")
        item.texts.append(t.text)
    said = [signals_of(t) for t in sampled.valid]
    item.signals = said if any(said) else []
    return item


def signals_of(trajectory: Trajectory) -> dict[str, Any]:
    """KEPT signals as they were last told, and whether the episode came to its end; {} where there are none. What is of
    another type, or no measurement, was not told."""
    told = {
        name: value for call in trajectory.calls for name in KEPT if _is_told(value := call.signals.get(name), name)
    }
    last = trajectory.calls[-1] if told else None
    return told | {"ended": last.done or last.truncated} if last else {}


def _is_told(value: Any, name: str) -> bool:
    if name in TEXTS:
        return isinstance(value, str) and len(value) <= MAX_ANSWER_CHARS
    return isinstance(value, int | float) and abs(value) <= MOST


def answer_of(trajectory: Trajectory) -> str | None:
    r"""What the model itself states last: the content of its last \boxed{}, else of its last <answer>; else None."""
    text = without_code(model_text(trajectory))
    said = last_boxed(text)
    said = last_answer(text) if said is None else said
    return None if said is None else said[:MAX_ANSWER_CHARS]


def read_item(row: Mapping[str, Any], where: str) -> Item:
    """Raises DataError for a row that is no item: another column, or lists of different lengths."""
    try:
        item = Item(**{k: v for k, v in row.items() if k != "failed"})
        lengths = {len(getattr(item, name)) for name in LISTS}
    except TypeError as e:
        raise DataError(f"{where} is no item of an evaluation ({e}). Remove the file to sample again.") from None
    if (
        type(item.index) is not int
        or not isinstance(item.failures, dict)
        or not all(type(n) is int for n in item.failures.values())
    ):
        raise DataError(
            f"{where} is no item of an evaluation: index {item.index!r}, failures {item.failures!r}."
            " Remove the file to sample again."
        )
    if (
        not isinstance(item.signals, list)
        or len(item.signals) not in (0, len(item.correct))
        or not all(isinstance(s, dict) and all(_is_told(s[n], n) for n in KEPT if n in s) for s in item.signals)
    ):
        raise DataError(
            f"{where} is no item of an evaluation: signals {shorten(repr(item.signals))} of {len(item.correct)}"
            " samples. Remove the file to sample again."
        )
    if len(lengths) > 1:
        raise DataError(
            f"{where} is no item of an evaluation: its lists have {', '.join(map(str, sorted(lengths)))} entries."
            " Remove the file to sample again."
        )
    return item
