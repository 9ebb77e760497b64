"""Numbers with Python: questions about numbers that one short line of Python answers.

A model of 135 million parameters cannot compute most of the answers in its head, and it can write the line. Two kinds
of problem are never trained, so that an evaluation tells whether the model learned to use the tool or to repeat lines
that it was rewarded for. Standard library only: the rows are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from .rows import Split, split_of, write_jsonl

HELD_OUT_OF = 8
"""One question in so many is of the test split, whatever the seed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its answer.

    Attributes:
        asked: The number that is asked for, as the end of a sentence: "the value of 3 * 4".
        answer: The right number.
        code: The Python expression that computes it.
    """

    asked: str
    answer: int
    code: str

    @property
    def split(self) -> Split:
        """The split that the question belongs to: a hash of its text decides."""
        return split_of(self.asked, HELD_OUT_OF)


def _number(rng: Random, shortest: int, longest: int) -> int:
    """Return a number of `shortest` to `longest` digits, each length as often."""
    digits = rng.randint(shortest, longest)
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def _expression(rng: Random) -> Problem:
    a, b, c = rng.randint(12, 99), rng.randint(12, 99), rng.randint(2, 99)
    forms = (
        Problem(f"{a} * {b} + {c}", a * b + c, f"{a} * {b} + {c}"),
        Problem(f"({a} + {b}) * {c}", (a + b) * c, f"({a} + {b}) * {c}"),
        Problem(f"{a} * {b} - {c} * {c}", a * b - c * c, f"{a} * {b} - {c} * {c}"),
    )
    return rng.choice(forms)


def _product(rng: Random) -> Problem:
    a, b = _number(rng, 3, 4), _number(rng, 3, 4)
    return Problem(f"{a} * {b}", a * b, f"{a} * {b}")


def _total(rng: Random) -> Problem:
    numbers = [_number(rng, 3, 6) for _ in range(rng.randint(3, 4))]
    added = " + ".join(map(str, numbers))
    return Problem(added, sum(numbers), added)


def _difference(rng: Random) -> Problem:
    a, b = _number(rng, 3, 6), _number(rng, 3, 6)
    return Problem(f"{a} - {b}", a - b, f"{a} - {b}")


def _power(rng: Random) -> Problem:
    a, b = rng.randint(11, 99), rng.randint(3, 5)
    return Problem(f"{a} to the power of {b}", a**b, f"{a} ** {b}")


def _steps(rng: Random) -> Problem:
    a, b, c = _number(rng, 3, 3), rng.randint(12, 99), _number(rng, 3, 4)
    return Problem(f"{a} multiplied by {b}, plus {c}", a * b + c, f"{a} * {b} + {c}")


def _minutes(rng: Random) -> Problem:
    hours, minutes = rng.randint(12, 199), rng.randint(2, 59)
    asked = f"the number of minutes in {hours} hours and {minutes} minutes"
    return Problem(asked, hours * 60 + minutes, f"{hours} * 60 + {minutes}")


def _year(rng: Random) -> Problem:
    year, years = rng.randint(1200, 2024), rng.randint(113, 987)
    return Problem(f"the year that is {years} years after {year}", year + years, f"{year} + {years}")


def _seats(rng: Random) -> Problem:
    rows, seats = rng.randint(12, 399), rng.randint(12, 99)
    return Problem(f"the number of seats in {rows} rows of {seats} seats", rows * seats, f"{rows} * {seats}")


def _coins(rng: Random) -> Problem:
    coins, given = _number(rng, 4, 6), _number(rng, 3, 3)
    name = rng.choice(("Mia", "Tom", "Ana", "Ben"))
    asked = f"the number of coins left when {name} has {coins} coins and gives away {given}"
    return Problem(asked, coins - given, f"{coins} - {given}")


def _quotient(rng: Random) -> Problem:
    divisor, quotient = rng.randint(12, 99), rng.randint(112, 999)
    return Problem(f"{divisor * quotient} divided by {divisor}", quotient, f"{divisor * quotient} // {divisor}")


def _eggs(rng: Random) -> Problem:
    cartons, eggs = rng.randint(12, 399), rng.randint(6, 48)
    return Problem(f"the number of eggs in {cartons} cartons of {eggs} eggs", cartons * eggs, f"{cartons} * {eggs}")


TRAINED: dict[str, Callable[[Random], Problem]] = {
    "expression": _expression,
    "product": _product,
    "total": _total,
    "difference": _difference,
    "power": _power,
    "steps": _steps,
    "minutes": _minutes,
    "year": _year,
    "seats": _seats,
    "coins": _coins,
}
"""Kinds of problem that are trained, each as often."""
UNSEEN: dict[str, Callable[[Random], Problem]] = {"quotient": _quotient, "eggs": _eggs}
"""Kinds that are in the test split alone: an operator that no trained problem needs, and a story that none tells."""
PER_KIND = 12
"""Test problems of each kind."""
ROWS = 4096
"""Training problems of a run, however long it is, so that a run can be made longer when it is resumed."""

_VALUE = "Write one line of Python in a ```python block that prints the value of {asked}. Then say the value."
PROMPTS: dict[str, tuple[str, str]] = {
    "use_python": ("Use Python.", _VALUE),
    "assistant": ("You are a helpful AI assistant named SmolLM, trained by Hugging Face", _VALUE),
    "form": ("Use Python.", "Write a ```python block with one line, print(...), that prints {asked}."),
    "example": (
        "Answer with one line of Python in a block, like this:\n```python\nprint(12 + 3)\n```",
        "Print {asked}.",
    ),
    "question": ("Write Python code to answer. It is run for you.", "What is {asked}?"),
}
"""Ways to ask for code, by name: what the system says and what the user says, with {asked} for Problem.asked."""
PROMPT = "use_python"
"""The one that is trained."""
DEMONSTRATIONS = 768
"""Conversations to fine-tune on, for whoever asks for a cold start."""
WITHOUT_TOOL = ("Answer with one number.", "What is {asked}?")
"""How the same is asked of a model that has no tool."""


def draw(rng: Random, kind: str, split: Split) -> Problem:
    """Return a problem of `kind` whose question is of `split`; one of the other split is drawn again."""
    make = (TRAINED | UNSEEN)[kind]
    while True:
        problem = make(rng)
        if problem.split == split:
            return problem


def row(problem: Problem, kind: str, prompt: tuple[str, str]) -> dict[str, Any]:
    """Return the data row that asks for `problem` by the messages of `prompt`."""
    system, user = prompt
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user.format(asked=problem.asked)},
    ]
    return {"prompt": messages, "label": str(problem.answer), "meta": {"kind": kind}}


def training_rows(number: int, seed: int, prompt: tuple[str, str]) -> list[dict[str, Any]]:
    """Return `number` rows of the trained kinds in random order, the same for the same arguments. No question twice."""
    rng = Random(f"numbers/train/{seed}")
    seen: set[str] = set()
    rows: list[dict[str, Any]] = []
    while len(rows) < number:
        kind = rng.choice(list(TRAINED))
        problem = draw(rng, kind, "train")
        if problem.asked not in seen:
            seen.add(problem.asked)
            rows.append(row(problem, kind, prompt))
    return rows


def held_out_rows(prompt: tuple[str, str], per_kind: int = PER_KIND) -> list[dict[str, Any]]:
    """Return `per_kind` rows of every kind, those that are never trained included. The same for every seed."""
    rng = Random("numbers/test")
    rows: list[dict[str, Any]] = []
    for kind in TRAINED | UNSEEN:
        asked: dict[str, Problem] = {}
        while len(asked) < per_kind:
            problem = draw(rng, kind, "test")
            asked[problem.asked] = problem
        rows += [row(problem, kind, prompt) for problem in asked.values()]
    return rows


def write_rows(directory: Path, seed: int, *, train: int = ROWS, tool: bool = True) -> tuple[Path, Path]:
    """Write `train.jsonl` of `train` rows and `test.jsonl` to `directory` and return their paths.

    Args:
        directory: Made if it does not exist.
        seed: Seed of the training rows.
        train: Number of training rows.
        tool: Ask for code; without, for a number.
    """
    prompt = PROMPTS[PROMPT] if tool else WITHOUT_TOOL
    paths = directory / "train.jsonl", directory / "test.jsonl"
    for path, rows in zip(paths, (training_rows(train, seed, prompt), held_out_rows(prompt)), strict=True):
        write_jsonl(rows, path)
    return paths


def demonstration(problem: Problem) -> dict[str, Any]:
    """Return a conversation in which one line of Python answers; what it prints is a message of the user."""
    said = (
        ("assistant", f"```python\nprint({problem.code})\n```"),
        ("user", str(problem.answer)),
        ("assistant", f"The value is {problem.answer}."),
    )
    asked = row(problem, "", PROMPTS[PROMPT])["prompt"]
    return {"messages": [*asked, *({"role": role, "content": text} for role, text in said)]}


def demonstrations(number: int = DEMONSTRATIONS) -> list[dict[str, Any]]:
    """Return `number` conversations about problems of the training split, each trained kind as often."""
    rng = Random("numbers/demonstrations")
    kinds = list(TRAINED)
    return [demonstration(draw(rng, kinds[i % len(kinds)], "train")) for i in range(number)]


def write_demonstrations(directory: Path) -> Path:
    """Write `demonstrations.jsonl` to `directory`, which exists, and return its path."""
    path = directory / "demonstrations.jsonl"
    write_jsonl(demonstrations(), path)
    return path
