"""What a person watches while a run or another long task is under way.

On a terminal it is a bar and lines of figures that stay in place. Elsewhere (CI, `ray job` logs) it is one plain line
per step, and between two steps the line of telemetry/heartbeat.py. `bar` does the same for other long work: cold start,
evaluation, set-up.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from ..types import GroupMeta
from . import heartbeat
from .heartbeat import clock_text, counts
from .printable import printable

WINDOW = 20
"""Cycles over which the time of an update is averaged: enough to contain an evaluation or a checkpoint now and then."""
LATEST = 5
"""If the latest cycles take longer than the whole window, as when filters drop more and more, they count alone."""
LONGEST_ETA_S = 100 * 24 * 3600.0
"""A longer estimate says nothing: train.max_steps is so large that something else ends the run."""


class Cycles:
    """The wall clock from one update to the next, and what it says about the time that is left.

    A cycle is everything that a run does between two updates: rollout, waiting, the learner, the push, checkpoints,
    evaluations. The cycle before the first update fills an empty buffer. It is left out once there is another.
    """

    def __init__(self, total_steps: int, start_step: int, now: float) -> None:
        self.total_steps = total_steps
        self.started_at = now
        self._last_update = (start_step, now)
        self._later_cycles: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        """(updates, seconds) of each cycle after the first."""
        self._first_cycle: tuple[int, float] | None = None

    def ended(self, step: int, now: float) -> None:
        """Record that the update `step` was made."""
        previous_step, since = self._last_update
        cycle = (step - previous_step, now - since)
        self._last_update = (step, now)
        if cycle[0] <= 0:  # a resume took steps back
            return
        if self._first_cycle is None:
            self._first_cycle = cycle
        else:
            self._later_cycles.append(cycle)

    @property
    def seconds(self) -> float | None:
        """Mean seconds of an update; None before the first one."""
        known = list(self._later_cycles) or ([self._first_cycle] if self._first_cycle else [])
        return max(_mean(known), _mean(known[-LATEST:])) if known else None

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the last update; None before the first one, or if they are over LONGEST_ETA_S.

        A running cycle that already takes longer than the mean raises the mean, so that the estimate does not fall to
        zero during a long cycle.
        """
        mean = self.seconds
        if mean is None:
            return None
        step, since = self._last_update
        steps_left = self.total_steps - step
        if steps_left <= 0:
            return 0.0
        running_s = now - since
        if running_s > mean:
            cycles = len(self._later_cycles) or 1
            mean = (mean * cycles + running_s) / (cycles + 1)
            running_s = mean
        if mean and steps_left > LONGEST_ETA_S / mean:  # not by their product: an integer may exceed every float
            return None
        return mean * steps_left - running_s


def _mean(cycles: Sequence[tuple[int, float]]) -> float:
    """Return the mean seconds of one update."""
    return sum(seconds for _, seconds in cycles) / sum(updates for updates, _ in cycles)


class Progress:
    """The live progress of a training run; a context manager.

    Args:
        total_steps: Updates after which the run ends.
        console: Where to print.
        start_step: The step at which a resumed run continues.
        runs_code: Whether the run's tools execute code that the model writes.
        clock: Returns seconds.

    Attributes:
        rolled: Groups that ended.
        accepted: Groups that the filters kept.
        dropped: Reason -> groups that a filter dropped.
        failed: Reason -> groups that infrastructure or user code ended, including those that are issued again.
        sampled_tokens: Tokens that the policy wrote in the groups that ended.
    """

    def __init__(
        self,
        total_steps: int,
        console: Console | None = None,
        *,
        start_step: int = 0,
        runs_code: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total_steps = total_steps
        self._tools = "code" if runs_code else "tools"
        self._console = console or Console()
        self._clock = clock
        self.cycles = Cycles(total_steps, start_step, clock())
        self.rolled = 0
        self.accepted = 0
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.sampled_tokens = 0
        self._evaluation = ""
        """Accuracy of the latest evaluation, and the update that it belongs to."""
        self._bar = RichProgress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[eta]}"),
        )
        self._task = self._bar.add_task("training", total=total_steps, completed=start_step, eta="")
        self._live: Live | None = None
        self._figures = Text()
        self._waiting_line = Text()
        self._in_place = ExitStack()

    def group(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
        """Count a group that ended.

        A group that is issued again without a fault did not roll to its end, and is not counted.

        Args:
            end: "buffered" (accepted), "filtered", "failed", or "requeued" after a fault.
            meta: Metadata of the group, if there is any.
            failed: Reason of a failure.
        """
        if failed in NO_FAULT:
            return
        self.rolled += 1
        if failed is not None:
            self.failed[failed] += 1
        elif end == "filtered" and meta is not None:
            self.dropped[meta.verdict.reason] += 1
        else:
            self.accepted += 1
        if meta is not None:
            self.sampled_tokens += sum(meta.model_tokens)

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one learner step. Missing metrics are left out; drops and failures are totals of the run."""
        self.cycles.ended(step, self._clock())
        figures = _figures(metrics, self._tools)
        if self._evaluation:
            figures.append(("eval", self._evaluation))
        if self.dropped:
            figures.append(("dropped", counts(self.dropped)))
        if self.failed:
            figures.append(("failed", counts(self.failed)))
        eta = "" if self.eta_s is None else f"eta {clock_text(self.eta_s)}"
        if self._live is None:
            shown = [f"step {step}/{self.total_steps}", *(f"{label} {value}" for label, value in figures), eta]
            self._print("  ".join(part for part in shown if part))
            return
        self._bar.update(self._task, completed=step, eta=eta)
        self._figures = _colored(figures)
        self._refresh()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print an evaluation, which may end some steps after the update that it belongs to."""
        accuracy = metrics.get("eval/accuracy")
        text = "failed" if accuracy is None else f"{accuracy:.1%}"
        self._evaluation = f"{text} (update {step})"
        shown = [f"evaluation of update {step}: {text if accuracy is None else f'accuracy {text}'}"]
        shown += _pass_at(metrics, "eval/")
        columns = (
            ("code_ratio", self._tools, "{:.1%}"),
            ("calls", "calls", "{:.2f}"),
            ("response_tokens", "length", "{:.0f}"),
        )
        for name, label, value_format in columns:
            value = metrics.get(f"eval/{name}")
            if value is not None:
                shown.append(f"{label} {value_format.format(value)}")
        for env in environments_in(metrics):
            pass_at = " ".join(_pass_at(metrics, f"eval/{env}/"))
            shown.append(f"{env} {metrics[f'eval/{env}/accuracy']:.1%}" + (f" ({pass_at})" if pass_at else ""))
        self._print("  ".join(shown))

    def notice(self, lines: Sequence[str]) -> None:
        """Print something that a person should know now. No lines: the last notice is over.

        The text may be a model's, so it is printed without control characters, which could move the cursor.
        """
        heartbeat.notice(lines)
        if lines:
            self._print(printable("\n".join(lines)))

    @property
    def eta_s(self) -> float | None:
        """Seconds left; None if they cannot be told."""
        return self.cycles.left_s(self._clock())

    def _print(self, text: str) -> None:
        heartbeat.line_printed()
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _show_heartbeat(self, line: str) -> None:
        self._waiting_line = Text(line, style="dim")
        self._refresh()

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(Group(self._bar, self._figures, self._waiting_line), refresh=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._bar, console=self._console, refresh_per_second=4)
            self._live.start()
            self._in_place.enter_context(heartbeat.in_place(self._show_heartbeat))
        return self

    def __exit__(self, *exc) -> None:
        self._in_place.close()
        if self._live is not None:
            self._live.stop()
            self._live = None


NO_FAULT = frozenset({"surplus", "end_of_run", "resume"})
"""Reasons for which a group is issued again, or given up, without a fault."""


def environments_in(metrics: Mapping[str, float]) -> list[str]:
    """Return the environments that an evaluation's metrics report separately; [] if it has one environment."""
    names = (name.split("/") for name in metrics)
    accuracies = (parts[1] for parts in names if len(parts) == 3 and (parts[0], parts[2]) == ("eval", "accuracy"))
    # A part of the reward may be called "accuracy": eval/reward/accuracy is no environment's.
    return sorted(set(accuracies) - {"reward"})


def _pass_at(metrics: Mapping[str, float], prefix: str) -> list[str]:
    """Return ["pass@K VALUE"] for the largest k that was measured; [] if there is none."""
    ks = [name.removeprefix(f"{prefix}pass_at_") for name in metrics if name.startswith(f"{prefix}pass_at_")]
    known = [int(k) for k in ks if k.isdigit()]
    return [f"pass@{max(known)} {metrics[f'{prefix}pass_at_{max(known)}']:.1%}"] if known else []


@contextmanager
def bar(description: str, total: int | None, console: Console | None = None) -> Iterator[Callable[..., None]]:
    """Show the progress of other long work: a bar on a terminal, elsewhere a line of text at every tenth.

    Args:
        description: Name of the work.
        total: Number of pieces; None shows a spinner.
        console: Where to print.

    Yields:
        A function `advance(n=1, note="")`.
    """
    console = console or Console()
    if not console.is_terminal:
        with heartbeat.doing(description) as note:
            yield from _text_bar(description, total, console, note)
        return
    columns = [SpinnerColumn(), TextColumn("{task.description}", style="bold", markup=False)]
    if total is not None:
        columns += [BarColumn(bar_width=40), MofNCompleteColumn()]
    with (
        RichProgress(
            *columns, TimeElapsedColumn(), TextColumn("{task.fields[note]}", style="dim", markup=False), console=console
        ) as progress,
        heartbeat.in_place(lambda line: None),
        heartbeat.doing(description),
    ):
        task = progress.add_task(description, total=total, note="")

        def advance(n: int = 1, note: str = "") -> None:
            if note:
                progress.update(task, advance=n, note=note)
            else:
                progress.update(task, advance=n)

        yield advance


def _text_bar(
    description: str, total: int | None, console: Console, progress: Callable[[str], None]
) -> Iterator[Callable[..., None]]:
    start = time.monotonic()
    done = 0

    def print_line(text: str) -> None:
        heartbeat.line_printed()
        console.print(f"{description}: {text}", soft_wrap=True, markup=False, highlight=False)

    def advance(n: int = 1, note: str = "") -> None:
        nonlocal done
        previous = done
        done += n
        position = f"{done}/{total}" if total else str(done)
        progress("  ".join(part for part in (position, note) if part))
        if total and 10 * done // total > 10 * previous // total:
            print_line(f"{position}" + (f"  {note}" if note else ""))

    print_line("starts")
    yield advance
    print_line(f"done in {clock_text(time.monotonic() - start)}")


def _figures(metrics: Mapping[str, float], tools: str) -> list[tuple[str, str]]:
    """Return (label, text) of the figures that are worth a glance, in reading order.

    Args:
        metrics: Metrics of a learner step.
        tools: Label of the share of responses that used a tool.
    """
    figures: list[tuple[str, str]] = []

    def add(label: str, value_format: str, *names: str) -> None:
        if all(metrics.get(name) is not None for name in names):
            figures.append((label, value_format.format(*(metrics[name] for name in names))))

    add("reward", "{:.3f}", "reward_mean")
    add("accuracy", "{:.1%}", "accuracy")
    add(tools, "{:.1%}", "code_ratio")
    add("length", "{:.0f}", "response_tokens_mean")
    add("entropy", "{:.3f}", "entropy")
    add("kl", "{:.2g}", "kl_ref" if metrics.get("kl_ref") is not None else "kl_rollout")
    add("grad", "{:.3g}", "grad_norm")
    clipped = [metrics[name] for name in ("clip_low", "clip_high") if metrics.get(name) is not None]
    if clipped:
        figures.append(("clip", f"{sum(clipped):.1%}"))
    add("staleness", "{:.1f} (max {:.0f})", "staleness_mean", "staleness_max")
    add("rolling", "{:.0f}", "rolling")
    add("buffered", "{:.0f}", "buffered")
    add("trained tok/s", "{:,.0f}", "tokens_per_s")
    if metrics.get("wall_s") is not None and metrics.get("step_s") is not None:
        # The learner's seconds alone would suggest that an update takes half of the time that it does.
        add("update", "{:.1f} s (learner {:.1f} s)", "wall_s", "step_s")
    return figures


def _colored(figures: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=False)
    for label, value in figures:
        text.append(f"{label} ", style="dim").append(
            value, style="bold" if label in ("reward", "accuracy", "code", "tools", "eval") else ""
        ).append("   ")
    return text
