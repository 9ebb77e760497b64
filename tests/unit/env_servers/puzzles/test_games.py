"""The games: seeded, solvable, scored by what was played; and rows of them without any package."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from env_servers.puzzles.env import MAX_ILLEGAL, PuzzlesEnv, digest_of
from env_servers.puzzles.games import GAMES
from env_servers.puzzles.make_tasks import HOW_TO_MOVE, row


async def start(puzzle: str, seed: int = 3, **task) -> tuple[PuzzlesEnv, str]:
    env = PuzzlesEnv(None)
    return env, await env.reset({"puzzle": puzzle, **task}, seed)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", GAMES)
async def test_a_game_played_by_its_solution_scores_1_and_is_over(name, level):
    for seed in range(10):
        env, _ = await start(name, seed, level=level)
        steps = [await env.step(move, 5.0) for move in GAMES[name](seed, level).solution()]
        assert [s.done for s in steps] == [False] * (len(steps) - 1) + [True]
        assert [s.reward for s in steps[:-1]] == [None] * (len(steps) - 1) and steps[-1].reward == 1.0
        assert steps[-1].signals == {"score": 1.0, "tries": len(steps), "solved": True, "error_type": None}


async def test_a_detour_through_the_maze_lowers_the_score():
    way = GAMES["labyrinth"](3, 0).solution()
    there_and_back = [way[0], {"north": "south", "south": "north", "east": "west", "west": "east"}[way[0]]]
    env, _ = await start("labyrinth", level=0)
    end = [await env.step(move, 5.0) for move in [*there_and_back, *way]][-1]
    assert end.reward == len(way) / (len(way) + 2) and not end.signals["solved"]


async def test_ten_wrong_guesses_lose_and_the_observation_only_counts_right_ones():
    (code,) = GAMES["mastermind"](0, 0).solution()
    wrong_guess = next(guess for guess in ("11", "22", "33", "44") if guess != code)
    env, opening = await start("mastermind", 0)
    assert opening == "A code of 2 digits from 1 to 4. You have 10 guesses."
    steps = [await env.step(wrong_guess, 5.0) for _ in range(10)]
    expected = f"{sum(a == b for a, b in zip(wrong_guess, code, strict=True))} right"
    assert all(s.observation.startswith(expected) for s in steps[:9])
    assert (steps[9].observation, steps[9].reward, steps[9].done) == ("That was the last guess.", 0.0, True)


async def test_an_invalid_move_is_reported_and_invalid_moves_alone_end_the_game():
    env, _ = await start("labyrinth")
    steps = [await env.step("up" if i % 2 else "x" * 99, 5.0) for i in range(MAX_ILLEGAL)]
    assert (
        steps[0].outcome == "model_error"
        and steps[0].signals["error_type"] == "illegal_move"
        and "is no move: say one of north" in steps[0].observation
    )
    assert (steps[-1].done, steps[-1].reward) == (True, 0.0) and not steps[-2].done


async def test_a_step_after_the_end_changes_nothing_and_has_no_reward():
    env, _ = await start("mastermind", 0)
    await env.step(GAMES["mastermind"](0, 0).solution()[0], 5.0)
    after = await env.step("11", 5.0)
    assert (after.done, after.reward, after.outcome, after.signals["error_type"]) == (True, None, "model_error", "over")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({}, "puzzle"),
        ({"puzzle": "labyrinth", "level": 21}, r"level .* 21\. .* 0 .* 20\."),
        ({"puzzle": "labyrinth", "level": -1}, r"level .* -1\. .* 0 .* 20\."),
        ({"puzzle": "labyrinth", "level": "2"}, r"task\['level'\] .*'2'\."),
        ({"puzzle": "labyrinth", "seed": True}, r"task\['seed'\] .*True\."),
        ({"puzzle": "labyrinth", "tries": 1.5}, r"task\['tries'\] .* 1\.5\."),
        ({"puzzle": "chess"}, r" reasoning_gym=="),
    ],
)
async def test_a_task_that_names_no_game_is_refused_with_the_remedy(task, says):
    with pytest.raises((ValueError, KeyError), match=says):
        await PuzzlesEnv(None).reset(task, 0)


async def test_the_server_refuses_a_row_whose_question_is_not_its_own():
    row_of_game = await row(None, "labyrinth", 3, 1)
    question = row_of_game["prompt"].removesuffix(f"\n{HOW_TO_MOVE}")
    assert await PuzzlesEnv(None).reset({**row_of_game["meta"], "asked": False}, 0) == question
    assert await PuzzlesEnv(None).reset(row_of_game["meta"], 0) == ""
    with pytest.raises(ValueError, match=r" labyrinth .* 3\."):
        await PuzzlesEnv(None).reset({**row_of_game["meta"], "level": 2}, 0)
    assert row_of_game["meta"]["digest"] == digest_of(question) and row_of_game["label"] == " ".join(
        GAMES["labyrinth"](3, 1).solution()
    )


@pytest.mark.slow
def test_rows_of_games_need_no_package_and_no_sandbox(tmp_path):
    out = tmp_path / "games.jsonl"
    flags = ["--puzzles", "labyrinth", "mastermind", "--levels", "0", "2", "--count", "12", "--out", str(out)]
    blocked = "import sys; sys.modules['reasoning_gym'] = None; from env_servers.puzzles.make_tasks import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked, *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["meta"]["puzzle"], r["meta"]["level"]) for r in rows[:6]] == [
        (name, level) for level in range(3) for name in GAMES
    ]
