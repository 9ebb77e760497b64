"""reasoning-gym: make a puzzle from its name, seed and level, and score an answer in [0, 1].

The same name, seed and level give the same puzzle in every process whose PYTHONHASHSEED is 0, because some data sets
draw from sets of text (`make_tasks` and the sandbox set it). The package is not a dependency of the trainer, since it
brings a dozen others: install the extra `puzzles`, in a venv of the server's own if you prefer.

Scorers are third-party code that evaluates what a model wrote (`eval`, sympy's parser). A server calls `Puzzle.score`
only in a sandbox (`inside`), behind `guard`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .score_bounds import MIN_SCORE, SCORE_BOUNDS
from .solvers import SOLVERS

MISSING = (
    "reasoning-gym is not installed, which has every puzzle except the games. Run: pip install reasoning_gym==0.1.25"
)


def installed() -> bool:
    """Return True if reasoning-gym is installed."""
    return importlib.util.find_spec("reasoning_gym") is not None


def _package() -> Any:
    """Return reasoning-gym's factory. Raises ValueError if the package or one of its dependencies is missing."""
    try:
        import reasoning_gym.factory
    except ImportError as e:
        raise ValueError(f"{MISSING} ({e})") from None
    return reasoning_gym.factory


def names() -> list[str]:
    """Return the names of all data sets. Raises ValueError without the package."""
    return sorted(_package().DATASETS)


SOLUTIONS = ("example_answer", "example_correct_answer", "possible_answer")
"""Keys of an entry's metadata under which data sets with many right answers keep one of them."""
MIXED = [{"name": "leg_counting", "weight": 1.0}, {"name": "basic_arithmetic", "weight": 1.0}]
"""Data sets that `composite` mixes if its config does not say."""


@dataclass(frozen=True)
class Task:
    """Which puzzle.

    Attributes:
        name: Name of the data set.
        seed: Seed of the puzzle.
        level: Level of the data set's curriculum, for all of its attributes at once; None: its defaults.
        config: Settings of the data set.
    """

    name: str
    seed: int
    level: int | None = None
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Puzzle:
    """A puzzle: reasoning-gym's record of it (`entry`, plain data) and the data set that scores answers to it."""

    entry: dict[str, Any]
    dataset: Any

    @property
    def question(self) -> str:
        """The text of the puzzle."""
        return str(self.entry["question"])

    def solution(self) -> str:
        """Return a right answer: the package's own, else one of `solvers`; "" if neither knows one."""
        if self.entry["answer"] is not None:
            return str(self.entry["answer"])
        metadata = self.entry["metadata"]
        answer = next((metadata[key] for key in SOLUTIONS if metadata.get(key) is not None), None)
        if answer is None:
            solve = SOLVERS.get(metadata.get("source_dataset", ""))
            return solve(metadata) if solve else ""
        return answer if isinstance(answer, str) else json.dumps(answer)

    def score(self, answer: str) -> float:
        """Return the score of an answer in [0, 1]. Raises whatever the data set's scorer raises."""
        score = min(1.0, max(0.0, float(self.dataset.score_answer(answer, self.entry))))
        bound = SCORE_BOUNDS.get(self.entry["metadata"].get("source_dataset", ""))
        if bound is None or score <= MIN_SCORE:
            return score
        return min(score, bound(answer, self.entry))


def dataset_of(task: Task) -> Any:
    """Return the data set of a task, with a single entry. Raises ValueError for an unknown name, level or setting."""
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
    with _blame_task(task):
        if task.name == "composite":
            from reasoning_gym.composite import DatasetSpec

            settings["datasets"] = [DatasetSpec(**{"config": {}, **d}) for d in settings.get("datasets", MIXED)]
        return factory.create_dataset(task.name, **settings)


def make_puzzle(task: Task) -> Puzzle:
    """Return the puzzle of a task. Raises ValueError as `dataset_of`, and for settings from which no puzzle can be
    made."""
    dataset = dataset_of(task)
    with _blame_task(task):
        return Puzzle(dataset[0], dataset)


@contextmanager
def _blame_task(task: Task) -> Iterator[None]:
    """Turn the exceptions of a data set into ValueError, since the settings of the task cause them.

    A missing module or file is a fault of the installation and raised unchanged.
    """
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as e:
        raise ValueError(
            f"puzzle {task.name!r} cannot be made with {task.config} at level {task.level}: {type(e).__name__}: {e}"
        ) from e
