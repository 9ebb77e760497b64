"""Toy problems: seed -> arithmetic questions that one line of Python answers and a tiny model cannot answer in its
head.

Seven kinds; only `add1` is learnable mentally. A problem is held out iff a hash of its kind and canonical operands says
so, hence a test problem never occurs in training, in neither order of symmetric operands. An operand pair of the wrong
split is drawn again *within its kind*: drawing the kind again too would fill the test set with `add1`, which has too
few problems to split and is in both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

from ..rows import Split, split_of, write_jsonl
from .guess import games
from .puzzles import puzzles as puzzle_rows


@dataclass(frozen=True, slots=True)
class Problem:
    """A toy problem.

    Attributes:
        kind: Its kind.
        question: The question.
        code: One line of Python (with an import before it, if it needs one) that prints the answer.
        answer: The answer.
        key: The canonical operands: equal problems of a kind have equal keys.
    """

    kind: str
    question: str
    code: str
    answer: int
    key: tuple[int, ...]

    @property
    def split(self) -> Split:
        """The split of this problem's operands; `add1` belongs to both."""
        return split_of(repr((self.kind, self.key)))


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a <= b else (b, a)


def _add1(rng: Random) -> Problem:
    a, b = rng.randint(1, 6), rng.randint(1, 6)
    question = rng.choice(("What is {}+{}?", "Compute {}+{}."))
    return Problem("add1", question.format(a, b), f"print({a}+{b})", a + b, _pair(a, b))


def _mul(rng: Random) -> Problem:
    a, b = rng.randint(100, 999), rng.randint(12, 99)
    return Problem("mul", f"What is {a}*{b}?", f"print({a}*{b})", a * b, (a, b))


def _mulmod(rng: Random) -> Problem:
    a, b, m = rng.randint(100, 999), rng.randint(100, 999), rng.randint(31, 99)
    return Problem("mulmod", f"What is {a}*{b} mod {m}?", f"print({a}*{b}%{m})", a * b % m, (*_pair(a, b), m))


def _powmod(rng: Random) -> Problem:
    a, b, m = rng.randint(2, 19), rng.randint(11, 99), rng.randint(31, 99)
    return Problem("powmod", f"Find {a}^{b} mod {m}.", f"print(pow({a},{b},{m}))", pow(a, b, m), (a, b, m))


def _gcd(rng: Random) -> Problem:
    # A common factor by construction: the gcd of two random numbers is 1 most of the time, which is easy to guess.
    g, x, y = rng.randint(3, 40), rng.randint(3, 24), rng.randint(3, 24)
    a, b = g * x, g * y
    return Problem(
        "gcd", f"Find the gcd of {a} and {b}.", f"import math\nprint(math.gcd({a},{b}))", math.gcd(a, b), _pair(a, b)
    )


def _digsum(rng: Random) -> Problem:
    a = rng.randint(1000, 99999)
    return Problem(
        "digsum",
        f"What is the sum of the digits of {a}?",
        f"print(sum(map(int,str({a}))))",
        sum(map(int, str(a))),
        (a,),
    )


def _series(rng: Random) -> Problem:
    a = rng.randint(2, 60)
    b = a + rng.randint(8, 200)
    return Problem(
        "series",
        f"Find the sum of the integers from {a} to {b}.",
        f"print(sum(range({a},{b}+1)))",
        (a + b) * (b - a + 1) // 2,
        (a, b),
    )


SHARES: dict[Callable[[Random], Problem], float] = {
    _add1: 0.15,
    _mul: 0.15,
    _mulmod: 0.15,
    _powmod: 0.15,
    _gcd: 0.12,
    _digsum: 0.14,
    _series: 0.14,
}


def draw(rng: Random, split: Split) -> Problem:
    """Return a problem of `split`, of a kind that is drawn by SHARES."""
    (kind,) = rng.choices(list(SHARES), weights=list(SHARES.values()))
    while True:
        problem = kind(rng)
        if problem.kind == "add1" or problem.split == split:
            return problem


def make_problems(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """Return `n` data rows {"prompt", "label", "meta": {"kind"}}, the same ones for the same arguments."""
    rng = Random(f"{split}/{seed}")
    problems = (draw(rng, split) for _ in range(n))
    return [{"prompt": p.question, "label": str(p.answer), "meta": {"kind": p.kind}} for p in problems]


def write_splits(
    directory: Path,
    seed: int,
    rows_of: Callable[[int, Split, int], list[dict[str, Any]]],
    n_train: int = 4096,
    n_test: int = 256,
) -> None:
    """Write `train.jsonl` and `test.jsonl` to `directory`.

    Args:
        directory: Made if it does not exist.
        seed: Seed of the training rows. The test rows are the same for every seed, so that runs compare.
        rows_of: (number, split, seed) -> rows.
        n_train: Number of training rows.
        n_test: Number of test rows.
    """
    for number, split, split_seed in zip((n_train, n_test), get_args(Split), (seed, 0), strict=True):
        write_jsonl(rows_of(number, split, split_seed), directory / f"{split}.jsonl")


def write_data(
    directory: Path,
    seed: int,
    n_train: int = 4096,
    n_test: int = 256,
    *,
    env: str | None = None,
    game: str | None = None,
    puzzles: str | None = None,
) -> tuple[Path, Path]:
    """Write `train.jsonl` and `test.jsonl` to `directory`, and return their paths.

    Args:
        directory: Made if it does not exist.
        seed: Seed of the training rows. The test rows are the same for every seed, so that runs compare.
        n_train: Number of training rows.
        n_test: Number of test rows.
        env: Name of the environment that the problems carry; None: they carry none.
        game: Name of the environment of guess.py, whose rows are then every fourth; None: there are none.
        puzzles: The same for puzzles.py.
    """

    def rows_of(number: int, split: Split, split_seed: int) -> list[dict[str, Any]]:
        others = games(number // 4, game) if game else []
        if puzzles:
            others += puzzle_rows(number // 4, puzzles, split)
        rows = [{**row, "env": env} if env else row for row in make_problems(number - len(others), split, split_seed)]
        for i, row in enumerate(others):
            rows.insert(4 * i, row)
        return rows

    write_splits(directory, seed, rows_of, n_train, n_test)
    return directory / "train.jsonl", directory / "test.jsonl"
