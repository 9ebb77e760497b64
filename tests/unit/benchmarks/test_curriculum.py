"""benchmarks.curriculum's figures, from rows as a run writes them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.curriculum import accuracy_of, cost_of


def row(step: int, rolled: int, trained: int, **more: float) -> dict[str, float]:
    """A step's row; a third of what was rolled in another bin."""
    bins = {"100": rolled - rolled // 3, "50": rolled // 3}
    return {
        "step": step,
        **{f"selection/difficulty/{name}/rolled": n for name, n in bins.items()},
        "selection/difficulty/50/trained": trained,
        "selection/length/64/rolled": 1000,
        **more,
    }


def test_only_the_last_third_of_the_updates_is_counted_and_each_group_once():
    rows = [row(step, rolled=90 if step <= 4 else 32, trained=16) for step in range(1, 7)]
    assert cost_of(rows, 6) == 2.0


def test_a_group_that_is_taken_back_is_not_counted_twice():
    rows = [row(5, 48, 16), {"step": 6, "selection/difficulty/50/rolled": -16, "selection/difficulty/50/trained": 0}]
    assert cost_of(rows, 6) == 2.0


def test_the_accuracy_is_the_last_evaluations():
    assert accuracy_of([{"step": 0, "eval/accuracy": 0.3}, row(1, 3, 3), {"step": 2, "eval/accuracy": 0.9}]) == 0.9


@pytest.mark.slow
def test_finished_runs_are_read_and_not_repeated(tmp_path):
    base = tmp_path / "base"
    (base / "base").mkdir(parents=True)
    (base / "base" / "figures.json").write_text(json.dumps({"seed": 7}))
    for name, rolled in (("uniform", 48), ("difficulty", 24)):
        run_dir = tmp_path / "out" / f"{name}-7"
        run_dir.mkdir(parents=True)
        (run_dir / "summary.json").write_text("{}")
        rows = [row(3, rolled, 16, **{"eval/accuracy": 0.95})]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    words = ["--base", str(base), "--out", str(tmp_path / "out"), "--updates", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.curriculum", *words], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["fewer"] == 2.0
    assert (said["accuracy_uniform"], said["rolled_per_trained_difficulty"]) == (0.95, 1.5)
