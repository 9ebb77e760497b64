"""Live page: a run directory, at any moment of the run -> the parts of the page that `openrlhf-tir watch` serves.

Reads files only, the same as the report does: status.json (logs/heartbeat.py), metrics.jsonl, trace.jsonl, the ledger,
kept trajectories. So it works on a run that is running, finished, or not yet past its first update, on this machine or
on another one that sees the directory.

Figures are drawn when a browser asks for one, and again when the run has written more, at most every `REDRAW_S`: the
page must not take the learner's CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError
from ..logs import heartbeat, metrics
from ..logs import timeline as timelines
from ..logs.heartbeat import STALE_S, clock_text
from . import html, summary
from .build import Plot, config_of, plots_of
from .page import Picture, Run, render_body
from .samples import LEDGER, Sample, facts_of, last_step_of, samples_of, spread_over_groups, title_of, untrained_of
from .style import DARK, LIGHT, narrowed, png, themed

REDRAW_S = 15.0
SAMPLES = 4
"""Samples under each heading."""
FILES = (heartbeat.FILE, metrics.FILE, LEDGER, summary.FILE)
"""A directory with one of these is a run's."""


class Tile(NamedTuple):
    """A figure with its label and a note."""

    label: str
    value: str
    note: str = ""


def check_is_run(run_dir: Path) -> None:
    """Raises ConfigError when the directory holds nothing of a run."""
    if not run_dir.is_dir():
        raise ConfigError(f"There is no directory {run_dir}. Give the run directory of a training run (--run-dir).")
    if not any((run_dir / name).exists() for name in FILES):
        raise ConfigError(
            f"{run_dir} is no run: it holds none of {', '.join(FILES)}. Give the directory that train or quickstart"
            " was given as --run-dir; it is there a few seconds after the command started."
        )


class LivePage:
    """The parts of the page, each as HTML or PNG. Threads may share one."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self.run_dir = run_dir
        self._clock = clock
        self._lock = RLock()
        """matplotlib's settings belong to the process, so one thread draws at a time."""
        self._version = ""
        self._looked_at = 0.0
        self._plots: dict[str, Plot] = {}
        self._columns: dict[str, list] = {}
        self._traced = False
        self._pictures: dict[tuple[str, bool, bool], bytes | None] = {}

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run_dir.resolve().name

    def page(self) -> str:
        """The whole page, with everything in it: it can be read without scripts."""
        return html.render(
            "watch.html",
            title=self.name,
            name=self.name,
            now=self.now(),
            figures=self.figures(),
            samples=self.samples(),
            figures_version=self.figures_version(),
            samples_version=self.samples_version(),
        )

    def state(self) -> dict[str, str]:
        """What the page asks for every few seconds: the part that changes all the time, and the versions of the
        others."""
        condition, _, step = self._condition()
        return {
            "title": f"{step} {self.name} · {condition}".strip(),
            "now": self.now(),
            "figures": self.figures_version(),
            "samples": self.samples_version(),
        }

    def now(self) -> str:
        """Progress, what is waited for, counts, latest figures."""
        facts = heartbeat.read(self.run_dir) or {}
        status = facts.get("status") or {}
        with self._lock:
            self._look()
            columns = self._columns
        done = max((s for s in columns.get("step", ()) if s is not None), default=0)
        condition, detail, _ = self._condition()
        running = condition == "running"
        step, total = status.get("step", done), status.get("max_steps", 0)
        return html.render(
            "watch_now.html",
            condition=condition,
            detail=detail,
            running=running,
            good=running or condition == "finished",
            doing=_doing(facts, status) if running else "",
            step=step,
            total=total,
            share=100 * step / total if total else 0,
            eta=clock_text(status["eta_s"]) if running and status.get("eta_s") is not None else "",
            first=clock_text(status["first_step_s"]) if running and status.get("first_step_s") is not None else "",
            since=clock_text(facts.get("since_start_s", 0.0)),
            status=status,
            counts=_counts(status),
            notice="\n".join(facts.get("notice", ())),
            tiles=_tiles(columns, status),
        )

    def figures(self) -> str:
        """Curves, timeline and tables."""
        with self._lock:
            self._look()
            end, config, remarks = None, {}, []
            try:
                end = summary.read(self.run_dir)
                config = config_of(self.run_dir) or {}
            except (ConfigError, DataError) as error:
                remarks.append(str(error))
            pictures = [self._picture_of(plot) for plot in self._plots.values() if self._has_data(plot)]
            if not pictures:
                remarks.append("No learner step has ended yet: curves come with the first one.")
            run = Run(self.name, "", end, self._columns, config, pictures, remarks, self._traced)
        return html.render("watch_figures.html", body=render_body(run), remarks=remarks)

    def samples(self) -> str:
        """Some of what was trained last and of what was dropped last."""
        parts = []
        for title, found in (("Trained last", self._trained_last), ("Dropped or failed last", self._dropped_last)):
            try:
                samples = found()
            except DataError:
                continue
            if samples:
                parts.append({"title": title, "samples": [_shown(s) for s in samples]})
        return html.render("watch_samples.html", parts=parts)

    def picture(self, file: str, *, dark: bool, narrow: bool) -> bytes | None:
        """A figure as PNG; None when there is none of that name, or no data for it."""
        with self._lock:
            self._look()
            key = (file, dark, narrow)
            if key not in self._pictures:
                plot = self._plots.get(file)
                self._pictures[key] = None if plot is None else _drawn(plot, dark, narrow)
            return self._pictures[key]

    def figures_version(self) -> str:
        """Changes when the figures do."""
        with self._lock:
            self._look()
            return self._version

    def samples_version(self) -> str:
        """Changes when a group came to an end, at most every REDRAW_S."""
        stamp = _stamp(self.run_dir / LEDGER)
        return f"{stamp}-{int(self._clock() // REDRAW_S)}" if self._condition()[0] == "running" else stamp

    def _look(self) -> None:
        """Read what the run has written since the last look, at most every REDRAW_S."""
        version = "-".join(_stamp(self.run_dir / name) for name in (metrics.FILE, summary.FILE))
        now = self._clock()
        if version == self._version or (self._version and now - self._looked_at < REDRAW_S):
            return
        self._version, self._looked_at = version, now
        self._columns = metrics.read(self.run_dir)
        spans = timelines.read(self.run_dir)
        self._traced = False  # trace.json is written by the report
        self._plots = {plot.file: plot for plot in plots_of(self._columns, spans)}
        self._pictures.clear()

    def _has_data(self, plot: Plot) -> bool:
        if not self._columns.get("step"):
            return False
        with themed(LIGHT):
            return plot.draw(LIGHT) is not None

    def _picture_of(self, plot: Plot) -> Picture:
        url = f"picture/{plot.file}.png?v={self._version}"
        return Picture(
            plot.file, plot.title, plot.caption, url, f"{url}&dark=1", f"{url}&narrow=1", f"{url}&dark=1&narrow=1"
        )

    def _condition(self) -> tuple[str, str, str]:
        """How the run is, in a few words; the error that ended it, if one did; and "7/24" where the step is known."""
        facts = heartbeat.read(self.run_dir)
        if facts is None:
            finished = (self.run_dir / summary.FILE).exists()
            return ("finished" if finished else "not running"), "", ""
        status = facts.get("status") or {}
        step = f"{status.get('step', 0)}/{status.get('max_steps', 0)}" if status else ""
        if "ended" in facts:
            ended = str(facts["ended"])
            return (ended, "", step) if ended in ("finished", "stopped") else ("failed", ended, step)
        silent = self._clock() - facts["time"]
        if silent > STALE_S:
            what = "It was killed or suspended, or its disk refuses what it writes."
            return f"no sign of life for {clock_text(silent)}", what, step
        return "running", "", step

    def _trained_last(self) -> list[Sample]:
        step = last_step_of(self.run_dir)
        return spread_over_groups(samples_of(self.run_dir, step), SAMPLES)

    def _dropped_last(self) -> list[Sample]:
        return spread_over_groups(untrained_of(self.run_dir).samples, SAMPLES)


def _stamp(path: Path) -> str:
    """Changes with every write to the file; "0" when there is none."""
    try:
        stat = path.stat()
    except OSError:
        return "0"
    return f"{stat.st_mtime_ns:x}.{stat.st_size:x}"


def _drawn(plot: Plot, dark: bool, narrow: bool) -> bytes | None:
    theme = DARK if dark else LIGHT
    with themed(theme), narrowed(narrow):
        figure = plot.draw(theme)
        return None if figure is None else png(figure)


def _doing(facts: dict[str, Any], status: dict[str, Any]) -> str:
    """What the run does or waits for right now."""
    if facts.get("stage"):
        return ": ".join(part for part in (facts["stage"], facts.get("stage_note", "")) if part)
    return status.get("waits_for", "")


def _counts(status: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, how many) of the groups that came to an end, the reasons among them."""
    if not status:
        return []
    rows = [("rolled", status["rolled"]), ("accepted", status["accepted"])]
    for what in ("dropped", "failed"):
        rows += [(f"{what}: {reason}", n) for reason, n in sorted(status[what].items(), key=lambda item: -item[1])]
    return [(name, f"{n:,}") for name, n in rows]


TILES = (
    ("reward", "reward_mean", "{:.3f}"),
    ("accuracy", "accuracy", "{:.1%}"),
    ("held-out accuracy", "eval/accuracy", "{:.1%}"),
    ("response length", "response_tokens_mean", "{:.0f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("KL to the sampler", "kl_rollout", "{:.2g}"),
    ("KL to the reference", "kl_ref", "{:.2g}"),
    ("gradient norm", "grad_norm", "{:.3g}"),
    ("clipped", "clip_high", "{:.1%}"),
    ("staleness", "staleness_mean", "{:.1f}"),
    ("update", "wall_s", "{:.0f} s"),
)
"""(label, metric, form) of the latest figures."""


def _tiles(columns: dict[str, list], status: dict[str, Any]) -> list[Tile]:
    """The latest value of each figure that the run has, and at which update that was where it is an evaluation's."""
    tiles = []
    steps = columns.get("step", [])
    for label, name, form in TILES:
        known = [(step, v) for step, v in zip(steps, columns.get(name, ()), strict=False) if v is not None]
        if known:
            step, value = known[-1]
            tiles.append(Tile(label, form.format(value), f"update {step}" if name.startswith("eval/") else ""))
    for name in sorted(columns):
        env, _, k = name.removeprefix("eval/").rpartition("pass_at_")
        if name.startswith("eval/") and k.isdigit() and _is_largest(columns, name, int(k)):
            step, value = [(s, v) for s, v in zip(steps, columns[name], strict=False) if v is not None][-1]
            tiles.append(Tile(f"pass@{k}" + (f", {env.rstrip('/')}" if env else ""), f"{value:.1%}", f"update {step}"))
    if status.get("tokens_per_s") is not None:
        tiles.append(Tile("sampled", f"{status['tokens_per_s']:,.0f}", "tokens per second"))
    return tiles


def _is_largest(columns: dict[str, list], name: str, k: int) -> bool:
    """Whether the column has values and no other of its environment has a larger k."""
    prefix = name.removesuffix(str(k))
    others = [other.removeprefix(prefix) for other in columns if other.startswith(prefix)]
    return k == max(int(o) for o in others if o.isdigit()) and any(v is not None for v in columns[name])


def _shown(sample: Sample) -> dict[str, Any]:
    kind = "trained" if sample.trained else "untrained"
    runs = [{"text": run["text"], "kind": "env" if run["source"] == "env" else kind} for run in sample.row["runs"]]
    facts = facts_of(sample)
    return {
        "id": "sample-" + "-".join(map(str, [*sample.row["key"], sample.row["index"]])),
        "title": title_of(sample),
        "verdict": facts[0].partition(";")[0],
        "reward": "–" if sample.row["reward"] is None else f"{sample.row['reward']:g}",
        "prompt": sample.row["prompt"],
        "runs": runs,
        "facts": facts,
    }
