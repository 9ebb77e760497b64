"""Progress: step metrics -> what a person watches while it runs.

On a terminal: a bar and lines of figures that stay in place. Elsewhere (CI, `ray job` logs): one plain line per step,
and between two steps the line of logs/heartbeat.py. `bar` does the same for other long work: cold start, evaluation,
set-up.
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
"""Cycles over which the time of an update is averaged: enough to hold an evaluation or a checkpoint now and then."""
LATEST = 5
"""Where the latest cycles take longer than all of the window, as when filters drop more and more, they count alone."""


class Cycles:
    """Wall clock from one update to the next, and what it says of the time that is left.

    A cycle is everything that a run does between two updates: rollout, waiting, the learner, the push, checkpoints,
    evaluations. The cycle before the first update fills an empty buffer, and is left out once there is another.
    """

    def __init__(self, total_steps: int, start_step: int, now: float) -> None:
        self.total_steps = total_steps
        self.started_at = now
        self._last = (start_step, now)
        self._whole: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        """(updates, seconds) of each cycle."""
        self._first: tuple[int, float] | None = None

    def ended(self, step: int, now: float) -> None:
        """Note that the update `step` is made."""
        before, since = self._last
        cycle = (step - before, now - since)
        self._last = (step, now)
        if cycle[0] <= 0:  # a resume went back
            return
        if self._first is None:
            self._first = cycle
        else:
            self._whole.append(cycle)

    @property
    def seconds(self) -> float | None:
        """Mean seconds of an update; None before the first one."""
        known = list(self._whole) or ([self._first] if self._first else [])
        return max(_mean(known), _mean(known[-LATEST:])) if known else None

    def left_s(self, now: float) -> float | None:
        """Seconds until the last update; None before the first one. A cycle that takes longer than the mean raises the
        mean: the time that is left never falls below what the cycles say."""
        mean = self.seconds
        if mean is None:
            return None
        step, since = self._last
        left, running = self.total_steps - step, now - since
        if left <= 0:
            return 0.0
        if running <= mean:
            return mean * left - running
        n = len(self._whole) or 1
        return (mean * n + running) / (n + 1) * (left - 1)


def _mean(cycles: Sequence[tuple[int, float]]) -> float:
    """Seconds of one update."""
    return sum(seconds for _, seconds in cycles) / sum(updates for updates, _ in cycles)


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
        self._clock = clock
        self.cycles = Cycles(total_steps, start_step, clock())
        self.rolled = 0
        """Groups that came to an end."""
        self.accepted = 0
        self.dropped: Counter[str] = Counter()
        """Reason -> groups that a filter dropped."""
        self.failed: Counter[str] = Counter()
        """Reason -> groups that infrastructure or user code ended, those that are issued again among them."""
        self.sampled_tokens = 0
        """Tokens that the policy wrote in the groups that came to an end."""
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
        self._figures = Text()
        self._waits = Text()
        self._in_place = ExitStack()

    def group(self, end: str, meta: GroupMeta | None, failed: str | None) -> None:
        """Count a group that came to an end: "buffered" (accepted), "filtered", "failed", or "requeued" after a
        fault. What is issued again without a fault was not rolled to its end, and does not count."""
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
        """Show one learner step. Metrics that are missing are left out; drops and failures are those of the run."""
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
            self._say("  ".join(part for part in shown if part))
            return
        self._bar.update(self._task, completed=step, eta=eta)
        self._figures = _coloured(figures)
        self._refresh()

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tell of an evaluation, which may end some steps after the update that it is of."""
        accuracy = metrics.get("eval/accuracy")
        text = "failed" if accuracy is None else f"{accuracy:.1%}"
        self._evaluation = f"{text} (update {step})"
        shown = [f"evaluation of update {step}: {text if accuracy is None else f'accuracy {text}'}"]
        shown += _pass_at(metrics, "eval/")
        for name, form in (("code_ratio", "{:.1%}"), ("calls", "{:.2f}"), ("response_tokens", "{:.0f}")):
            if metrics.get(f"eval/{name}") is not None:
                label = {"code_ratio": self._tools, "response_tokens": "length"}.get(name, name)
                shown.append(f"{label} {form.format(metrics[f'eval/{name}'])}")
        for env in environments_in(metrics):
            of_env = " ".join(_pass_at(metrics, f"eval/{env}/"))
            shown.append(f"{env} {metrics[f'eval/{env}/accuracy']:.1%}" + (f" ({of_env})" if of_env else ""))
        self._say("  ".join(shown))

    def notice(self, lines: Sequence[str]) -> None:
        """Print something that a person should know now; none: the last notice is over. What a model wrote may be
        among it: it cannot move the cursor."""
        heartbeat.notice(lines)
        if lines:
            self._say(printable("\n".join(lines)))

    @property
    def eta_s(self) -> float | None:
        """Seconds left; None before the first step."""
        return self.cycles.left_s(self._clock())

    def _say(self, text: str) -> None:
        heartbeat.spoke()
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _wait(self, line: str) -> None:
        self._waits = Text(line, style="dim")
        self._refresh()

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(Group(self._bar, self._figures, self._waits), refresh=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._bar, console=self._console, refresh_per_second=4)
            self._live.start()
            self._in_place.enter_context(heartbeat.in_place(self._wait))
        return self

    def __exit__(self, *exc) -> None:
        self._in_place.close()
        if self._live is not None:
            self._live.stop()
            self._live = None


NO_FAULT = frozenset({"surplus", "end_of_run", "resume"})
"""Why a group is issued again, or given up, without a fault."""


def environments_in(metrics: Mapping[str, float]) -> list[str]:
    """The environments of a row of an evaluation, where it tells several apart."""
    names = (name.split("/") for name in metrics)
    return sorted(
        # a part of the reward may be called so: eval/reward/accuracy
        {p[1] for p in names if len(p) == 3 and (p[0], p[2]) == ("eval", "accuracy") and p[1] != "reward"}
    )


def _pass_at(metrics: Mapping[str, float], prefix: str) -> list[str]:
    """pass@k of the largest k that was measured."""
    ks = [name.removeprefix(f"{prefix}pass_at_") for name in metrics if name.startswith(f"{prefix}pass_at_")]
    known = [int(k) for k in ks if k.isdigit()]
    return [f"pass@{max(known)} {metrics[f'{prefix}pass_at_{max(known)}']:.1%}"] if known else []


@contextmanager
def bar(description: str, total: int | None, console: Console | None = None) -> Iterator[Callable[..., None]]:
    """Progress of other long work. Yields `advance(n=1, note="")`; `total` None: a spinner. Text lines at every tenth
    when not on a terminal."""
    console = console or Console()
    if not console.is_terminal:
        with heartbeat.doing(description) as note:
            yield from _text_bar(description, total, console, note)
        return
    columns = [SpinnerColumn(), TextColumn("[bold]{task.description}")]
    if total is not None:
        columns += [BarColumn(bar_width=40), MofNCompleteColumn()]
    with (
        RichProgress(
            *columns, TimeElapsedColumn(), TextColumn("[dim]{task.fields[note]}"), console=console
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
    start, done = time.monotonic(), 0

    def say(text: str) -> None:
        heartbeat.spoke()
        console.print(f"{description}: {text}", soft_wrap=True, markup=False, highlight=False)

    def advance(n: int = 1, note: str = "") -> None:
        nonlocal done
        before, done = done, done + n
        far = f"{done}/{total}" if total else str(done)
        progress("  ".join(part for part in (far, note) if part))
        if total and 10 * done // total > 10 * before // total:
            say(f"{far}" + (f"  {note}" if note else ""))

    say("starts")
    yield advance
    say(f"done in {clock_text(time.monotonic() - start)}")


def _figures(metrics: Mapping[str, float], tools: str) -> list[tuple[str, str]]:
    """Label and text of what is worth a glance, in reading order. `tools`: the name of the share that used one."""
    figures: list[tuple[str, str]] = []

    def add(label: str, form: str, *names: str) -> None:
        if all(metrics.get(name) is not None for name in names):
            figures.append((label, form.format(*(metrics[name] for name in names))))

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
    add("tok/s", "{:,.0f}", "tokens_per_s")
    if metrics.get("wall_s") is not None and metrics.get("step_s") is not None:
        # The learner's seconds alone would promise an update in half the time that it takes.
        add("update", "{:.1f} s (learner {:.1f} s)", "wall_s", "step_s")
    return figures


def _coloured(figures: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=False)
    for label, value in figures:
        text.append(f"{label} ", style="dim").append(
            value, style="bold" if label in ("reward", "accuracy", "code", "tools", "eval") else ""
        ).append("   ")
    return text
