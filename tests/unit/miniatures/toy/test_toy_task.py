"""The toy problems: answers are what the code prints, and no test problem is ever trained on."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from random import Random

import pytest

from miniatures.toy import task


def canonical(problem: task.Problem) -> tuple:
    return problem.kind, problem.key


def draws(n: int, split: str) -> list[task.Problem]:
    rng = Random(7)
    return [task.draw(rng, split) for _ in range(n)]


def test_the_code_of_every_problem_prints_its_answer():
    for problem in draws(300, "train"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(problem.code, {})
        assert out.getvalue() == f"{problem.answer}\n", problem


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("mul", "What is {}*{}?", lambda a, b: a * b),
        ("powmod", "Find {}^{} mod {}.", lambda a, b, m: a**b % m),
        ("digsum", "What is the sum of the digits of {}?", lambda a: sum(map(int, str(a)))),
    ],
)
def test_the_question_states_the_operands_of_the_answer(kind, question, answer):
    problems = [p for p in draws(300, "train") if p.kind == kind]
    assert problems
    for p in problems:
        assert p.question == question.format(*p.key)
        assert p.answer == answer(*p.key)


def test_no_test_problem_occurs_in_training_in_either_order_of_its_operands():
    train, test = draws(3000, "train"), draws(1000, "test")
    shared = {canonical(p) for p in train} & {canonical(p) for p in test}
    assert {kind for kind, _ in shared} == {"add1"}


def test_symmetric_operands_have_one_key():
    gcds = {canonical(p) for p in draws(2000, "train") if p.kind in ("gcd", "add1")}
    assert all(key[0] <= key[1] for _, key in gcds)


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_kind_keeps_its_share_in_both_splits(split):
    counts = Counter(row["meta"]["kind"] for row in task.make_problems(4000, split, seed=3))
    expected = {"add1": 0.15, "mul": 0.15, "mulmod": 0.15, "powmod": 0.15, "gcd": 0.12, "digsum": 0.14, "series": 0.14}
    assert {k: n / 4000 for k, n in counts.items()} == pytest.approx(expected, abs=0.03)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    assert task.make_problems(50, "train", seed=5) == task.make_problems(50, "train", seed=5)
    assert task.make_problems(50, "train", seed=5) != task.make_problems(50, "train", seed=6)


def test_rows_of_a_known_seed_never_change():
    """Pinned: a changed hash or generator would move problems between the splits and invalidate recorded results."""
    assert task.make_problems(3, "test", seed=0) == [
        {"prompt": "What is 872*585 mod 76?", "label": "8", "meta": {"kind": "mulmod"}},
        {"prompt": "What is 208*93?", "label": "19344", "meta": {"kind": "mul"}},
        {"prompt": "Find 8^23 mod 31.", "label": "16", "meta": {"kind": "powmod"}},
    ]


def test_written_files_hold_one_row_per_line_with_prompt_and_label(tmp_path):
    train, test = task.write_data(tmp_path / "data", seed=1, n_train=20, n_test=8)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert len(rows) == 20 and len(test.read_text().splitlines()) == 8
    assert all(isinstance(row["prompt"], str) and isinstance(row["label"], str) for row in rows)
