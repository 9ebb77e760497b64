"""Page of samples: kept trajectories -> samples.html, which shows some that were trained and some that were dropped,
over the run.

Of the first, the middle and the last step that have any; of several groups rather than of one. `openrlhf-tir play RUN
--step K` shows the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..logs import trajectories
from . import html
from .samples import LEDGER, Sample, ends_by_step, facts_of, title_of

FILE = "samples.html"
PER_GROUP = 2
PER_PART = 8
"""Trajectories: of one group, and under one heading."""


class Part(NamedTuple):
    """What stands under one heading."""

    title: str
    samples: list[dict[str, Any]]


def write(run_dir: Path) -> Path | None:
    """Writes samples.html and returns its path; removes an earlier one and returns None when the run kept no
    trajectories of its steps.

    Raises DataError for a damaged file.
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
    """Trained and dropped samples of the steps that are shown; a part without any is left out. Read once."""
    if not (run_dir / trajectories.DIRECTORY).is_dir() or not (run_dir / LEDGER).exists():
        return []
    ends = ends_by_step(run_dir)
    step_of = {key: step for step, keys in ends.items() for key in keys}
    kept: dict[tuple[int, bool], dict[tuple[int, ...], list[Sample]]] = {}
    for row in trajectories.read(run_dir):
        key = tuple(row["key"])
        if key in step_of and row["index"] >= 0:
            reason = ends[step_of[key]][key]
            groups = kept.setdefault((step_of[key], not reason), {})
            if key in groups or len(groups) < PER_PART // PER_GROUP:
                groups.setdefault(key, []).append(Sample(reason, row))
    return [
        Part(
            f"{'Trained by' if trained else 'Dropped before'} step {step}",
            [_shown(s) for group in found.values() for s in _some(group)],
        )
        for step in spread_over({step for step, _ in kept})
        for trained in (True, False)
        if (found := kept.get((step, trained)))
    ]


def spread_over(steps: set[int]) -> list[int]:
    """The first, the middle and the last."""
    ordered = sorted(steps)
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]}) if ordered else []


def _some(group: list[Sample]) -> list[Sample]:
    """The best and the worst by reward, in order of their index; a sample without a reward counts as the worst."""
    by_reward = sorted(group, key=lambda s: (s.row["reward"] is not None, s.row["reward"] or 0.0))
    chosen = [by_reward[-1], by_reward[0]][: min(PER_GROUP, len(group))]
    return sorted(chosen, key=lambda s: s.row["index"])


def _shown(sample: Sample) -> dict[str, Any]:
    kind = "trained" if sample.trained else "untrained"
    runs = [{"text": run["text"], "kind": "env" if run["source"] == "env" else kind} for run in sample.row["runs"]]
    return {"title": title_of(sample), "prompt": sample.row["prompt"], "runs": runs, "facts": facts_of(sample)}
