"""An item: everything that was sampled of one problem, as one JSON line.

`data select --samples` reads four columns of these lines (data/prepare/outcomes.py): row, correct, epoch, failed. The
last one exists only if no sample is valid, and holds the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..config.paths import shorten
from ..errors import DataError
from ..rewards.checking.answer_text import last_boxed, model_text, without_code
from ..rewards.environment import MOST
from ..rewards.searchr1 import last_answer
from ..types import CORRECT_ABOVE, Group, Task, Trajectory

MAX_ANSWER_CHARS = 1000
"""Characters of an answer that an item keeps."""
KEPT = (
    *("turn", "viewed_first", "evaluation", "patch_bytes", "tests_passed", "tests_total", "finished"),
    *("state_match", "state_total", "functions_matched", "functions_total", "errors"),
)
"""Signals of an environment that an item keeps, besides `ended`."""
TEXTS = ("evaluation",)
"""The signals in KEPT that are texts. The others are numbers or booleans."""
ITEMS = "items.jsonl"
"""Name of the file that holds the items of one suite under one setting."""


@dataclass(slots=True)
class Item:
    """What was sampled of one problem. Lists have one element per valid sample, in order of their index.

    Attributes:
        suite: Name of the suite.
        index: Index of the problem in the suite.
        row: Identity of the problem in whatever file it is (data/identity.py).
        kind: Kind of the problem, if the suite has several.
        env: Name of the environment.
        prompt: The rendered prompt.
        label: What the answer is compared with.
        correct: Whether each sample is right.
        rewards: Rewards of the samples.
        answers: What the samples answered; None for no answer.
        calls: Calls, those included that could not be read.
        calls_ok: Calls that ran without an error.
        used_code: Whether there was code.
        response_tokens: Tokens of the response, by model and environment.
        model_tokens: Tokens that the model wrote.
        truncated: Whether a limit cut the response.
        texts: The responses.
        failures: Reason -> number of samples that infrastructure lost. They are no part of any figure.
        epoch: Epoch of the samples; always 0 in an evaluation.
        signals: The last signals of the environment for each sample (KEPT); empty if it sent none.
    """

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
        """Number of valid samples."""
        return len(self.correct)

    @property
    def lost(self) -> int:
        """Number of samples that infrastructure lost."""
        return sum(self.failures.values())

    def as_row(self) -> dict[str, Any]:
        """Return the line of the file."""
        row = asdict(self)
        if not self.n and self.failures:
            row["failed"] = max(self.failures, key=lambda reason: self.failures[reason])
        return row


LISTS = (
    "correct", "rewards", "answers", "calls", "calls_ok", "used_code", "response_tokens", "model_tokens", "truncated",
    "texts",
)  # fmt: skip
"""Fields with one element per valid sample."""


def item_of(suite: str, index: int, task: Task, sampled: Group | str, n: int) -> Item:
    """Return the item of a problem.

    Args:
        suite: Name of the suite.
        index: Index of the problem in the suite.
        task: The problem.
        sampled: The group of samples, or the reason why there is none.
        n: Number of samples that were requested.
    """
    item = Item(suite, index, task.row, str(task.meta.get("kind", "all")), task.env, task.prompt, task.label)
    if isinstance(sampled, str):
        item.failures = {sampled: n}
        return item
    item.failures = dict(Counter(trajectory.failed for trajectory in sampled.trajectories if trajectory.failed))
    for trajectory in sampled.valid:
        item.correct.append(trajectory.parts["correct"] > CORRECT_ABOVE)
        item.rewards.append(trajectory.scored)
        item.answers.append(answer_of(trajectory))
        item.calls.append(len(trajectory.calls))
        item.calls_ok.append(sum(call.outcome == "ok" for call in trajectory.calls))
        item.used_code.append(bool(trajectory.parts.get("used_code", trajectory.calls)))
        item.response_tokens.append(trajectory.response_tokens)
        item.model_tokens.append(trajectory.model_tokens)
        item.truncated.append(trajectory.finish_reason == "length")
        item.texts.append(trajectory.text)
    signals = [signals_of(trajectory) for trajectory in sampled.valid]
    item.signals = signals if any(signals) else []
    return item


def signals_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return the last value of each signal in KEPT, and whether the episode came to its end; {} if there is none.

    A value of another type, or one that cannot be a measurement, is ignored.
    """
    signals = {
        name: value for call in trajectory.calls for name in KEPT if _is_valid(value := call.signals.get(name), name)
    }
    if not signals:
        return {}
    last = trajectory.calls[-1]
    return signals | {"ended": last.done or last.truncated}


def _is_valid(value: Any, name: str) -> bool:
    """Return True if a signal has the type of its name and a size that a measurement can have."""
    if name in TEXTS:
        return isinstance(value, str) and len(value) <= MAX_ANSWER_CHARS
    return isinstance(value, int | float) and abs(value) <= MOST


def answer_of(trajectory: Trajectory) -> str | None:
    r"""Return what the model states last: the content of its last \boxed{}, or of its last <answer>; None if
    neither."""
    text = without_code(model_text(trajectory))
    answer = last_boxed(text)
    if answer is None:
        answer = last_answer(text)
    return None if answer is None else answer[:MAX_ANSWER_CHARS]


def read_item(row: Mapping[str, Any], where: str) -> Item:
    """Return the item in a row of a file.

    Args:
        row: The row.
        where: File and number of the row, for messages.

    Raises:
        DataError: The row is not an item: it has other columns, or lists of different lengths.
    """
    try:
        item = Item(**{name: value for name, value in row.items() if name != "failed"})
        lengths = {len(getattr(item, name)) for name in LISTS}
    except TypeError as error:
        raise _not_an_item(where, str(error)) from None
    if (
        type(item.index) is not int
        or not isinstance(item.failures, dict)
        or not all(type(count) is int for count in item.failures.values())
    ):
        raise _not_an_item(where, f"index {item.index!r}, failures {item.failures!r}")
    if (
        not isinstance(item.signals, list)
        or len(item.signals) not in (0, len(item.correct))
        or not all(map(_are_signals, item.signals))
    ):
        raise _not_an_item(where, f"signals {shorten(repr(item.signals))} of {len(item.correct)} samples")
    if len(lengths) > 1:
        raise _not_an_item(where, f"its lists have {', '.join(map(str, sorted(lengths)))} entries")
    return item


def _are_signals(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_valid(value[name], name) for name in KEPT if name in value)


def _not_an_item(where: str, fault: str) -> DataError:
    return DataError(f"{where} is not an item of an evaluation: {fault}. Remove the file to sample again.")
