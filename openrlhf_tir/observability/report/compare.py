"""Compare several run directories: one page of curves, and the rows of a table for the terminal.

Runs whose configurations differ only in the seed and the directory are repetitions of one configuration. They share a
colour, a line through their mean, and a band from the lowest to the highest. Other configurations are named by the
settings in which they differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...config import Config
from ...errors import ConfigError
from ...telemetry import metrics
from . import html
from .build import config_of
from .curves import finish, series, smooth, trained
from .page import Picture, flatten
from .style import COLORS, data_uri, new_figure, plot_style, png

NOT_COMPARED = ("run_dir", "train.seed", "train.resume", "train.overwrite", "train.max_restarts")
"""Settings in which repetitions of one configuration may differ."""
NOT_COMPARED_SECTIONS = ("logger.", "ckpt.", "timeouts.")
"""Sections in which repetitions may differ."""
TAIL = 0.1
"""Share of the updates, at the end of a run, over which a figure of the table is the mean."""
NAMED = 3
"""A configuration is named by at most this many settings. Where more differ, its first run names it."""
CURVES = (
    ("reward_mean", "Reward", "mean over responses"),
    ("accuracy", "Accuracy of the training responses", "share of responses"),
    ("eval/accuracy", "Held-out accuracy", "share of samples"),
    ("response_tokens_mean", "Response length", "tokens"),
    ("code_ratio", "Responses with a tool call", "share of responses"),
    ("entropy", "Entropy", "nats per token"),
    ("kl_rollout", "KL to the rollout policy", "nats per token"),
    ("kl_ref", "KL to the reference", "nats per token"),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("clip_low", "Clipped tokens, low side", "share of tokens"),
    ("clip_high", "Clipped tokens, high side", "share of tokens"),
    ("staleness_mean", "Staleness", "policy versions"),
    ("tokens_per_s", "Throughput", "trained tokens per second"),
    ("wall_s", "Wall clock of an update", "seconds"),
)
"""(metric, title, unit) of the figures. pass@k and the metrics of environments follow them."""


class ComparedRun(NamedTuple):
    """One run, as far as it has come.

    Attributes:
        directory: The run directory.
        name: Its name, unique among the compared runs.
        columns: Metric -> values.
        config: Settings by dotted name, with defaults; {} if the run's config.toml cannot be read.
    """

    directory: Path
    name: str
    columns: dict[str, list]
    config: dict[str, Any]


class Arm(NamedTuple):
    """The repetitions of one configuration."""

    label: str
    runs: list[ComparedRun]


class Best(NamedTuple):
    """The best value that a run has of a metric, and at which update.

    Attributes:
        value: The value.
        step: The update.
        checkpoint: Directory of the checkpoint of that update, "" if it is not kept.
        model: Directory of the exported model of that update, "" if there is none.
    """

    value: float
    step: int
    checkpoint: str
    model: str = ""


def read_runs(directories: Sequence[Path]) -> list[ComparedRun]:
    """Raises ConfigError, with every directory that is no run or has no learner step yet."""
    runs, faults = [], []
    for directory in directories:
        if not directory.is_dir():
            faults.append(f"There is no directory {directory}.")
            continue
        columns = metrics.read(directory)
        if not any(step > 0 for step in columns.get("step", ())):
            faults.append(f"{directory} has no learner step in {metrics.FILE}: it is no run, or has no step yet.")
            continue
        try:
            config = flatten(config_of(directory) or {})
        except ConfigError:  # The file is of another version. The curves can be compared all the same.
            config = {}
        runs.append(ComparedRun(directory, _name(directory, directories), columns, config))
    if faults:
        raise ConfigError("\n".join([*faults, "Give directories that train wrote (--run-dir)."]))
    return runs


def arms_of(runs: Sequence[ComparedRun]) -> list[Arm]:
    """Return the configurations with their repetitions, in the order of the first run of each."""
    groups: dict[tuple, list[ComparedRun]] = {}
    for run in runs:
        key = tuple(sorted((name, str(value)) for name, value in _compared(run).items())) or (run.name,)
        groups.setdefault(key, []).append(run)
    repetitions = list(groups.values())
    differing = _differing([arm_runs[0] for arm_runs in repetitions])
    return [Arm(_label(arm_runs, differing), arm_runs) for arm_runs in repetitions]


def _compared(run: ComparedRun) -> dict[str, Any]:
    """Return the settings that make a configuration. A path in the run's own directory counts by its place in there."""
    run_dir = str(run.config.get("run_dir", ""))
    return {
        name: str(value).replace(run_dir, "RUN") if run_dir else value
        for name, value in run.config.items()
        if name not in NOT_COMPARED and not name.startswith(NOT_COMPARED_SECTIONS)
    }


def _differing(firsts: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all configurations."""
    compared = [_compared(run) for run in firsts]
    names = {name for settings in compared for name in settings}
    return sorted(name for name in names if len({str(settings.get(name)) for settings in compared}) > 1)


def _label(arm_runs: Sequence[ComparedRun], differing: Sequence[str]) -> str:
    suffix = f" (x{len(arm_runs)})" if len(arm_runs) > 1 else ""
    settings = _compared(arm_runs[0])
    if settings and 0 < len(differing) <= NAMED:
        return ", ".join(f"{name.rpartition('.')[2]} {settings.get(name)}" for name in differing) + suffix
    return arm_runs[0].name + suffix


def _name(directory: Path, directories: Sequence[Path]) -> str:
    """Return the name of a directory, with as many of its parents' as tell it from the other runs."""
    parts = directory.resolve().parts
    others = [other.resolve().parts for other in directories if other.resolve() != directory.resolve()]
    count = 1
    while count < len(parts) and any(other[-count:] == parts[-count:] for other in others):
        count += 1
    return "/".join(parts[-count:])


def metrics_of(runs: Sequence[ComparedRun], wanted: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Return (metric, title, unit) of every figure that at least one run has data for.

    These are CURVES, pass@k of the largest k, the accuracy and pass@k of each environment, and `wanted`.

    Raises:
        ConfigError: No run has a wanted metric.
    """
    names = {name for run in runs for name in run.columns if series(run.columns, name) is not None}
    for name in wanted:
        if name not in names:
            raise ConfigError(
                f"No run has the metric {name!r}. They have: {', '.join(sorted(names - {'step', 'time'}))}."
            )
    known = [curve for curve in CURVES if curve[0] in names]
    largest: dict[str, int] = {}
    for name in names:
        prefix, _, k = name.rpartition("pass_at_")
        if prefix.startswith("eval/") and k.isdigit():
            largest[prefix] = max(largest.get(prefix, 0), int(k))
    known += [
        (f"{prefix}pass_at_{k}", f"pass@{k}" + _of_env(prefix.removeprefix("eval/")), "share of problems")
        for prefix, k in sorted(largest.items())
    ]
    env_names = [name for name in sorted(names) if name.startswith("env/") and name.endswith("/accuracy")]
    known += [(name, f"Accuracy in {name.split('/')[1]}", "share of responses") for name in env_names]
    listed = {curve[0] for curve in known}
    return known + [(name, name, "") for name in wanted if name not in listed]


def _of_env(prefix: str) -> str:
    return f" in {prefix.rstrip('/')}" if prefix else ""


def draw(arms: Sequence[Arm], metric: str, title: str, unit: str) -> Figure | None:
    """Draw one metric of all configurations over the learner steps; return None if no run has it."""
    figure, (axes,) = new_figure(3.0)
    drawn = False
    for number, arm in enumerate(arms):
        color = COLORS[number % len(COLORS)]
        steps, values = _values(arm, metric)  # [steps], [runs, steps]
        if not len(steps):
            continue
        drawn = True
        mean = np.nanmean(values, axis=0)
        sparse = "o" if len(steps) < 30 else None
        axes.plot(steps, smooth(mean), color=color, lw=2.0, label=arm.label, marker=sparse, markersize=3.5)
        if len(arm.runs) > 1:
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            axes.fill_between(steps, smooth(low), smooth(high), color=color, alpha=0.16, linewidth=0)
    if not drawn:
        return None
    axes.set(title=title, ylabel=unit)
    return finish(figure, [axes])


def _values(arm: Arm, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a metric in the runs of a configuration.

    Returns:
        ([steps], [runs, steps] float64): the steps at which at least one run has the metric; NaN where a run lacks it.
    """
    values_by_step = []
    for run in arm.runs:
        columns = run.columns if metric.startswith("eval/") else trained(run.columns)
        values = series(columns, metric)
        measured = {} if values is None else dict(zip(columns["step"], values, strict=True))
        values_by_step.append({step: value for step, value in measured.items() if not np.isnan(value)})
    steps = sorted({step for measured in values_by_step for step in measured})
    table = [[measured.get(step, np.nan) for step in steps] for measured in values_by_step]
    return np.array(steps, float), np.array(table)


def best_of(run: ComparedRun, metric: str, lowest: bool = False) -> Best | None:
    """Return the best (or lowest) value of the metric over the run; None if the run does not have it."""
    values = series(run.columns, metric)
    if values is None:
        return None
    index = int(np.nanargmin(values) if lowest else np.nanargmax(values))
    step = run.columns["step"][index]
    checkpoint = run.directory / str(run.config.get("ckpt.path", "ckpt")) / f"step_{step:06d}"
    return Best(
        float(values[index]), step, str(checkpoint) if checkpoint.is_dir() else "", _model_of(run, checkpoint, step)
    )


def _model_of(run: ComparedRun, checkpoint: Path, step: int) -> str:
    """Return the directory of the exported model of an update, "" if there is none.

    That is the run's export if the update was its last, and the one of the best checkpoint if the run found the same.
    """
    exported = run.directory / str(run.config.get("ckpt.output_dir", "model"))
    if step == max(run.columns["step"]) and exported.is_dir():
        return str(exported)
    try:
        best = json.loads((checkpoint.parent / "best.json").read_text())["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    exported = exported.with_name(f"{exported.name}_best")
    return str(exported) if best == checkpoint.name and exported.is_dir() else ""


def tail_mean(run: ComparedRun, metric: str) -> float | None:
    """Return the mean of a metric over the last TAIL of the updates, at least one. Of an evaluation, return the last
    value."""
    values = series(run.columns, metric)
    if values is None:
        return None
    known = values[~np.isnan(values)]
    count = 1 if metric.startswith("eval/") else max(1, round(TAIL * len(known)))
    return float(known[-count:].mean())


TABLE = (
    ("reward", "reward_mean", "{:.3f}"),
    ("accuracy", "accuracy", "{:.1%}"),
    ("held-out", "eval/accuracy", "{:.1%}"),
    ("length", "response_tokens_mean", "{:.0f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("grad", "grad_norm", "{:.3g}"),
    ("update s", "wall_s", "{:.1f}"),
)
"""(head, metric, format) of the table's columns between the number of updates and the best value."""


def table_of(arms: Sequence[Arm], best: str, lowest: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table: one row per run, in the order of the configurations."""
    head = ["run", "configuration", f"{'lowest' if lowest else 'best'} {best}", "updates"]
    head += [label for label, _, _ in TABLE]
    rows = []
    for arm in arms:
        for run in arm.runs:
            figures = [(value_format, tail_mean(run, name)) for _, name, value_format in TABLE]
            best_value = best_of(run, best, lowest)
            rows.append(
                [
                    run.name,
                    arm.label,
                    "–" if best_value is None else f"{best_value.value:.4g} at {best_value.step}",
                    str(max(run.columns["step"])),
                    *("–" if value is None else value_format.format(value) for value_format, value in figures),
                ]
            )
    return head, rows


SCREEN = ("run", "updates", "reward", "accuracy", "held-out", "length", "update s")
"""Columns of `table_of` that a terminal shows besides the best value; the page has all."""


def screen_of(arms: Sequence[Arm], best: str, lowest: bool) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the table of a terminal, which fits 80 columns.

    Returns:
        Its head, its rows, and lines that say which configuration each run is of, where there are several.
    """
    head, rows = table_of(arms, best, lowest)
    short = "lowest" if lowest else "best"
    first, *others = SCREEN
    shown = [head.index(name) for name in (first, f"{short} {best}", *others)]
    narrow = [first, short, *others]
    named = [(", ".join(run.name for run in arm.runs), arm.label) for arm in arms] if len(arms) > 1 else []
    lines = [f"{names}: {label}" for names, label in named if label != names]
    if len(lines) < len(named):
        lines.append("They differ in more settings than fit here; the page lists them.")
    return narrow, [[row[index] for index in shown] for row in rows], lines


def write_page(path: Path, arms: Sequence[Arm], best: str, lowest: bool = False, wanted: Sequence[str] = ()) -> Path:
    """Write the page of curves and the table, and return its path."""
    runs = [run for arm in arms for run in arm.runs]
    pictures = []
    for name, title, unit in metrics_of(runs, wanted):
        with plot_style():
            figure = draw(arms, name, title, unit)
            if figure is not None:
                pictures.append(Picture(name.replace("/", "-"), title, f"`{name}`", data_uri(png(figure))))
    head, rows = table_of(arms, best, lowest)
    differing = _differing([arm.runs[0] for arm in arms])
    defaults = flatten(Config().model_dump(mode="json"))
    settings = [
        [name, *(str(_compared(arm.runs[0]).get(name, "–")) for arm in arms), str(defaults.get(name, "–"))]
        for name in differing
    ]
    page = html.render(
        "compare.html",
        title="comparison of runs",
        written=time.strftime("%Y-%m-%d %H:%M"),
        runs=len(runs),
        arms=[arm.label for arm in arms],
        has_band=any(len(arm.runs) > 1 for arm in arms),
        pictures=pictures,
        head=head,
        rows=rows,
        settings=settings,
    )
    path.write_text(page, encoding="utf-8")
    return path
