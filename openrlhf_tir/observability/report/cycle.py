"""Where an update's time goes: its wall clock by what the learner did, and by what the engines did meanwhile.

The rows of metrics have overlapping figures: `push_s` includes `push_load_s` and `push_write_s`, and in a broadcast the
learner writes while the engines load. Here every second of an update belongs to one part, and a part that would exceed
what is left of its whole is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .summary import Cycle, percent

WARM_UP_UPDATES = 2
"""First updates that do not count: they wait for engines, and allocate."""
LEARNER = {
    "wait_for_groups": "wait for groups",
    "wait_for_gate": "wait for the staleness gate",
    "drain": "wait for groups under way, in a draining mode",
    "turn": "wait for the GPUs",
    "passes": "step: forward and backward passes",
    "scoring": "step: further forward passes",
    "optimizer": "step: optimizer",
    "step_rest": "step: the rest",
    "push_write": "push: writing",
    "push_load": "push: loading, engines paused",
    "push_read_back": "push: reading back, engines paused",
    "push_pause_rest": "push: the rest of the pause",
    "proof": "push: proof",
    "push_rest": "push: the rest",
    "checkpoint": "checkpoint",
    "evaluation": "wait for an evaluation",
    "other": "other",
}
"""Part of the learner's update -> what the table calls it."""
ENGINES = {
    "decode": "engines: decoding",
    "prefill": "engines: prompts and observations",
    "env_wait": "engines: no request, groups wait for environments and rewards",
    "idle": "engines: no work",
    "paused": "engines: paused",
}
"""Part of the engines' time -> what the table calls it."""

LISTED = 0.0005
"""Least share with a row in the table, which has one decimal of a percent."""


def split(whole: float, parts: Mapping[str, float], rest: str) -> dict[str, float]:
    """Return the parts of a whole and, under the name `rest`, what is left of it. Parts that exceed it are cut."""
    taken: dict[str, float] = {}
    left = whole
    for name, seconds in parts.items():
        taken[name] = min(max(seconds, 0.0), left)
        left -= taken[name]
    return taken | {rest: left}


def learner_parts(row: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of an update in seconds, which add up to its `wall_s`.

    Args:
        row: The update's metrics. A phase that it lacks took no time.
    """

    def seconds(*names: str) -> float:
        return sum(row.get(name, 0.0) for name in names)

    whole = split(
        seconds("wall_s"),
        {
            "wait_for_groups": seconds("replay_wait_s"),
            "wait_for_gate": seconds("gate_wait_s"),
            "drain": seconds("drain_s"),
            "turn": seconds("turn_s"),
            "step": seconds("step_s", "accumulate_s"),
            "push": seconds("push_s"),
            "checkpoint": seconds("checkpoint_s"),
            "evaluation": seconds("evaluate_s"),
        },
        "other",
    )
    step = split(
        whole.pop("step"),
        {"passes": seconds("passes_s"), "scoring": seconds("scoring_s"), "optimizer": seconds("optimizer_s")},
        "step_rest",
    )
    push = split(
        whole.pop("push"),
        {
            "push_load": seconds("push_load_s"),
            "push_read_back": seconds("push_read_back_s"),
            # Not push_pause_s less the two: each is the longest of all engines, not always the same engine's.
            "push_pause_rest": seconds("push_freeze_s", "push_begin_s", "push_resume_s"),
            "proof": seconds("push_canary_s", "push_score_s"),
            "push_write": seconds("push_write_s"),
        },
        "push_rest",
    )
    parts = whole | step | push
    return {name: parts[name] for name in LEARNER}


def engine_parts(row: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of the engines' time in seconds, all engines together; {} if they did not measure it."""
    if "engine_busy_s" not in row:
        return {}
    busy = split(row["engine_busy_s"], {"prefill": row["engine_prefill_s"]}, "decode")
    return busy | {name: row[f"engine_{name}_s"] for name in ("env_wait", "idle", "paused")}


def typical_updates(rows: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return the middle half of the updates by their wall clock, without the first WARM_UP_UPDATES of the run.

    The mean over these is little moved by a few long updates, and unlike medians of the parts it adds up.
    """
    settled = sorted(rows[WARM_UP_UPDATES:] or rows[-1:], key=lambda row: row["wall_s"])
    skipped = len(settled) // 4
    return settled[skipped : len(settled) - skipped]


def cycle_of(columns: Mapping[str, Sequence[float | None]]) -> Cycle | None:
    """Return where the time of a typical update went; None before the first update."""
    rows = [
        {name: value for name, values in columns.items() if (value := values[index]) is not None}
        for index, wall_s in enumerate(columns.get("wall_s", ()))
        if wall_s
    ]
    if not rows:
        return None
    updates = typical_updates(rows)
    of_learner = [learner_parts(row) for row in updates]
    of_engines = [parts for row in updates if (parts := engine_parts(row))]
    learner_s = {name: float(np.mean([parts[name] for parts in of_learner])) for name in LEARNER}
    engine_s = {name: sum(parts[name] for parts in of_engines) for name in ENGINES}
    total_s = sum(engine_s.values())
    return Cycle(
        updates=len(updates),
        wall_s=float(np.mean([row["wall_s"] for row in updates])),
        learner_s={name: seconds for name, seconds in learner_s.items() if seconds > 0},
        engine_share={name: seconds / total_s for name, seconds in engine_s.items()} if total_s > 0 else {},
    )


def rows_of(columns: Mapping[str, Sequence[float | None]]) -> list[tuple[str, str, str]]:
    """Return (part, seconds of an update, share) of learner and engines for the table; [] before the first update."""
    cycle = cycle_of(columns)
    if cycle is None:
        return []
    shares = {LEARNER[name]: seconds / cycle.wall_s for name, seconds in cycle.learner_s.items()}
    shares |= {ENGINES[name]: share for name, share in cycle.engine_share.items()}
    whole = ("an update", f"{cycle.wall_s:.2f}", percent(1.0))
    return [whole] + [
        (label, f"{share * cycle.wall_s:.2f}", percent(share)) for label, share in shares.items() if share >= LISTED
    ]
