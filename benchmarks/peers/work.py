"""Work: what every system is given, alike, and what each writes down of it. Standard library only: it is imported in
every system's own venv.

work.json      Work                                      read by the system's process
steps.jsonl    Step, a line as each update is done       written by it; ours is read from its own metrics.jsonl instead
step_000002/   the weights, every `save_every` updates   evaluated afterwards, by one evaluator for all
note.txt       a sentence: why it did not run, or no further
accuracy.json  {update: held-out accuracy}               written by the evaluator
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WORK, STEPS, BEGAN, NOTE, ACCURACY = "work.json", "steps.jsonl", "began", "note.txt", "accuracy.json"
TOY, SMOLLM2 = "toy", "smollm2"
BARS = {TOY: 0.85, SMOLLM2: 0.8}
"""Model -> held-out accuracy that `seconds_to_85`, or `seconds_to_80`, waits for."""


@dataclass(frozen=True)
class Work:
    """The recipe of a quickstart as far as all systems have it. The defaults are the toy's."""

    base: str
    """Directory of the base model."""
    data: str
    """Directory of train.jsonl and test.jsonl: {"prompt", "label"}."""
    out: str
    """Directory of the system: it writes there and nowhere else."""
    steps: int
    save_every: int
    seed: int
    env_python: str
    """The interpreter that can start `env_servers.python_tir`."""
    calls: int = 2
    """Tool calls of a response; 0: no tools."""
    threads: int = 1
    """Threads of torch, in one process."""
    prompts: int = 16
    samples: int = 8
    max_new_tokens: int = 140
    micro_batch: int = 64
    lr: float = 5e-4
    final_lr_ratio: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: tuple[float, float] = (0.2, 0.28)
    max_norm: float = 1.0
    model: str = TOY
    """Which task it is: a key of BARS."""
    temperature: float = 1.0
    env_workers: int = 2
    """Programs that the sandbox runs at once."""

    @property
    def bar(self) -> float:
        return BARS[self.model]

    def write(self) -> Path:
        path = Path(self.out) / WORK
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))
        return path

    @classmethod
    def read(cls, path: str | Path) -> Work:
        facts = json.loads(Path(path).read_text())
        return cls(**{**facts, "betas": tuple(facts["betas"]), "clip": tuple(facts["clip"])})

    def rows(self, split: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (Path(self.data) / f"{split}.jsonl").read_text().splitlines()]

    def lr_factor(self, step: int) -> float:
        """The learning rate of the update after `step` others, over `lr`: linear, as the recipe's."""
        return 1 - (1 - self.final_lr_ratio) * min(step / max(self.steps - 1, 1), 1.0)

    def due(self, step: int) -> Path | None:
        """Where the weights go after update `step` (from 1), if they are kept."""
        return saved(Path(self.out), step) if step % self.save_every == 0 or step == self.steps else None


@dataclass(frozen=True)
class Step:
    """`seconds` since training began, once the update is done; saving weights is in it, loading and evaluation are not.
    Of this update alone: tokens `sampled` by the model, finished or not used, and `trained`; `samples` that the update
    was computed on, and how many of them are of a group with `variance`: the others are computed and move nothing."""

    step: int
    seconds: float
    sampled: int
    trained: int
    reward: float
    phases: dict[str, float]
    """Seconds by what was done, as far as the system tells."""
    samples: int = 0
    with_variance: int = 0


class Recorder:
    """Written by a system's process. The clock runs from construction: model loaded, nothing sampled."""

    def __init__(self, out: Path) -> None:
        self._path, self._began = out / STEPS, time.monotonic()
        self._path.write_text("")
        begin(out, time.time())
        self.phases: dict[str, float] = {}

    def spent(self, phase: str, since: float) -> None:
        self.phases[phase] = round(self.phases.get(phase, 0.0) + time.monotonic() - since, 4)

    def done(
        self, step: int, sampled: int, trained: int, reward: float, samples: int = 0, with_variance: int = 0
    ) -> None:
        seconds = round(time.monotonic() - self._began, 3)
        line = Step(step, seconds, sampled, trained, round(reward, 4), self.phases, samples, with_variance)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        self.phases = {}


def begin(out: Path, when: float) -> None:
    (out / BEGAN).write_text(repr(when))


def began(out: Path) -> float | None:
    path = out / BEGAN
    return float(path.read_text()) if path.exists() else None


def steps_of(out: Path) -> list[Step]:
    """What a system has written; [] where it never got to an update. A line that a killed process left half is none."""
    path = out / STEPS
    lines = path.read_text().splitlines() if path.exists() else []
    return [Step(**row) for row in map(_json, lines) if row is not None]


def _json(line: str) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def saved(out: Path, step: int) -> Path:
    return out / f"step_{step:06d}"


def kept(out: Path) -> dict[int, Path]:
    """Update -> its weights, in order."""
    found = sorted(p for p in out.glob("step_*") if (p / "config.json").exists())
    return {int(p.name.split("_")[1]): p for p in found}


def evaluated(out: Path) -> dict[int, float]:
    path = out / ACCURACY
    return {int(step): value for step, value in json.loads(path.read_text()).items()} if path.exists() else {}


def say(out: Path, sentence: str) -> None:
    (out / NOTE).write_text(sentence + "\n")


def said(out: Path) -> str:
    path = out / NOTE
    return path.read_text().strip() if path.exists() else ""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def with_variance(rewards: Sequence[float], group: int) -> int:
    """How many rewards are of a group, `group` in a row, whose rewards are not all the same."""
    groups = [rewards[first : first + group] for first in range(0, len(rewards), group)]
    return sum(len(of_it) for of_it in groups if len(set(of_it)) > 1)


def clear(out: Path) -> Path:
    """An empty directory for a system's run: figures of an earlier one must not be read as this one's."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out
