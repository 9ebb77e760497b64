"""Progress: step metrics -> what a person watches while it runs.

On a terminal: a bar and two lines of figures that stay in place. Elsewhere (CI, `ray job` logs): one plain line per
step. `bar` does the same for other long work: cold start, evaluation, set-up.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

WINDOW = 20
"""Steps over which the time per step is averaged: the first ones (warm-up, empty buffer) must not spoil the ETA."""


class Progress:
    """Live progress of a training run; a context manager. `start_step` is where a resumed run goes on; `runs_code`: its
    tools run what the model writes."""

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
        self._marks: deque[tuple[int, float]] = deque([(start_step, clock())], maxlen=WINDOW + 1)
        self._clock = clock
        self._drops: Counter[str] = Counter()
        self._evaluation = ""
        """The latest one's accuracy, and the update that it is of."""
        self._bar = RichProgress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[eta]}"),
        )
        self._task = self._bar.add_task("training", total=total_steps, completed=start_step, eta="")
        self._live: Live | None = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one learner step. Metrics that are missing are left out; drops and failures are summed over the run."""
        self._marks.append((step, self._clock()))
        for name, value in metrics.items():
            if name.startswith(("drops/", "failed/")) and value:
                self._drops[name.removeprefix("drops/").replace("failed/", "failed ")] += int(value)
        figures = _figures(metrics, self._tools)
        if self._evaluation:
            figures.append(("eval", self._evaluation))
        if self._drops:
            figures.append(
                (
                    "dropped",
                    f"{self._drops.total()} ("
                    + ", ".join(f"{reason} {count}" for reason, count in self._drops.most_common())
                    + ")",
                )
            )
        eta = "" if self.eta_s is None else f"eta {_clock_text(self.eta_s)}"
        if self._live is None:
            shown = [f"step {step}/{self.total_steps}", *(f"{label} {value}" for label, value in figures), eta]
            self._console.print(
                "  ".join(part for part in shown if part), soft_wrap=True, markup=False, highlight=False
            )
            return
        self._bar.update(self._task, completed=step, eta=eta)
        self._live.update(Group(self._bar, _coloured(figures)), refresh=True)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell of an evaluation, which may end some steps after the update that it is of."""
        accuracy = metrics.get("eval/accuracy")
        said = "failed" if accuracy is None else f"{accuracy:.1%}"
        self._evaluation = f"{said} (update {step})"
        shown = [f"evaluation of update {step}: {said if accuracy is None else f'accuracy {said}'}"]
        for name, form in (("code_ratio", "{:.1%}"), ("calls", "{:.2f}")):
            if metrics.get(f"eval/{name}") is not None:
                label = self._tools if name == "code_ratio" else name
                shown.append(f"{label} {form.format(metrics[f'eval/{name}'])}")
        self._console.print("  ".join(shown), soft_wrap=True, markup=False, highlight=False)

    @property
    def eta_s(self) -> float | None:
        """Seconds left, from the mean of the last WINDOW steps; None before the first step."""
        (first, since), (last, now) = self._marks[0], self._marks[-1]
        return (now - since) / (last - first) * (self.total_steps - last) if last > first else None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._bar, console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *exc) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


@contextmanager
def bar(description: str, total: int | None, console: Console | None = None) -> Iterator[Callable[..., None]]:
    """Progress of other long work. Yields `advance(n=1, note="")`; `total` None: a spinner. Text lines at every tenth
    when not on a terminal."""
    console = console or Console()
    if not console.is_terminal:
        yield from _text_bar(description, total, console)
        return
    columns = [SpinnerColumn(), TextColumn("[bold]{task.description}")]
    if total is not None:
        columns += [BarColumn(bar_width=40), MofNCompleteColumn()]
    with RichProgress(
        *columns, TimeElapsedColumn(), TextColumn("[dim]{task.fields[note]}"), console=console
    ) as progress:
        task = progress.add_task(description, total=total, note="")

        def advance(n: int = 1, note: str = "") -> None:
            if note:
                progress.update(task, advance=n, note=note)
            else:
                progress.update(task, advance=n)

        yield advance


def _text_bar(description: str, total: int | None, console: Console) -> Iterator[Callable[..., None]]:
    start, done = time.monotonic(), 0

    def say(text: str) -> None:
        console.print(f"{description}: {text}", soft_wrap=True, markup=False, highlight=False)

    def advance(n: int = 1, note: str = "") -> None:
        nonlocal done
        before, done = done, done + n
        if total and 10 * done // total > 10 * before // total:
            say(f"{done}/{total}" + (f"  {note}" if note else ""))

    say("starts")
    yield advance
    say(f"done in {_clock_text(time.monotonic() - start)}")


def _figures(metrics: Mapping[str, float], tools: str) -> list[tuple[str, str]]:
    """Label and text of what is worth a glance, in reading order. `tools`: the name of the share that used one."""
    out: list[tuple[str, str]] = []

    def add(label: str, form: str, *names: str) -> None:
        if all(metrics.get(name) is not None for name in names):
            out.append((label, form.format(*(metrics[name] for name in names))))

    add("reward", "{:.3f}", "reward_mean")
    add("accuracy", "{:.1%}", "accuracy")
    add(tools, "{:.1%}", "code_ratio")
    add("staleness", "{:.1f} (max {:.0f})", "staleness_mean", "staleness_max")
    add("rolling", "{:.0f}", "rolling")
    add("buffered", "{:.0f}", "buffered")
    add("tok/s", "{:,.0f}", "tokens_per_s")
    add("step", "{:.1f} s", "step_s")
    return out


def _coloured(figures: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=False)
    for label, value in figures:
        text.append(f"{label} ", style="dim").append(
            value, style="bold" if label in ("reward", "accuracy", "code", "tools", "eval") else ""
        ).append("   ")
    return text


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
