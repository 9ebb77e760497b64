"""Agent files in real worker processes: the tokens that the engine sampled come back as trajectories, and every fault
fails its own sample only."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import AgentError, AgentLost, ConfigError, EngineError, EnvLost, EnvTimeout
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols.agent_file.agent_file import AgentFile
from openrlhf_tir.types import KEEP, GroupKey, Task
from openrlhf_tir.waiting.deadlines import Deadline
from tests.unit.rollout.protocols.agent_file.agent_fakes import CUSTOM, INSTANCE, one

TRIES = 5


async def one_in_time(agent, engine):
    """A sample of an agent with a deadline of seconds, tried again where a machine that stalls has missed it."""
    for _ in range(TRIES - 1):
        with suppress(AgentError, AgentLost):
            return await one(agent, engine)
    return await one(agent, engine)


async def test_a_custom_executor_writes_a_trajectory_of_sampled_tokens(agent_of, quick, tmp_path):
    agent, engine = await agent_of(CUSTOM)
    t = await one(agent, engine, seed_of=lambda turn: 100 + turn)
    assert t.text == "one env two" and t.prompt_ids.tolist() == [ord(c) for c in "Q. "]
    assert t.is_model.tolist() == [True] * 3 + [False] * 5 + [True] * 3
    assert set(t.versions[t.is_model]) == {3} and set(t.logprobs[t.is_model]) == {-0.5}
    assert (t.reward, t.parts) == (0.5, {"turns": 2.0, "correct": 1.0})
    assert [(s.seed, s.max_tokens, r) for _, s, r in engine.asked] == [(100, 4, "0/0/0#0/0"), (101, 4, "0/0/0#0/1")]
    assert [s.first_version for _, s, _ in engine.asked] == [None, 3], "the version that the first turn was sampled by"
    assert len(agent.workers[0].record) == 0 and (tmp_path / "run/logs/rollout-0-agent-0.log").exists()


async def test_what_the_file_raises_and_what_the_engine_does_are_told_apart(agent_of, quick, tmp_path):
    agent, engine = await agent_of(CUSTOM)
    with pytest.raises(AgentError, match=rf"{tmp_path}/agent.py:25: KeyError: 'nothing there'"):
        await one(agent, engine, "raise")
    engine.broken = True
    with pytest.raises(EngineError, match="the engine broke"):
        await one(agent, engine)
    engine.broken = False
    assert (await one(agent, engine)).reward == 0.5, "the process lives on"
    assert agent.workers[0].process.starts == 1


async def test_a_sample_that_is_given_up_takes_its_request_back(agent_of, quick):
    agent, engine = await agent_of(CUSTOM)
    engine.gate.clear()
    running = asyncio.create_task(one(agent, engine))
    await engine.arrived.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    engine.gate.set()
    assert (await one(agent, engine)).reward == 0.5
    assert engine.cancelled == 1, "the worker's task was cancelled, and with it its request"


async def test_a_process_that_dies_loses_its_samples_and_is_replaced(agent_of, quick):
    agent, engine = await agent_of(CUSTOM)
    waits = asyncio.create_task(one(agent, engine, "wait"))
    while len(engine.asked) < 2:
        await asyncio.sleep(0)
    held = []
    with pytest.raises(EnvLost, match=r"logs/rollout-0-agent-0\.log"):
        await one(agent, engine, "die", held_by=held.append)
    with pytest.raises(EnvLost):
        await waits
    assert (await one(agent, engine)).reward == 0.5
    assert agent.workers[0].process.starts == 2 and held == ["rollout-0-agent-0/1"]


async def test_a_group_whose_process_dies_fails_as_a_whole(agent_of, quick):
    """Those that had ended were the short ones: the process is what they share, as a server of sessions is."""
    agent, engine = await agent_of(CUSTOM, **{"rollout.n_samples_per_prompt": 4})
    runner = GroupRunner(agent.cfg, engine, agent.codec, None, None, lambda group: KEEP, agents=agent)
    first = asyncio.Event()
    running = asyncio.create_task(
        runner.run(GroupKey(0, 0), Task("Q. ", "third waits"), on_trajectory=lambda t: first.set())
    )
    await first.wait()
    agent.workers[0].process._kill()
    meta, group = await running
    assert meta.failed == "env_lost" and {t.failed for t in group.trajectories} == {"env_lost"}


async def test_a_file_that_blocks_its_process_is_interrupted_at_the_line_that_runs(agent_of, quick):
    agent, engine = await agent_of(CUSTOM, **{"rollout.group_deadline_s": 3.0})
    agent.workers[0].process.idle = Deadline(60.0, "rollout.group_deadline_s")
    line = next(i for i, text in enumerate(CUSTOM.splitlines(), 1) if "time.sleep" in text)
    for _ in range(TRIES):
        with pytest.raises(AgentError, match="Overrun") as raised:
            await one(agent, engine, "block")
        if f"agent.py:{line}: Overrun" in str(raised.value):
            break  # else a machine that stalled had not let it come so far
    assert f"agent.py:{line}: Overrun" in str(raised.value)
    assert "time.sleep" in raised.value.user_traceback
    assert (await one_in_time(agent, engine)).reward == 0.5
    assert agent.workers[0].process.starts == 1


@pytest.mark.slow
async def test_a_file_that_cannot_be_interrupted_is_lost_and_its_process_replaced(agent_of, quick):
    soon = {"env.step_timeout_s": 0.1, "rollout.group_deadline_s": 2.4}
    masked = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    agent, engine = await agent_of(f"{masked}{CUSTOM}", **soon)
    agent.workers[0].process.pong = Deadline(0.4, "PONG")
    with pytest.raises(AgentLost, match=r"rollout\.group_deadline_s = 2\.4 s"):
        await one(agent, engine, "block")
    while agent.workers[0].process.starts == 1:  # the ping finds that it is blocked, and the next sample starts another
        with suppress(AgentLost, EnvLost):
            assert (await one(agent, engine)).reward == 0.5


@pytest.mark.parametrize(("step_s", "idle"), [(20, 600), (500, 2000)])
def test_a_run_may_be_silent_while_its_environment_opens_and_makes_a_step(tmp_path, step_s, idle):
    cfg = Config(run_dir=tmp_path, env={"step_timeout_s": step_s}, train={"agent_func_path": "agent.py"})
    [worker] = AgentFile(cfg, "model", None, None, "rollout-0", 100).workers
    assert worker.process.idle.seconds == idle


async def test_a_silent_sample_alone_is_lost_where_the_process_answers(agent_of, quick):
    soon = {"env.step_timeout_s": 0.1, "rollout.group_deadline_s": 2.4}
    agent, engine = await agent_of(CUSTOM, **soon)
    with pytest.raises(AgentLost, match=r"rollout\.group_deadline_s = 2\.4 s"):
        await one(agent, engine, "wait")
    agent.workers[0].process.idle = Deadline(60.0, "rollout.group_deadline_s")
    assert (await one_in_time(agent, engine)).reward == 0.5
    assert agent.workers[0].process.starts == 1


@pytest.mark.slow
async def test_a_file_that_cannot_be_loaded_says_where(agent_of, quick, tmp_path):
    with pytest.raises(ConfigError, match=rf"{tmp_path}/agent.py:2: ZeroDivisionError"):
        await agent_of("x = 0\n1 / x\n")
    with pytest.raises(ConfigError, match=r"agent.py:3: OSError: no licence"):
        await agent_of(
            "class AgentExecutor:\n    def __init__(self):\n        raise OSError('no licence')\n    async def"
            " execute(self, **kw):\n        ...\n"
        )


@pytest.mark.slow
@pytest.mark.extended
async def test_an_agent_instance_runs_in_openrlhfs_own_loop(agent_of, tmp_path):
    """OpenRLHF's MultiTurnAgentExecutor, unmodified, with a real tokenizer; several samples in one process, each with
    its own fate."""
    from transformers import AutoTokenizer

    from miniatures.toy.tokenizer import save_tokenizer
    from openrlhf_tir.engines.codec import HfCodec

    save_tokenizer(tmp_path / "model")
    codec = HfCodec(AutoTokenizer.from_pretrained(tmp_path / "model"))
    agent, engine = await agent_of(INSTANCE, codec, model=str(tmp_path / "model"), **{"env.step_timeout_s": 20.0})
    labels = ["", "raise", "slow", "plain float", "images", "hot"]
    t, *faults = await asyncio.gather(*(one(agent, engine, label) for label in labels), return_exceptions=True)
    assert t.text == "go: one<again>two<right>" and t.finish_reason == "stop"
    assert codec.decode(t.token_ids[t.is_model]) == "onetwo", "what reset and step say is never trained"
    assert t.reward == 0.5 and t.parts == {"steps": 2.0, "lucky": 3.0, "correct": 1.0}, (
        "rewards add up, the last scores and extra_logs count"
    )
    assert [(c.action, c.observation, c.reward, c.done) for c in t.calls] == [
        ("one", "<again>", 0.25, False),
        ("two", "<right>", 0.25, True),
    ]
    raised, slow, plain, images, hot = faults
    assert isinstance(raised, AgentError) and "agent.py:22: KeyError: 'no such row'" in str(raised)
    assert isinstance(slow, EnvTimeout) and "env.step_timeout_s = 20 s" in str(slow)
    assert isinstance(plain, AgentError) and '"rewards" = 1.0 (float)' in str(plain)
    assert isinstance(images, AgentError) and '"environment_images"' in str(images)
    assert isinstance(hot, AgentError) and re.search(r"\b0\.5 .*\btop_p\b", str(hot))
