"""reasoning-gym: a puzzle's name, seed and level -> question, and answer -> score in [0, 1]. The same three give the
same puzzle.

The same puzzle in every process whose PYTHONHASHSEED is 0: some data sets draw from sets of text (`make_tasks`, the
sandbox have it so). The package is no dependency of the trainer (it brings a dozen others): extra `puzzles`, in a venv
of the server's own if that is preferred.

Scorers are third-party code that evaluates what a model wrote (`eval`, sympy's parser). A server calls `Puzzle.score`
in a sandbox only (`inside`), behind `guard`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .mends import MENDS, NOTHING
from .solvers import SOLVERS

MISSING = (
    "reasoning-gym is not installed, and every puzzle but the games is its. Run: pip install reasoning_gym==0.1.25"
)


def installed() -> bool:
    return importlib.util.find_spec("reasoning_gym") is not None


def _package() -> Any:
    """Raises ValueError where it is not installed, or lacks what it needs."""
    try:
        import reasoning_gym.factory
    except ImportError as e:
        raise ValueError(f"{MISSING} ({e})") from None
    return reasoning_gym.factory


def names() -> list[str]:
    """All data sets. Raises ValueError without the package."""
    return sorted(_package().DATASETS)


SOLUTIONS = ("example_answer", "example_correct_answer", "possible_answer")
"""The keys of an entry's metadata under which data sets with many right answers put one of them."""
MIXED = [{"name": "leg_counting", "weight": 1.0}, {"name": "basic_arithmetic", "weight": 1.0}]
"""What `composite` mixes if its config does not say."""


@dataclass(frozen=True)
class Task:
    """Which puzzle. `level`: of the data set's curriculum, all of its attributes at once; None: its defaults. `config`:
    its own settings."""

    name: str
    seed: int
    level: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Puzzle:
    """`entry` is reasoning-gym's record of it, plain data; `dataset` is what scores an answer to it."""

    entry: dict[str, Any]
    dataset: Any

    @property
    def question(self) -> str:
        return str(self.entry["question"])

    def solution(self) -> str:
        """A right answer, the package's own or, where it tells none, one of `solvers`; "" where there is neither."""
        if self.entry["answer"] is not None:
            return str(self.entry["answer"])
        metadata = self.entry["metadata"]
        given = next((metadata[key] for key in SOLUTIONS if metadata.get(key) is not None), None)
        if given is None and (solve := SOLVERS.get(metadata.get("source_dataset", ""))):
            return solve(metadata)
        return given if isinstance(given, str) else json.dumps(given) if given is not None else ""

    def score(self, answer: str) -> float:
        """In [0, 1]. Raises whatever the data set's scorer raises."""
        score = min(1.0, max(0.0, float(self.dataset.score_answer(answer, self.entry))))
        mend = MENDS.get(self.entry["metadata"].get("source_dataset", ""))
        return min(score, mend(answer, self.entry)) if mend and score > NOTHING else score


def dataset_of(task: Task) -> Any:
    """Raises ValueError for a name, a level or a setting that is not there."""
    factory = _package()
    if task.name not in factory.DATASETS:
        raise ValueError(f"puzzle {task.name!r} is not there. There are {', '.join(sorted(factory.DATASETS))}.")
    settings: dict[str, Any] = {}
    if task.level is not None:
        if task.name not in factory.CURRICULA:
            raise ValueError(f"puzzle {task.name!r} has no curriculum: leave `level` out.")
        if task.level < 0:
            raise ValueError(f"level is {task.level}. Send 0 or more.")
        curriculum = factory.create_curriculum(task.name)
        curriculum.set_global_level(task.level)
        settings = vars(curriculum.generate_configuration()).copy()
    settings |= {**task.config, "seed": task.seed, "size": 1}
    with _the_tasks_fault(task):
        if task.name == "composite":
            from reasoning_gym.composite import DatasetSpec

            settings["datasets"] = [DatasetSpec(**{"config": {}, **d}) for d in settings.get("datasets", MIXED)]
        return factory.create_dataset(task.name, **settings)


def make_puzzle(task: Task) -> Puzzle:
    """Raises ValueError as `dataset_of`, and for settings of which no puzzle can be made."""
    dataset = dataset_of(task)
    with _the_tasks_fault(task):
        return Puzzle(dataset[0], dataset)


@contextmanager
def _the_tasks_fault(task: Task) -> Iterator[None]:
    """What a data set makes of settings that it was not written for, as ValueError. A module or a file that is missing
    is nobody's but ours."""
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as e:
        raise ValueError(
            f"puzzle {task.name!r} cannot be made with {task.config} at level {task.level}: {type(e).__name__}: {e}"
        ) from e
