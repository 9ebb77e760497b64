"""A game: find a number in a few tries, with "higher" or "lower" as answers. The smallest environment with a reward of
its own; `two_envs_cpu` trains on it."""

from __future__ import annotations

import random

from env_servers.env import Env, Step

MAX_DIGITS = 18
"""Digits of the longest guess that is read."""


class GuessEnv(Env):
    """The number is between 1 and task["high"] (3), drawn from the seed. After task["tries"] (2) actions the game is
    over."""

    action = "a whole number"

    async def reset(self, task: dict, seed: int) -> str:
        high = int(task.get("high", 3))
        self._tries_left = int(task.get("tries", 2))
        if high < 1 or self._tries_left < 1:
            raise ValueError(
                f'task["high"] = {high}, task["tries"] = {self._tries_left}: nobody could win. Use 1 or more.'
            )
        self._secret = random.Random(seed).randint(1, high)
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        self._tries_left -= 1
        over = self._tries_left <= 0
        text = action.strip()
        # Not isdigit(): it is true of ² and ①, which int() refuses, and Python refuses to read thousands of digits.
        if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
            return Step("that is no number", outcome="model_error", reward=0.0, done=over)
        guess = int(text)
        if guess == self._secret:
            return Step("correct", reward=1.0, done=True)
        return Step("higher" if guess < self._secret else "lower", reward=0.0, done=over)
