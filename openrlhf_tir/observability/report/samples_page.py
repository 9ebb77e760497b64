"""The page of samples: samples.html shows some trajectories that were trained and some that were dropped.

They are of the first, the middle and the last step that kept any, and of several groups rather than of one.
`openrlhf-tir play RUN --step K` shows the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from . import html
from .samples import LEDGER, Sample, ends_by_step, facts_of, rows_of, title_of

FILE = "samples.html"
"""Name of the page in the run directory."""
PER_GROUP = 2
"""Trajectories of one group that are shown."""
PER_PART = 8
"""Trajectories under one heading that are shown."""


class Part(NamedTuple):
    """The samples under one heading."""

    title: str
    samples: list[dict[str, Any]]


def write(run_dir: Path) -> Path | None:
    """Write samples.html and return its path.

    If the run kept no trajectories of its steps, remove an earlier page and return None.

    Raises:
        DataError: A file is damaged.
    """
    path = run_dir / FILE
    parts = parts_of(run_dir)
    if not parts:
        path.unlink(missing_ok=True)
        return None
    path.write_text(
        html.render("samples.html", title=f"{run_dir.name} · samples", name=run_dir.name, parts=parts), encoding="utf-8"
    )
    return path


def parts_of(run_dir: Path) -> list[Part]:
    """Return the trained and the dropped samples of the steps that are shown. Each file is read once."""
    if not (run_dir / LEDGER).exists():
        return []
    ends = ends_by_step(run_dir)
    step_of = {key: step for step, keys in ends.items() for key in keys}
    kept: dict[tuple[int, bool], dict[tuple[int, ...], list[Sample]]] = {}
    for row in rows_of(run_dir):
        key = tuple(row["key"])
        if key in step_of and row["index"] >= 0:
            reason = ends[step_of[key]][key]
            groups = kept.setdefault((step_of[key], not reason), {})
            if key in groups or len(groups) < PER_PART // PER_GROUP:
                groups.setdefault(key, []).append(Sample(reason, row))
    parts = []
    for step in spread_over({step for step, _ in kept}):
        for trained in (True, False):
            groups = kept.get((step, trained), {})
            if groups:
                samples = [sample_view(sample) for group in groups.values() for sample in _best_and_worst(group)]
                parts.append(Part(f"{'Trained by' if trained else 'Dropped before'} step {step}", samples))
    return parts


def spread_over(steps: set[int]) -> list[int]:
    """Return the first, the middle and the last step."""
    ordered = sorted(steps)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}) if ordered else []


def _best_and_worst(group: list[Sample]) -> list[Sample]:
    """Return the best and the worst sample by reward, in order of their index. No reward counts as the worst."""
    by_reward = sorted(group, key=lambda sample: (sample.row["reward"] is not None, sample.row["reward"] or 0.0))
    chosen = [by_reward[-1], by_reward[0]][: min(PER_GROUP, len(group))]
    return sorted(chosen, key=lambda sample: sample.row["index"])


def sample_view(sample: Sample) -> dict[str, Any]:
    """Return what a template shows of a sample: title, prompt, its text by source, and facts."""
    kind = "trained" if sample.trained else "untrained"
    runs = [{"text": run["text"], "kind": "env" if run["source"] == "env" else kind} for run in sample.row["runs"]]
    return {"title": title_of(sample), "prompt": sample.row["prompt"], "runs": runs, "facts": facts_of(sample)}
