"""The live page: the parts of the page that `openrlhf-tir watch` serves, at any moment of a run.

Like the report it only reads files: status.json (telemetry/heartbeat.py), metrics.jsonl, trace.jsonl, the ledger and
kept trajectories. So it works for a run that is running, finished, or not yet past its first update, on this machine or
on another one that sees the directory.

A figure is drawn when a browser asks for it, and again when the run has written more, at most every `REDRAW_S`: the
page must not take the learner's CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from ..errors import ConfigError, DataError
from ..telemetry import heartbeat, metrics
from ..telemetry import timeline as timelines
from ..telemetry.heartbeat import STALE_S, clock_text
from .report import html, summary
from .report.build import config_of, drawn, plots_of
from .report.curves import Plot
from .report.page import Picture, Run, render_body
from .report.samples import LEDGER, Sample, last_trained_of, spread_over_groups, untrained_of
from .report.samples_page import sample_view
from .report.style import plot_style

REDRAW_S = 15.0
"""Seconds between two readings of the run's files."""
SAMPLES = 4
"""Samples that are shown under each heading."""
FILES = (heartbeat.FILE, metrics.FILE, LEDGER, summary.FILE)
"""A directory with one of these files is a run directory."""


class Tile(NamedTuple):
    """A headline figure with its label and a note."""

    label: str
    value: str
    note: str = ""


def check_is_run(run_dir: Path) -> None:
    """Check that the directory holds something of a run.

    Raises:
        ConfigError: It does not exist, or holds nothing of a run.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"There is no directory {run_dir}. Give the run directory of a training run (--run-dir).")
    if not any((run_dir / name).exists() for name in FILES):
        raise ConfigError(
            f"{run_dir} is not a run directory: it holds none of {', '.join(FILES)}. Give the directory that train or"
            " quickstart got as --run-dir; it exists a few seconds after the command started."
        )


class LivePage:
    """The parts of the page, each as HTML or PNG. Threads may share an instance."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.time) -> None:
        """Create the page without reading anything.

        Args:
            run_dir: The run directory.
            clock: Returns seconds since the epoch.
        """
        self.run_dir = run_dir
        self._clock = clock
        self._lock = RLock()
        """matplotlib's settings belong to the process, so only one thread draws at a time."""
        self._version = ""
        self._read_at = 0.0
        self._plots: dict[str, Plot] = {}
        self._columns: dict[str, list] = {}
        self._pictures: dict[str, bytes | None] = {}
        self._samples_version = ""
        self._samples_changed_at = 0.0
        self._beat = 0.0
        """The run's clock in the status that was read last."""
        self._beat_written_by = 0.0
        """The latest moment, by this clock, at which that status can have been written."""
        self._was_seen_alive = False
        """Whether the status has changed since this page was created."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.run_dir.resolve().name

    def page(self) -> str:
        """Return the whole page with all of its parts, so that it can be read without scripts."""
        # First: what a group adds that ends while the samples are read is asked for later.
        samples_version = self.samples_version()
        return html.render(
            "watch.html",
            title=self.name,
            name=self.name,
            now=self.now(),
            figures=self.figures(),
            samples=self.samples(),
            figures_version=self.figures_version(),
            samples_version=samples_version,
        )

    def state(self) -> dict[str, str]:
        """Return what the page asks for every few seconds: the part that changes often, and versions of the others."""
        condition, _, step = self._condition()
        return {
            "title": f"{step} {self.name} · {condition}".strip(),
            "now": self.now(),
            "figures": self.figures_version(),
            "samples": self.samples_version(),
        }

    def now(self) -> str:
        """Return the progress, what the run waits for, counts and latest figures."""
        facts = heartbeat.read(self.run_dir) or {}
        status = facts.get("status") or {}
        with self._lock:
            self._refresh()
            columns = self._columns
        done = max((recorded_step for recorded_step in columns.get("step", ()) if recorded_step is not None), default=0)
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
        """Return curves, timeline and tables."""
        with self._lock:
            self._refresh()
            result = None
            config: dict[str, Any] = {}
            remarks = []
            try:
                result = summary.read(self.run_dir)
                config = config_of(self.run_dir) or {}
            except (ConfigError, DataError) as error:
                remarks.append(str(error))
            pictures = [self._picture_of(plot) for plot in self._plots.values() if self._has_data(plot)]
            if not pictures:
                remarks.append("No learner step has ended yet: curves come with the first one.")
            run = Run(self.name, "", result, self._columns, config, pictures, remarks)
        return html.render("watch_figures.html", body=render_body(run), remarks=remarks)

    def samples(self) -> str:
        """Return some samples of what was trained last and of what was dropped last."""
        parts = []
        for title, read in (("Trained last", self._trained_last), ("Dropped or failed last", self._dropped_last)):
            try:
                samples = read()
            except DataError:  # none yet
                continue
            if samples:
                parts.append({"title": title, "samples": [_sample_view(sample) for sample in samples]})
        return html.render("watch_samples.html", parts=parts)

    def picture(self, file: str) -> bytes | None:
        """Return a figure as PNG; None if there is none of that name, or no data for it."""
        with self._lock:
            self._refresh()
            if file not in self._pictures:
                plot = self._plots.get(file)
                self._pictures[file] = None if plot is None else drawn(plot, self._columns)
            return self._pictures[file]

    def figures_version(self) -> str:
        """Return a text that changes when the figures do."""
        with self._lock:
            self._refresh()
            return self._version

    def samples_version(self) -> str:
        """Return a text that changes when the ledger did, at most every REDRAW_S while the run is running."""
        with self._lock:
            now = self._clock()
            stamp = _stamp(self.run_dir / LEDGER)
            is_due = now - self._samples_changed_at >= REDRAW_S or self._condition()[0] != "running"
            if stamp != self._samples_version and is_due:
                self._samples_version = stamp
                self._samples_changed_at = now
            return self._samples_version

    def _refresh(self) -> None:
        """Read what the run has written since the last reading, at most every REDRAW_S."""
        version = "-".join(_stamp(self.run_dir / name) for name in (metrics.FILE, summary.FILE))
        now = self._clock()
        if version == self._version or (self._version and now - self._read_at < REDRAW_S):
            return
        self._version = version
        self._read_at = now
        self._columns = metrics.read(self.run_dir)
        spans = timelines.read(self.run_dir)
        self._plots = {plot.file: plot for plot in plots_of(self._columns, spans)}
        self._pictures.clear()

    def _has_data(self, plot: Plot) -> bool:
        if not self._columns.get("step"):
            return False
        with plot_style():
            return plot.draw(self._columns) is not None

    def _picture_of(self, plot: Plot) -> Picture:
        return Picture(plot.file, plot.title, plot.caption, f"picture/{plot.file}.png?v={self._version}")

    def _condition(self) -> tuple[str, str, str]:
        """Return the state of the run in a few words, the error that ended it ("" if none), and the step as "7/24"."""
        facts = heartbeat.read(self.run_dir)
        if facts is None:
            finished = (self.run_dir / summary.FILE).exists()
            return ("finished" if finished else "not running"), "", ""
        status = facts.get("status") or {}
        step = f"{status.get('step', 0)}/{status.get('max_steps', 0)}" if status else ""
        if "ended" in facts:
            ended = str(facts["ended"])
            return (ended, "", step) if ended in ("finished", "stopped") else ("failed", ended, step)
        silent = self._silent_s(facts["time"])
        if silent > STALE_S:
            cause = "It was killed or suspended, or its disk refuses writes."
            return f"no sign of life for {clock_text(silent)}", cause, step
        return "running", "", step

    def _silent_s(self, beat: float) -> float:
        """Return the seconds since the status was written.

        The run's node may have another clock than this machine, so what counts is when the status was seen to change,
        and by how much the run's clock went on since the change before: nobody may have looked for hours. Until a
        change is seen both are taken to have the same clock.

        Args:
            beat: The run's clock in the status.
        """
        now = self._clock()
        if beat != self._beat:
            self._was_seen_alive = self._beat != 0.0
            since_last = beat - self._beat
            if self._was_seen_alive and since_last > 0:  # else the run's clock was set back
                self._beat_written_by = min(now, self._beat_written_by + since_last)
            else:
                self._beat_written_by = now
            self._beat = beat
        unchanged = now - self._beat_written_by
        return unchanged if self._was_seen_alive else max(unchanged, now - beat)

    def _trained_last(self) -> list[Sample]:
        return spread_over_groups(last_trained_of(self.run_dir)[1], SAMPLES)

    def _dropped_last(self) -> list[Sample]:
        return spread_over_groups(untrained_of(self.run_dir).samples, SAMPLES)


def _stamp(path: Path) -> str:
    """Return a text that changes with every write to the file; "0" if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return "0"
    return f"{stat.st_mtime_ns:x}.{stat.st_size:x}"


def _doing(facts: dict[str, Any], status: dict[str, Any]) -> str:
    """Return what the run does or waits for right now."""
    if facts.get("stage"):
        return ": ".join(part for part in (facts["stage"], facts.get("stage_note", "")) if part)
    return status.get("waits_for", "")


def _counts(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, count) of the groups that ended: rolled, accepted, then dropped and failed by reason."""
    if not status:
        return []
    rows = [("rolled", status["rolled"]), ("accepted", status["accepted"])]
    for outcome in ("dropped", "failed"):
        rows += [
            (f"{outcome}: {reason}", count)
            for reason, count in sorted(status[outcome].items(), key=lambda item: -item[1])
        ]
    return [(name, f"{count:,}") for name, count in rows]


TILES = (
    ("reward", "reward_mean", "{:.3f}"),
    ("accuracy", "accuracy", "{:.1%}"),
    ("held-out accuracy", "eval/accuracy", "{:.1%}"),
    ("response length", "response_tokens_mean", "{:.0f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("KL to the sampler", "kl_rollout", "{:.2g}"),
    ("KL to the reference", "kl_ref", "{:.2g}"),
    ("gradient norm", "grad_norm", "{:.3g}"),
    ("clipped, low side", "clip_low", "{:.1%}"),
    ("clipped, high side", "clip_high", "{:.1%}"),
    ("staleness", "staleness_mean", "{:.1f}"),
    ("update", "wall_s", "{:.0f} s"),
)
"""(label, metric, format) of the latest figures."""


def _tiles(columns: dict[str, list], status: dict[str, Any]) -> list[Tile]:
    """Return the latest value of each figure that the run has. An evaluation's says at which update it was measured."""
    tiles = []
    steps = columns.get("step", [])
    for label, name, value_format in TILES:
        latest = _latest(steps, columns.get(name, []))
        if latest is not None:
            step, value = latest
            tiles.append(Tile(label, value_format.format(value), f"update {step}" if name.startswith("eval/") else ""))
    for name in sorted(columns):
        env, _, k = name.removeprefix("eval/").rpartition("pass_at_")
        latest = _latest(steps, columns[name])
        if latest is not None and name.startswith("eval/") and k.isdigit() and _is_largest(columns, name, int(k)):
            step, value = latest
            tiles.append(Tile(f"pass@{k}" + (f", {env.rstrip('/')}" if env else ""), f"{value:.1%}", f"update {step}"))
    if status.get("tokens_per_s") is not None:
        tiles.append(Tile("sampled", f"{status['tokens_per_s']:,.0f}", "tokens per second"))
    return tiles


def _latest(steps: list, values: list) -> tuple[int, float] | None:
    """Return the last (step, value) of a column; None if it has no value."""
    known = [(step, value) for step, value in zip(steps, values, strict=False) if value is not None]
    return known[-1] if known else None


def _is_largest(columns: dict[str, list], name: str, k: int) -> bool:
    """Return True if no pass@k of the same environment has a larger k."""
    prefix = name.removesuffix(str(k))
    endings = [other.removeprefix(prefix) for other in columns if other.startswith(prefix)]
    return k == max(int(ending) for ending in endings if ending.isdigit())


def _sample_view(sample: Sample) -> dict[str, Any]:
    """Return what the template shows of a sample: as on the page of samples, with a short form for the list."""
    view = sample_view(sample)
    return {
        **view,
        "id": "sample-" + "-".join(map(str, [*sample.row["key"], sample.row["index"]])),
        "verdict": view["facts"][0].partition(";")[0],
        "reward": "–" if sample.row["reward"] is None else f"{sample.row['reward']:g}",
    }
