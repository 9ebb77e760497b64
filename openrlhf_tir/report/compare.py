"""Compare: several run directories -> one page of curves, and rows for a table in the terminal.

Runs whose configurations differ in nothing but the seed and the directory are repetitions: they are one colour, a line
through their mean, and a band from the lowest to the highest. What differs between the others names them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ..config import Config
from ..errors import ConfigError
from ..logs import metrics
from . import html
from .build import config_of
from .curves import finish, series, smooth, trained
from .page import Picture, flatten
from .style import DARK, LIGHT, Theme, new_figure, png, themed

NOT_COMPARED = ("run_dir", "train.seed", "train.resume", "train.overwrite", "train.max_restarts")
"""Settings in which repetitions of one configuration may differ."""
NOT_COMPARED_SECTIONS = ("logger.", "ckpt.", "timeouts.")
TAIL = 0.1
"""Share of the updates at the end over which a table's figure is the mean."""
NAMED = 3
"""Settings that name a configuration; where more differ, its first run does."""
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
"""(metric, title, unit) of the figures; pass@k and the environments' own come after."""


class ComparedRun(NamedTuple):
    """One run, as far as it has come."""

    directory: Path
    name: str
    columns: dict[str, list]
    config: dict[str, Any]
    """Settings by dotted name, defaults among them; {} where the run's config.toml cannot be read."""


class Arm(NamedTuple):
    """The repetitions of one configuration."""

    label: str
    runs: list[ComparedRun]


class Best(NamedTuple):
    """The best value that a run has of a metric, and at which update."""

    value: float
    step: int
    checkpoint: str
    """Path of the checkpoint of that update; "" where none is kept."""


def read_runs(directories: Sequence[Path]) -> list[ComparedRun]:
    """Raises ConfigError, with every directory that is no run or has no learner step yet."""
    runs, faults = [], []
    for directory in directories:
        if not directory.is_dir():
            faults.append(f"There is no directory {directory}.")
            continue
        columns = metrics.read(directory)
        if not any(step > 0 for step in columns.get("step", ())):
            faults.append(f"{directory} has no learner step in {metrics.FILE}: it is no run, or has not come so far.")
            continue
        try:
            config = flatten(config_of(directory) or {})
        except ConfigError:  # of another version; the curves can be compared all the same
            config = {}
        runs.append(ComparedRun(directory, _name(directory, directories), columns, config))
    if faults:
        raise ConfigError("\n".join([*faults, "Give directories that train wrote (--run-dir)."]))
    return runs


def arms_of(runs: Sequence[ComparedRun]) -> list[Arm]:
    """Repetitions together, in the order of the first of each."""
    groups: dict[tuple, list[ComparedRun]] = {}
    for run in runs:
        key = tuple(sorted((k, str(v)) for k, v in _compared(run).items())) or (run.name,)
        groups.setdefault(key, []).append(run)
    together = list(groups.values())
    differing = _differing([of_arm[0] for of_arm in together])
    return [Arm(_label(of_arm, differing), of_arm) for of_arm in together]


def _compared(run: ComparedRun) -> dict[str, Any]:
    """Settings that make a configuration; what lies in the run's own directory counts by its place in it."""
    own = str(run.config.get("run_dir", ""))
    return {
        name: str(value).replace(own, "RUN") if own else value
        for name, value in run.config.items()
        if name not in NOT_COMPARED and not name.startswith(NOT_COMPARED_SECTIONS)
    }


def _differing(firsts: Sequence[ComparedRun]) -> list[str]:
    """Names of the settings that are not the same in all configurations."""
    compared = [_compared(run) for run in firsts]
    names = {name for settings in compared for name in settings}
    return sorted(name for name in names if len({str(settings.get(name)) for settings in compared}) > 1)


def _label(of_arm: Sequence[ComparedRun], differing: Sequence[str]) -> str:
    times = f" (x{len(of_arm)})" if len(of_arm) > 1 else ""
    settings = _compared(of_arm[0])
    if settings and 0 < len(differing) <= NAMED:
        return ", ".join(f"{name.rpartition('.')[2]} {settings.get(name)}" for name in differing) + times
    return of_arm[0].name + times


def _name(directory: Path, among: Sequence[Path]) -> str:
    """The directory's name, with its parent's where another has the same."""
    same = [other for other in among if other.resolve().name == directory.resolve().name]
    resolved = directory.resolve()
    return resolved.name if len(same) == 1 else f"{resolved.parent.name}/{resolved.name}"


def metrics_of(runs: Sequence[ComparedRun], wanted: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """(metric, title, unit) of every figure that some run has data for: the usual ones, pass@k of the largest k, each
    environment's accuracy and pass@k, and `wanted`. Raises ConfigError for a wanted metric that no run has."""
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
    of_envs = [name for name in sorted(names) if name.startswith("env/") and name.endswith("/accuracy")]
    known += [(name, f"Accuracy in {name.split('/')[1]}", "share of responses") for name in of_envs]
    listed = {curve[0] for curve in known}
    return known + [(name, name, "") for name in wanted if name not in listed]


def _of_env(prefix: str) -> str:
    return f" in {prefix.rstrip('/')}" if prefix else ""


def draw(arms: Sequence[Arm], metric: str, title: str, unit: str, theme: Theme) -> Figure | None:
    """One metric of all arms over the learner steps; None where no run has it."""
    figure, (axes,) = new_figure(3.0)
    drawn = False
    for i, arm in enumerate(arms):
        colour = theme.series[i % len(theme.series)]
        steps, values = _values(arm, metric)  # [S], [R, S]
        if not len(steps):
            continue
        drawn = True
        mean = np.nanmean(values, axis=0)
        sparse = "o" if len(steps) < 30 else None
        axes.plot(steps, smooth(mean), color=colour, lw=2.0, label=arm.label, marker=sparse, markersize=3.5)
        if len(arm.runs) > 1:
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            axes.fill_between(steps, smooth(low), smooth(high), color=colour, alpha=0.16, linewidth=0)
    if not drawn:
        return None
    axes.set(title=title, ylabel=unit)
    return finish(figure, [axes])


def _values(arm: Arm, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """([S] steps, [R, S] values of each run): the steps at which some run has the metric, NaN where one has not."""
    of_runs = []
    for run in arm.runs:
        columns = run.columns if metric.startswith("eval/") else trained(run.columns)
        found = series(columns, metric)
        known = {} if found is None else dict(zip(columns["step"], found, strict=True))
        of_runs.append({step: value for step, value in known.items() if not np.isnan(value)})
    steps = sorted({step for known in of_runs for step in known})
    return np.array(steps, float), np.array([[known.get(step, np.nan) for step in steps] for known in of_runs])


def best_of(run: ComparedRun, metric: str, lowest: bool = False) -> Best | None:
    """The best value of the metric over the run; None where the run does not have it."""
    values = series(run.columns, metric)
    if values is None:
        return None
    at = int(np.nanargmin(values) if lowest else np.nanargmax(values))
    step = run.columns["step"][at]
    kept = run.directory / str(run.config.get("ckpt.path", "ckpt")) / f"step_{step:06d}"
    return Best(float(values[at]), step, str(kept) if kept.is_dir() else "")


def tail_mean(run: ComparedRun, metric: str) -> float | None:
    """Mean of the metric over the last updates (a tenth of them, one at least); of an evaluation's the last value."""
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
"""(head, metric, form) of the table's columns between the number of updates and the best value."""


def table_of(arms: Sequence[Arm], best: str, lowest: bool = False) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: one row a run, in the order of the arms."""
    head = ["run", "configuration", f"{'lowest' if lowest else 'best'} {best}", "updates"]
    head += [label for label, _, _ in TABLE]
    rows = []
    for arm in arms:
        for run in arm.runs:
            figures = [(form, tail_mean(run, name)) for _, name, form in TABLE]
            found = best_of(run, best, lowest)
            rows.append(
                [
                    run.name,
                    arm.label,
                    "–" if found is None else f"{found.value:.4g} at {found.step}",
                    str(max(run.columns["step"])),
                    *("–" if value is None else form.format(value) for form, value in figures),
                ]
            )
    return head, rows


def write_page(path: Path, arms: Sequence[Arm], best: str, lowest: bool = False, wanted: Sequence[str] = ()) -> Path:
    """Write the page of curves and the table; returns its path."""
    runs = [run for arm in arms for run in arm.runs]
    pictures = []
    for name, title, unit in metrics_of(runs, wanted):
        encoded = []
        for theme in (LIGHT, DARK):
            with themed(theme):
                figure = draw(arms, name, title, unit, theme)
                if figure is not None:
                    encoded.append("data:image/png;base64," + base64.b64encode(png(figure)).decode())
        if encoded:
            pictures.append(Picture(name.replace("/", "-"), title, f"`{name}`", *encoded))
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
