"""The guessing game of `two_envs_cpu`: its environment, its protocol, its rows among the problems."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from env_servers.guess import GuessEnv
from miniatures.toy.guess import HIGH, KIND, TRIES
from miniatures.toy.task import write_data
from miniatures.toy.tokenizer import encode
from openrlhf_tir.config.settings import load
from openrlhf_tir.rollout.protocols import Call, End, check, make
from openrlhf_tir.types import Completion


async def played(seed: int, *guesses: str, **task) -> list[tuple[str, float | None, bool]]:
    game = GuessEnv()
    assert await game.reset({"high": HIGH, "tries": TRIES, **task}, seed) == ""
    return [(s.observation, s.reward, s.done) for s in [await game.step(g, 1.0) for g in guesses]]


async def test_a_game_is_won_or_over_after_its_tries_and_each_word_leads_to_the_number():
    """The number is 1 where the answer to 2 is "lower": the second guess can always win."""
    for seed in range(20):
        ((first, _, won),) = await played(seed, "2")
        if won:
            continue
        right = {"lower": "1", "higher": "3"}[first]
        assert await played(seed, "2", right) == [(first, 0.0, False), ("correct", 1.0, True)]
        wrong = {"lower": "3", "higher": "1"}[first]
        assert (await played(seed, "2", wrong))[1][1:] == (0.0, True), "the last try, and no reward"
    assert await played(0, "x") == [("that is no number", 0.0, False)]
    with pytest.raises(ValueError, match=r'"high"\] = 0, '):
        await played(0, high=0)


def completion(text: str, stop: str) -> Completion:
    return Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), text, "stop", stop)


def test_the_first_digit_is_the_guess_and_calls_that_are_used_up_end_the_episode():
    e = load("two_envs_cpu").environments["guess"].env
    check(e)
    protocol = make(e.model_copy(update={"max_calls": 1}))
    assert (
        protocol.advance(completion("```python\nprint(2", "2")) == Call("2")
        and protocol.insertion("lower") == " lower\n"
    )
    assert protocol.advance(completion("1", "1")) == End()
    assert make(e).advance(completion("no digit", "<eos>")) == End()


def test_games_are_every_fourth_row_and_the_models_characters_can_say_them(tmp_path):
    for path in write_data(tmp_path, 0, 40, 20, env="python_tir", game="guess"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [i for i, row in enumerate(rows) if row["env"] == "guess"] == list(range(0, len(rows), 4))
        assert Counter(row["meta"]["kind"] == KIND for row in rows)[True] == len(rows) // 4
        assert all(encode(row["prompt"]) for row in rows)
    (alone, _) = write_data(tmp_path, 0, 8, 4)
    assert all("env" not in json.loads(line) for line in alone.read_text().splitlines())
