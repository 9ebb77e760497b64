"""Environments of the `gem-llm` package, as it comes, behind our protocol."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ..env_process import Http, env_server

pytest.importorskip("gem.envs.registration", reason="the package gem-llm is not installed: pip install '.[gem]'")
pytestmark = pytest.mark.slow
MODULE = "env_servers.adapters.gem"


def guess(n: int) -> str:
    return f"It may be \\boxed{{{n}}}."


async def play(http: Http, session: str) -> tuple[int, dict]:
    """(number of guesses, the last reply) of guessing 1, 2, 3, ..."""
    for i in range(50):
        _, reply, _ = await http.step(session, i, guess(i + 1))
        assert reply["outcome"] == "ok", reply
        if reply["done"] or reply["truncated"]:
            return i + 1, reply
    raise AssertionError("the game does not end")


async def test_a_game_is_played_and_its_reward_is_the_steps(tmp_path):
    with env_server(MODULE, tmp_path, "--gem", "game:GuessTheNumber-v0-easy") as (url, _):
        async with Http(url) as http:
            task = {"options": {"min_number": 1, "max_number": 5, "max_turns": 9}}
            status, body, _ = await http.send("POST", "/reset", json={"task": task, "seed": 3})
            assert (
                status == 200
                and "between 1 and 5" in body["observation"]
                and body["observation"].endswith("Enter your next guess.")
            ), body
            session = body["session_id"]
            _, wrong, _ = await http.step(session, 0, "no number")
            assert wrong["reward"] is not None
            guesses, end = await play(http, await http.open(task, seed=3))
            again = await play(http, await http.open(task, seed=3))
            assert end["done"] and end["reward"] == 1.0 and 1 <= guesses <= 5
            assert again[0] == guesses and again[1]["observation"] == end["observation"]


async def test_the_seed_determines_an_episode_whatever_others_do_meanwhile(tmp_path):
    with env_server(MODULE, tmp_path) as (url, _):
        async with Http(url) as http:
            tasks = [{"gem": "game:GuessTheNumber-v0-random"}, {"gem": "game:Game2048-v0-easy"}]
            alone = [await http.send("POST", "/reset", json={"task": t, "seed": 11}) for t in tasks]
            moves = [r"\boxed{left}", r"\boxed{up}", r"\boxed{right}", r"\boxed{down}"] * 3
            seen = [(await http.step(alone[1][1]["session_id"], i, m))[1]["observation"] for i, m in enumerate(moves)]
            both = [(await http.send("POST", "/reset", json={"task": tasks[1], "seed": s}))[1] for s in (11, 12)]
            assert (
                both[0]["observation"] == alone[1][1]["observation"]
                and both[1]["observation"] != both[0]["observation"]
            )
            for i, move in enumerate(moves):
                _, first, _ = await http.step(both[0]["session_id"], i, move)
                await http.step(both[1]["session_id"], i, move)
                assert first["observation"] == seen[i]


async def test_an_unregistered_environment_is_the_callers_mistake(tmp_path):
    with env_server(MODULE, tmp_path) as (url, _):
        async with Http(url) as http:
            for task in (
                {"gem": "game:Chess-v9"},
                {"gem": 3},
                {},
                {"gem": "game:GuessTheNumber-v0-easy", "options": []},
            ):
                status, body, _ = await http.send("POST", "/reset", json={"task": task})
                assert status == 422, body
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--gem", "game:Chess-v9"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 1 and done.stderr.startswith("gem ") and "--gem game:Chess-v9" in done.stderr
