"""What a session of a GEM environment holds and is told. Needs no package: a module of its name stands in for it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from env_servers.adapters.gem import env as gem_env
from env_servers.adapters.gem.env import GemEnv
from env_servers.adapters.gem.seeded_thread import SeededThread
from openrlhf_tir.errors import EnvError


class Game:
    """Says what it was made with; a reset waits for `gate`."""

    def __init__(self, says, gate=None):
        self.says, self.gate, self.closed = says, gate, False

    def reset(self, seed):
        if self.gate:
            self.gate.wait(60)
        return self.says, {}

    def close(self):
        self.closed = True


@pytest.fixture
def games(monkeypatch):
    """The environments that were made, by what they say."""
    made = {}

    def make(name, says, gate=None):
        made[name] = Game(says, gate)
        return made[name]

    monkeypatch.setitem(sys.modules, "gem", SimpleNamespace(make=make))
    return made


def task(says, **more):
    return {"gem": "game", "options": {"says": says, **more}}


async def test_an_environment_is_closed_with_its_session(games):
    thread = SeededThread()
    env, idle = GemEnv(thread, None), GemEnv(thread, None)
    assert await env.reset(task("hello"), 0) == "hello" and not games["game"].closed
    await env.close()
    await idle.close()
    await thread.close()
    assert games["game"].closed


async def test_an_environment_whose_start_was_cancelled_is_closed_once_it_has_started(games):
    thread, gate = SeededThread(), threading.Event()
    env = GemEnv(thread, None)
    starting = asyncio.create_task(env.reset(task("hello", gate=gate), 0))
    while "game" not in games:
        await asyncio.sleep(0.001)
    starting.cancel()
    closing = asyncio.create_task(env.close())
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(300):
        await closing
    await thread.close()
    assert games["game"].closed


async def test_an_environment_that_does_not_close_is_abandoned_with_a_warning(games, monkeypatch, caplog):
    monkeypatch.setattr(gem_env, "CLOSE_S", 0.05)
    thread, never, stuck = SeededThread(), threading.Event(), asyncio.Event()
    env = GemEnv(thread, None)
    await env.reset(task("hello"), 0)
    loop = asyncio.get_running_loop()
    held = asyncio.create_task(thread.run(env._random, lambda: (loop.call_soon_threadsafe(stuck.set), never.wait(60))))
    await stuck.wait()
    async with asyncio.timeout(300):
        await env.close()
    assert re.search(r"Game\b.* 0\.05 s", caplog.text)
    never.set()
    await held
    await thread.close()


@pytest.mark.parametrize("terminated", [True, False])
async def test_a_game_whose_turns_are_used_up_has_ended_and_is_not_truncated(terminated, games):
    thread = SeededThread()
    env = GemEnv(thread, None)
    await env.reset(task("hello"), 0)
    games["game"].step = lambda action: ("no turns are left", 0.25, terminated, True, {})
    step = await env.step("7", 5.0)
    assert (step.done, step.truncated, step.reward) == (terminated, not terminated, 0.25)
    await env.close()
    await thread.close()


@pytest.mark.parametrize("says", [None, {"board": 1}, 3])
async def test_an_observation_that_is_not_text_is_a_failure(says, games):
    thread = SeededThread()
    env = GemEnv(thread, None)
    with pytest.raises(EnvError, match=rf"{type(says).__name__}\b.*{re.escape(repr(str(says)))}"):
        await env.reset(task(says), 0)
    await env.close()
    await thread.close()


@pytest.mark.parametrize("fault", [KeyError("deck"), IndexError(), ValueError("x"), TypeError("y")])
async def test_a_game_that_fails_in_its_reset_is_an_environment_error(games, monkeypatch, fault):
    def broken(self, seed):
        raise fault

    monkeypatch.setattr(Game, "reset", broken)
    thread = SeededThread()
    env = GemEnv(thread, None)
    with pytest.raises(EnvError):
        await env.reset(task("hello"), 0)
    await env.close()
    await thread.close()


def test_a_call_that_never_ends_does_not_keep_the_process_from_ending():
    program = """
import asyncio, threading
from env_servers.adapters.gem.seeded_thread import RandomState, SeededThread

async def main():
    thread, begun = SeededThread(), threading.Event()
    asked = asyncio.create_task(thread.run(RandomState(0), lambda: (begun.set(), threading.Event().wait())))
    await asyncio.to_thread(begun.wait)
    asked.cancel()
    await thread.close()

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0
