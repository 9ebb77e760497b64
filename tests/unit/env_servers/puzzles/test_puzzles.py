"""reasoning-gym in the real sandbox: solutions score 1, answers that are code get nothing and reach nothing, and every
process asks the same."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

from env_servers.puzzles.check_all import fault_of
from env_servers.puzzles.env import PuzzlesEnv
from env_servers.puzzles.gym import Task, installed, make_puzzle, names
from env_servers.puzzles.make_tasks import RowOptions, row
from env_servers.puzzles.room import IMPORTS, Room
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.warm.sandbox import WarmSandbox

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not installed(), reason="reasoning-gym is not installed: pip install -r requirements-puzzles.txt"
    ),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
EVALUATING = ["countdown", "puzzle24", "simple_integration", "intermediate_integration", "polynomial_multiplication"]
"""By sympy's parser; by eval: the next."""
READING = ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens"]


@pytest.fixture(scope="module")
def room():
    limits = Limits(code_timeout_s=300.0, memory_bytes=1 << 30)
    sandbox = WarmSandbox(limits, slots=2, seccomp=filter_program(), imports=IMPORTS)
    yield Room(sandbox, 20.0)
    asyncio.run(sandbox.close())


async def score(room: Room, name: str, answer: str, seed: int = 3):
    task = Task(name, seed)
    return await room.score(task, (await room.make(task)).entry, answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EVALUATING, *READING, "boxnet", "rush_hour", "composite"])
async def test_a_solution_scores_1_behind_the_guard(room, name):
    assert await fault_of(room, Task(name, 1)) is None


@pytest.mark.long  # a hundred data sets; one of each way of reading an answer is above
async def test_every_data_set_is_made_and_its_own_solution_scores_1(room):
    assert len(names()) >= 100
    faults = await asyncio.gather(*(fault_of(room, Task(name, 0)) for name in names()))
    assert {name: fault for name, fault in zip(names(), faults, strict=True) if fault is not None} == {}


FORGED = '{"score": 1.0, "error": null}'
CODE = [
    "__import__('os').system('true')",
    f"print({FORGED!r})",
    f"[__import__('os').write(fd, {FORGED.encode()!r}) for fd in range(3, 9)]",
    "open('/etc/passwd').read()",
    "sin('__import__(\"os\")._exit(0)')",
    "(lambda: 1.0)()",
    "().__class__.__base__.__subclasses__()",
    "exit(0)",
    "exec('raise SystemExit')",
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), enumerate([*EVALUATING, *READING]))
async def test_an_answer_that_is_code_is_scored_as_any_wrong_one(room, number, name):
    """Each data set gets a third of them; test_guard.py has every form of code. The few hundredths are what some data
    sets give to every text."""
    task = Task(name, 3)
    entry = (await room.make(task)).entry
    nonsense = await room.score(task, entry, "I do not know")
    for code in CODE[number % 3 :: 3]:
        assert await room.score(task, entry, code) == nonsense, code
    assert nonsense.score <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer", "error"),
    [
        ("countdown", "9**9**9**9**9", ("time_limit", "memory", None)),
        ("countdown", "1" + "+1" * 50_000, ("RecursionError", "MemoryError", "time_limit", "crash", None)),
        ("simple_integration", "(" * 100_000, ("RecursionError", "MemoryError", "crash", None)),
        ("spiral_matrix", "[" * 100_000, ("RecursionError", "MemoryError", "crash", None)),
        ("spiral_matrix", "[0] * 10**11", ("memory", "MemoryError", None)),
        ("rush_hour", "A+99999999999999", ("time_limit",)),
    ],
)
async def test_an_answer_that_hangs_or_takes_much_memory_affects_no_other(room, name, answer, error):
    verdict = await score(Room(room.sandbox, 1.0), name, answer)
    assert verdict.score <= 0.05 and verdict.error in error
    assert await fault_of(room, Task("countdown", 1)) is None


@pytest.mark.slow
async def test_an_integral_that_is_not_solved_is_no_solution(room):
    """Its derivative is the integrand, so the scorer alone would take it; only the data set's own solution may hold
    one, word for word."""
    puzzle = make_puzzle(Task("simple_integration", 3))
    cheat = f"Integral({puzzle.entry['metadata']['integrand']}, {puzzle.entry['metadata']['variable']})"
    assert puzzle.score(cheat) == 1.0 and (await score(room, "simple_integration", cheat)).score == 0.0
    own = Task("intermediate_integration", 5)
    assert "Integral" in (await room.make(own, solve=True)).solution and await fault_of(room, own) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "answer", "seeds"),
    [
        ("coin_flip", "0", range(1, 4)),
        ("coin_flip", "0.5", range(1, 3)),
        ("complex_arithmetic", "nan", range(2)),
        ("countdown", f"(pi - pi)*67*50*20*82 + {' + '.join(['pi/pi'] * 119)}", range(3, 4)),
        ("countdown", f"(E - E)*67*50*20*82 + {' + '.join(['cos(E - E)'] * 119)}", range(3, 4)),
        ("game_of_life_halting", "I do not know", range(2)),
        ("puzzle24", "2*(5 + 1 + 6)", range(2)),
        ("knights_knaves", "Amelia is a hero, and Amelia is a villain", range(1, 2)),
        ("knights_knaves", "Amelia is a hero, and Amelia is a villain, and Elizabeth is", range(1, 2)),
        ("puzzle24", "24 + 0/9", range(1)),
        ("puzzle24", f"(pi - pi)*4*8*6*2 + {' + '.join(['pi/pi'] * 24)}", range(3, 4)),
    ],
)
async def test_a_text_that_the_packages_scorer_accepts_for_every_puzzle_solves_none(room, name, answer, seeds):
    for seed in seeds:
        task = Task(name, seed)
        puzzle = await room.make(task, solve=True)
        assert (await room.score(task, puzzle.entry, answer)).score <= 0.01
        assert (await room.score(task, puzzle.entry, f" {puzzle.solution}\n".strip())).score == 1.0


@pytest.mark.long  # imports reasoning-gym once more; the test below asks for the seed of the sets' order
async def test_rows_are_reproduced_by_another_process(room):
    """Some data sets draw from sets of text, whose order a process draws anew."""
    drawn = ["isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"]
    code = (
        "import json; from env_servers.puzzles.gym import *; print(json.dumps([make_puzzle(Task(name, 2)).question for"
        f" name in {drawn}]))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, timeout=120
    ).stdout
    for name, question in zip(drawn, json.loads(output), strict=True):
        made_row = await row(room, name, 2, None, RowOptions(tries=2))
        assert made_row["prompt"].startswith(question.strip())
        assert await PuzzlesEnv(room).reset(made_row["meta"], 0) == ""


@pytest.mark.slow
async def test_sets_of_text_have_one_order_and_what_else_is_drawn_is_that_of_another_process(room):
    code = "print(hash('a text'))  # sympy"
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env, timeout=120)
    assert (await room.sandbox.run(code)).stdout == other.stdout
    for name in ("leg_counting", "spell_backward"):
        made_row = await row(room, name, 2, None, RowOptions(tries=2))
        assert made_row["prompt"].startswith(make_puzzle(Task(name, 2)).question.strip())
        assert await PuzzlesEnv(room).reset(made_row["meta"], 0) == ""


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"puzzle": "no_such_set"}, "'no_such_set'.*countdown"),
        ({"puzzle": "countdown", "level": -1}, r"level .* -1\. .* 0 "),
        ({"puzzle": "composite", "level": 0}, "'composite' .*`level`"),
        ({"puzzle": "countdown", "config": {"min_numbers": 9, "max_numbers": 2}}, "'countdown' .*'min_numbers': 9"),
        ({"puzzle": "countdown", "config": {"no_such": 1}}, "'countdown' .*'no_such'"),
        ({"puzzle": "countdown", "config": [1]}, r'task\["config"\] .*\[1\]'),
        ({"puzzle": "composite", "config": {"datasets": [{"name": "countdown"}]}}, "'composite' .*weight"),
        ({"puzzle": "composite", "config": {"datasets": "all"}}, "'composite' .*'datasets': 'all'"),
    ],
)
async def test_a_task_that_names_no_puzzle_is_refused_with_the_reason(room, task, says):
    with pytest.raises(ValueError, match=says):
        await PuzzlesEnv(room).reset(task, 0)


async def test_a_level_makes_a_puzzle_harder(room):
    easy, hard = [await room.make(Task("spell_backward", 1, level), solve=True) for level in (0, 3)]
    assert len(hard.solution) > len(easy.solution)
