"""A stand-in for the commands of a miniature: it writes what they would leave, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from miniatures.reproduce import methods
from miniatures.reproduce.commands import How
from miniatures.reproduce.run import reproduce
from miniatures.toy import lessons
from openrlhf_tir.cluster.jobs.measured import EvalResult


def rows_of_a_run(
    accuracy: float = 0.95, code: float = 0.97, calls: float = 1.0, before: float = 0.3, **more: float
) -> list[dict]:
    """metrics.jsonl of a run of 24 updates that goes from `before` to `accuracy` and `code` in four evaluations."""
    rows: list[dict] = [
        {"step": 0, "time": 0.0, "eval/accuracy": before, "eval/code_ratio": before, "eval/greedy_accuracy": 0.05}
    ]
    for step in range(1, 25):
        share = step / 24
        row = {
            "step": step,
            "time": float(step),
            "accuracy": before + share * (accuracy - before),
            "calls_mean": 1.9 + share * (calls - 1.9),
            **more,
        }
        if step % 6 == 0:
            row |= {
                "eval/accuracy": row["accuracy"],
                "eval/code_ratio": before + share * (code - before),
                "eval/calls": row["calls_mean"],
            }
        rows.append(row)
    return [
        *rows,
        {"step": 24, "time": 25.0, "eval/accuracy": accuracy, "eval/code_ratio": code, "eval/greedy_accuracy": 0.99},
    ]


def swept(accuracy_by_n: dict[int, float]) -> dict:
    """What `eval --sweep env.max_calls=... --out` writes."""
    by_value = {
        str(n): {"n": 4, "avg@4": [value, value, value], "tools": {"calls": [min(n, 2.5), 0, 0]}}
        for n, value in accuracy_by_n.items()
    }
    return {"model": "m", "swept": "env.max_calls", "suites": {"own": by_value}}


class Fake:
    """`rows`: of a train command, by the name of its arm. `fails`: arms that end with exit code 3. `tuned`: what `eval`
    finds of a fine-tuned model."""

    def __init__(
        self,
        rows: Callable[[str], list[dict]] = lambda arm: rows_of_a_run(),
        *,
        fails: tuple[str, ...] = (),
        sweep: dict[int, float] | None = None,
    ):
        self.rows, self.fails, self.sweep, self.asked = rows, fails, sweep or {}, []
        self.tuned = EvalResult(accuracy=0.42, code_ratio=0.36, format_ok=1.0, code_correct=0.95, samples=512, failed=0)

    def __call__(self, arguments: list[str], log: Path, timeout_s: float, tick: Callable[[], None]) -> int:
        words = arguments[3:]  # python -m openrlhf_tir.cli
        if words[0] == "model":
            base = Path(words[words.index("--out") + 1])
            self.asked.append(("model", words[1], False))
            base.mkdir(parents=True)
            (base / "config.json").write_text("{}")
            return 0
        directory = Path(words[words.index("--run-dir") + 1])
        self.asked.append((words[0], directory.name, "--resume" in words))
        directory.mkdir(parents=True, exist_ok=True)
        log.write_text("starting\n")
        if directory.name in self.fails:
            log.write_text("starting\nEnvLost: no server is up\n")
            return 3
        if words[0] == "toy-model":
            lesson, seed = words[words.index("--lesson") + 1], int(words[words.index("--train.seed") + 1])
            for part in ("base", "data"):
                (directory / part).mkdir()
            (directory / "base" / "figures.json").write_text(json.dumps(lessons.record(lesson, seed)))
            (directory / "data" / "test.jsonl").write_text("")
        elif words[0] in ("train", "quickstart"):
            (directory / "metrics.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in self.rows(directory.name))
            )
            tick()
        elif words[0] == "eval":
            found = (
                swept(self.sweep)
                if "--sweep" in words
                else {"sampled": asdict(self.tuned), "greedy": asdict(self.tuned)}
            )
            Path(words[words.index("--out") + 1]).write_text(json.dumps(found))
        return 0


def go(name: str, tmp_path, fake: Fake, seeds: tuple[int, ...] = (42,), said: list[str] | None = None):
    said = [] if said is None else said
    return reproduce(methods.named(name), seeds, tmp_path / name, tmp_path / "bases", How(9, said.append, fake))


def otc_rows(arm: str) -> list[dict]:
    return rows_of_a_run(calls=1.7 if arm in ("torl", "ppo") else 1.0)
