"""reasoning-gym: a puzzle's name, seed and level -> question, and answer -> score in [0, 1]. The same three give the same puzzle.

The package is no dependency of the trainer (it brings a dozen others): `pip install 'openrlhf-tir[puzzles]'`, in a venv of the server's own
if that is preferred.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MISSING = "There is no package reasoning_gym: puzzles need it. Install it with pip install 'openrlhf-tir[puzzles]', or ask for a game."


def _package() -> Any:
    """Raises ValueError where it is not installed."""
    try:
        import reasoning_gym.factory
    except ImportError as e:
        raise ValueError(f"{MISSING} ({e})") from None
    return reasoning_gym.factory


def names() -> list[str]:
    """All data sets. Raises ValueError without the package."""
    return sorted(_package().DATASETS)


SOLUTIONS = ("example_answer", "example_correct_answer", "possible_answer")
"""Where data sets with many right answers put one of them, in an entry's metadata."""
MIXED = [{"name": "leg_counting", "weight": 1.0}, {"name": "basic_arithmetic", "weight": 1.0}]
"""What `composite` mixes if its config does not say."""


@dataclass(frozen=True)
class Puzzle:
    """One puzzle. `entry` is reasoning-gym's record, `dataset` what scores an answer to it, `answer` a solution, "" where it tells none."""

    question: str
    answer: str
    entry: dict[str, Any]
    dataset: Any

    def score(self, answer: str) -> float:
        """In [0, 1]; an answer that reasoning-gym's own scorer cannot read is worth nothing."""
        try:
            return min(1.0, max(0.0, float(self.dataset.score_answer(answer, self.entry))))
        except Exception:  # the scorers of a hundred authors: whatever the model's text makes them raise is the text's fault
            return 0.0


def make_puzzle(name: str, seed: int, level: int | None = None, config: dict[str, Any] | None = None) -> Puzzle:
    """`level`: of the data set's curriculum, all of its attributes at once; None: the data set's defaults. `config`: its own settings.

    Raises ValueError for a name, a level or a setting that is not there.
    """
    factory = _package()
    if name not in factory.DATASETS:
        raise ValueError(f"puzzle {name!r} is not there. There are {', '.join(sorted(factory.DATASETS))}.")
    settings: dict[str, Any] = {}
    if level is not None:
        if name not in factory.CURRICULA:
            raise ValueError(f"puzzle {name!r} has no curriculum: leave `level` out.")
        if level < 0:
            raise ValueError(f"level is {level}. Send 0 or more.")
        curriculum = factory.create_curriculum(name)
        curriculum.set_global_level(level)
        settings = vars(curriculum.generate_configuration()).copy()
    settings |= {**(config or {}), "seed": seed, "size": 1}
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        settings["datasets"] = [DatasetSpec(**{"config": {}, **d}) for d in settings.get("datasets", MIXED)]
    try:
        dataset = factory.create_dataset(name, **settings)
        entry = dataset[0]
    except (TypeError, AssertionError, ValueError) as e:
        raise ValueError(f"puzzle {name!r} cannot be made with {config or {}} at level {level}: {e}") from e
    return Puzzle(str(entry["question"]), _solution(entry), entry, dataset)


def _solution(entry: dict[str, Any]) -> str:
    if entry["answer"] is not None:
        return str(entry["answer"])
    given = next((entry["metadata"][k] for k in SOLUTIONS if entry["metadata"].get(k) is not None), "")
    return given if isinstance(given, str) else json.dumps(given)
