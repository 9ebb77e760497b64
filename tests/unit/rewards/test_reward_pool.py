"""The pool: quick answers inline, hostile ones cost their CPU, starved hosts and dead workers are no reward."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing.forkserver
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.errors import RewardError, VerifierError
from openrlhf_tir.filters import UserFilter
from openrlhf_tir.rewards import pool as pools
from openrlhf_tir.rewards import workers
from openrlhf_tir.rewards.limits import RewardLimits
from openrlhf_tir.rewards.own import GroupReward, OwnReward, Prepare
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.rewards.workers import CpuSpent, Late, Limits
from openrlhf_tir.types import RewardParts, Verdict
from openrlhf_tir.waiting.deadlines import Deadline
from tests.unit.rewards import own_rewards
from tests.unit.rewards.reward_fakes import group, in_run, says, task

REPO = Path(__file__).resolve().parents[3]
HOSTILE = r"\sum_{k=1}^{9999} \sum_{j=1}^{9999} \frac{1}{k+j^2}"


def within(seconds: float) -> Limits:
    return Limits(Deadline(seconds, "the deadline"))


def answer(text):
    return says(rf"<answer>\boxed{{{text}}}</answer>")


@pytest.fixture
def pool_of():
    pools = []

    def make(deadline_s=None, **settings):
        pools.append(RewardPool(Reward(**settings), limits=RewardLimits(check=deadline_s and within(deadline_s).wall)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


async def fault_of_its_code(pool: RewardPool) -> str:
    """Score with a deadline that is long enough for the worker to come to a line of the reward; return the error."""
    for deadline_s in (0.5, 5.0, 60.0):
        pool.workers.limits = pool.workers.limits._replace(wall=within(deadline_s).wall)
        with pytest.raises((RewardError, VerifierError), match=f" = {deadline_s:g} s") as late:
            await pool.score(answer("1"), task("1"))
        if late.errisinstance(RewardError):  # the other: the machine had no core for the worker
            break
    assert late.errisinstance(RewardError)
    return str(late.value)


async def test_numerals_are_scored_without_a_worker(pool_of):
    pool = pool_of()
    for i in range(1000):
        assert (await pool.score(answer(str(i)), task(str(i - i % 2)))).correct is (i % 2 == 0)
    assert not pool.workers.started


@pytest.mark.slow
async def test_an_answer_that_uses_up_its_cpu_is_wrong_and_costs_nobody_else_anything(pool_of):
    """However long that takes by the clock: the machine may have other things to do."""
    pool = pool_of(verify_timeout_s=0.5, deadline_s=300)
    assert (await pool.score(answer(r"\sqrt{8}"), task(r"2\sqrt2"))).reward == 1.0
    bad = await pool.score(answer(HOSTILE), task("7"))
    assert (bad.reward, bad.parts["verify_timeout"]) == (0.0, 1.0)
    good = await pool.score(answer(r"\sqrt{8}"), task(r"2\sqrt2"))
    assert (good.reward, good.parts["verify_timeout"]) == (1.0, 0.0)


@pytest.mark.slow
async def test_on_a_starved_host_a_right_answer_fails_its_sample_and_is_never_scored_wrong(pool_of):
    """The only worker is stopped, before or after it took the check: it gets no CPU at all, as on a machine whose cores
    are all taken."""
    pool = pool_of(verify_timeout_s=0.2, deadline_s=1.0)
    fact = r" = 1 s, .*reward\.verify_timeout_s = 0\.2 s"
    with pytest.raises(VerifierError, match=fact):
        await pool.workers.run(own_rewards.stop_myself)
    limits = pool.workers.limits
    pool.workers.limits = limits._replace(wall=within(300).wall)
    pid = await pool.workers.run(os.getpid)
    pool.workers.limits, pool.workers.take_s = limits, 0.5
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(VerifierError, match=fact):
        await pool.score(answer(r"\sqrt{8}"), task(r"2\sqrt2"))
    pool.workers.limits, pool.workers.take_s = limits._replace(wall=within(300).wall), 300
    assert (await pool.score(answer(r"\sqrt{8}"), task(r"2\sqrt2"))).reward == 1.0


@pytest.mark.slow
async def test_waiting_costs_no_cpu_and_each_call_has_its_budget_anew(pool_of):
    workers = pool_of(verify_timeout_s=0.5, deadline_s=300).workers
    assert await workers.run(time.sleep, 1.0) is None
    for _ in range(2):
        assert await workers.run(own_rewards.burn, 0.3) >= 0.3
    with pytest.raises(CpuSpent, match=r"burn .*reward\.verify_timeout_s = 0\.5 s") as spent:
        await workers.run(own_rewards.burn, 60.0)
    assert spent.value.out_of_time


@pytest.mark.slow
async def test_a_worker_that_is_killed_twice_is_a_fault_and_one_that_own_code_ends_is_the_codes(pool_of, tmp_path):
    with pytest.raises(VerifierError, match=r" 2 .*own_rewards:killed "):
        await pool_of(name=f"{own_rewards.__name__}:killed").score(answer("1"), task("1"))
    path = tmp_path / "mine.py"
    path.write_text("import os\n\ndef score(trajectory, task, context):\n    os._exit(3)\n")
    with pytest.raises(RewardError, match=r"mine\.py:4: Exited"):
        await pool_of(name=f"{path}:score").score(answer("1"), task("1"))
    path.write_text("import ctypes\n\ndef score(trajectory, task, context):\n    ctypes.string_at(0)\n")
    pool = pool_of(name=f"{path}:score")
    with pytest.raises(RewardError, match=r"mine\.py:score .*mine\.py:4, .* -11\b"):
        await pool.score(answer("1"), task("1"))

    async def how_ended(pid, words):
        return words

    pool.workers.how_ended = how_ended  # as in a run
    with pytest.raises(RewardError, match=r"mine\.py:score .* -11\b"):
        await pool.score(answer("1"), task("1"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "stuck",
    [
        pytest.param("return sum(range(10**15))", marks=pytest.mark.extended),
        """while True:
        try:
            sum(range(10**7))
        except BaseException:
            pass""",
    ],
)
async def test_a_reward_that_no_interrupt_ends_is_a_fault_of_its_code(pool_of, tmp_path, stuck):
    """One call into C, in which Python runs no signal handler, and a loop that catches everything."""
    path = tmp_path / "mine.py"
    path.write_text(f"def score(trajectory, task, context):\n    {stuck}\n")
    pool = pool_of(name=f"{path}:score", verify_timeout_s=0.3, deadline_s=300)
    with pytest.raises(RewardError, match=r"mine\.py:score .*reward\.verify_timeout_s = 0\.3 s") as spent:
        await pool.score(answer("1"), task("1"))
    assert spent.value.out_of_time
    assert re.search(rf"at {re.escape(str(path))}:[2-6] ", str(spent.value))


@pytest.mark.slow
async def test_no_timer_of_a_reward_runs_on_into_the_next_call_of_its_worker(pool_of, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def score(trajectory, task, context):\n    return 1.0\n")
    pool = pool_of(name=f"{path}:score")
    await pool.score(answer("1"), task("1"))
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL):
        assert await pool.workers.run(signal.getitimer, timer) == (0.0, 0.0)
    await pool.workers.run(signal.setitimer, signal.ITIMER_VIRTUAL, 1000.0)  # as if an interrupt had met its clearing
    assert await pool.workers.run(signal.getitimer, signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.slow
async def test_a_worker_that_dies_once_is_tried_again(pool_of, tmp_path):
    score = await pool_of(name=f"{own_rewards.__name__}:dies_once").score(answer("1"), task(str(tmp_path / "died")))
    assert score.reward == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "args", "result"),
    [
        (
            OwnReward(f"{own_rewards.__name__}:half"),
            (answer("1"), task("1"), in_run()),
            (RewardParts(0.5, True, {}), []),
        ),
        (GroupReward(f"{own_rewards.__name__}:of_group"), (group(answer("1")), in_run()), ([0.25], [])),
        (UserFilter(f"{own_rewards.__name__}:drops"), (group(answer("1")), {}), Verdict(False, "dull")),
    ],
    ids=["reward", "group reward", "filter"],
)
async def test_a_worker_that_is_killed_while_it_is_idle_costs_nobody_anything(pool_of, function, args, result):
    """As by the kernel when memory is short. It breaks pebble's pool."""
    workers = pool_of(workers=1).workers
    os.kill(await workers.run(os.getpid), signal.SIGKILL)
    while workers._pool.active:
        await asyncio.sleep(0.01)
    assert await workers.run(function, *args) == result


@pytest.mark.slow
async def test_the_calls_of_workers_that_are_replaced_are_made_again(pool_of, tmp_path):
    """The idle one of two workers is stopped, so that nobody takes the next call."""
    workers = pool_of(workers=2, deadline_s=300).workers
    begun = tmp_path / "begun"
    call = asyncio.create_task(workers.run(own_rewards.hangs_once, begun))
    while not begun.exists():
        await asyncio.sleep(0.01)
    os.kill(await workers.run(os.getpid), signal.SIGSTOP)
    workers.limits, workers.take_s = workers.limits._replace(wall=within(0.1).wall), 0.1
    with pytest.raises(Late):
        await workers.run(os.getpid)
    workers.limits, workers.take_s = workers.limits._replace(wall=within(300).wall), 300
    assert await call == "again"


@pytest.mark.slow
async def test_a_call_of_a_pool_that_breaks_without_a_word_is_made_again(pool_of, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "LOOK_S", 0.05)
    those = pool_of(workers=1, deadline_s=300).workers
    begun = tmp_path / "begun"
    call = asyncio.create_task(those.run(own_rewards.hangs_once, begun))
    while not begun.exists():
        await asyncio.sleep(0.01)
    those._pool.stop()  # pebble ends no call when it stops
    assert await call == "again"


@pytest.mark.slow
async def test_a_call_that_is_cancelled_gives_its_worker_back(pool_of, tmp_path):
    those = pool_of(workers=1, deadline_s=300).workers
    begun = tmp_path / "begun"
    call = asyncio.create_task(those.run(own_rewards.hangs_once, begun))
    while not begun.exists():
        await asyncio.sleep(0.01)
    call.cancel()
    assert await those.run(len, "ab") == 2
    assert call.cancelled()


@pytest.mark.slow
async def test_calls_that_run_or_wait_are_cancelled_when_the_workers_are_closed(pool_of, tmp_path):
    workers = pool_of(workers=1, deadline_s=300).workers
    begun = tmp_path / "begun"
    calls = [asyncio.create_task(workers.run(own_rewards.hangs_once, begun)) for _ in range(2)]
    while not begun.exists():
        await asyncio.sleep(0.01)
    workers.close()
    assert [type(end) for end in await asyncio.gather(*calls, return_exceptions=True)] == [asyncio.CancelledError] * 2
    assert not workers.started


@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "too many files")])
async def test_processes_that_cannot_be_started_are_a_fault_of_the_machine(monkeypatch, fault):
    starts = []

    class Failing(Stuck):
        active = True

        def __init__(self, **settings):
            super().__init__()
            self.free.set()
            starts.append(self)

        def schedule(self, *args, **settings):
            raise fault

    monkeypatch.setattr("pebble.ProcessPool", Failing)
    monkeypatch.setattr(workers, "_wait_for_fork_server", lambda: None)
    those = workers.Workers(1, within(60.0))
    with pytest.raises(VerifierError, match=re.escape(str(fault))):
        await those.run(OwnReward("mine.py:score"))
    assert len(starts) == workers.ATTEMPTS and all(pool.begun.wait(60) for pool in starts)


@pytest.mark.slow
async def test_a_custom_reward_that_hangs_is_a_fault_of_its_code(pool_of):
    name = f"{own_rewards.__name__}:hangs"
    pool = pool_of(name=name, verify_timeout_s=0.5, deadline_s=0.5)
    pool.workers.prepare = Prepare([name])  # as a run does: loading it is no part of a call
    assert re.search(rf"{own_rewards.__file__}:\d+:.*the deadline", await fault_of_its_code(pool))


@pytest.mark.slow
async def test_an_interrupt_that_meets_no_line_of_the_reward_is_a_call_that_was_late(pool_of):
    """An Overrun is no Exception: it would have ended the run, as if somebody had asked for that."""
    pool = pool_of(deadline_s=0.5)
    with pytest.raises(Late) as late:
        await pool.workers.run(own_rewards.SlowToLoad())
    assert late.value.out_of_time


@pytest.mark.slow
async def test_a_coroutine_function_of_the_user_awaits_comparisons_in_its_worker(pool_of):
    pool = pool_of(name=f"{own_rewards.__name__}:awaits")
    assert (await pool.score(says(r"\sqrt{8}"), task(r"2\sqrt2"))).reward == 1.0
    assert (await pool.score(says(r"\sqrt{9}"), task(r"2\sqrt2"))).reward == 0.0


@pytest.mark.slow
async def test_a_reward_that_awaits_for_ever_is_a_fault_of_its_code_and_keeps_no_worker(pool_of):
    """It uses no CPU, so that only the deadline can end it."""
    name = f"{own_rewards.__name__}:awaits_for_ever"
    pool = pool_of(name=name, verify_timeout_s=0.5, deadline_s=0.5, workers=1)
    pool.workers.prepare = Prepare([name])
    for _ in range(2):
        await fault_of_its_code(pool)


async def test_a_registered_reward_is_called_once_however_much_it_asks(pool_of, monkeypatch):
    pool, calls = pool_of(name="retool"), []

    async def compared(function, *args):
        return True

    function = pool.components[0].function

    async def counted(*args):
        calls.append(args)
        return await function(*args)

    monkeypatch.setattr(pool.workers, "run", compared)
    pool.components = [replace(pool.components[0], function=counted)]
    assert (await pool.score(answer(r"\sqrt{2}"), task(r"2^{1/2}"))).reward == 1.0
    assert len(calls) == 1


async def test_the_same_two_answers_are_compared_once_and_no_verdict_is_kept_of_what_had_none(pool_of, monkeypatch):
    pool, asked = pool_of(name="retool"), []

    async def compared(function, *args):
        asked.append(args)
        if args[0] == HOSTILE:
            raise CpuSpent("it used up its CPU")
        return args[0] == r"\sqrt{2}"

    monkeypatch.setattr(pool.workers, "run", compared)
    right, wrong, hostile = answer(r"\sqrt{2}"), answer(r"\sqrt{3}"), answer(HOSTILE)
    for _ in range(2):
        assert (await pool.score(right, task(r"2^{1/2}"))).correct
        assert not (await pool.score(wrong, task(r"2^{1/2}"))).correct
        assert (await pool.score(hostile, task(r"2^{1/2}"))).parts["verify_timeout"] == 1.0
    assert len(asked) == 4 and len({a for a, _ in asked}) == 3
    monkeypatch.setattr(pools, "VERDICTS_KEPT", 2)
    asked.clear()
    for gold in ("x", "y", "x", "z", "x", "y"):
        await pool.score(right, task(gold))
    assert [gold for _, gold in asked] == ["x", "y", "z", "y"], "what was not asked for longest is forgotten"


@pytest.mark.slow
async def test_zerotir_asks_the_pool_for_the_statistics_of_long_responses_alone(pool_of):
    pool = pool_of(name="zerotir", format="answer")
    for before, asked in (("", False), ("So. " * 3000, True)):
        r = await pool.score(says(rf"{before}<answer>\boxed{{42}}</answer>"), task("42"))
        assert r.reward == 1.0
        assert r.parts["repeatness"] > 0
        assert pool.workers.started == asked


class Stuck:
    """A pool whose end waits for a worker that is being started."""

    def __init__(self):
        self.begun, self.free = threading.Event(), threading.Event()

    def stop(self):
        self.begun.set()

    def join(self):
        self.free.wait(60)


def test_workers_that_do_not_end_do_not_keep_their_server_from_ending(monkeypatch, caplog):
    monkeypatch.setattr(workers, "CLOSE_S", 0.05)
    pool, those = Stuck(), workers.Workers(1, within(1.0))
    those._pool = pool
    those.close()
    assert pool.begun.is_set() and not pool.free.is_set() and not those.started
    assert [record.args for record in caplog.records] == [(0.05,)]
    pool.free.set()


@pytest.mark.slow
def test_workers_run_the_package_of_their_parent_wherever_it_was_started(tmp_path):
    """The current directory has another copy of the package, and a file with the name of a library."""
    (tmp_path / "openrlhf_tir").mkdir()
    (tmp_path / "openrlhf_tir" / "__init__.py").touch()
    (tmp_path / "pydantic.py").write_text("raise RuntimeError('not a library')\n")
    code = f"""if True:
        import asyncio, os, sys
        sys.path.insert(0, {str(REPO)!r})
        import openrlhf_tir
        from openrlhf_tir.rewards.workers import Limits, Workers
        from openrlhf_tir.waiting.deadlines import Deadline

        async def main():
            workers = Workers(1, Limits(Deadline(60.0, 'the deadline')))
            try:
                file = await workers.run(eval, "__import__('openrlhf_tir').__file__")
                safe = await workers.run(eval, "__import__('os').environ.get('PYTHONSAFEPATH')")
                return file == openrlhf_tir.__file__, safe, os.environ.get("PYTHONSAFEPATH")
            finally:
                workers.close()

        print(asyncio.run(main()))
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert ended.stdout == "(True, None, None)\n", ended.stderr


async def test_a_start_of_workers_that_hangs_or_fails_is_a_fault_and_ends(monkeypatch):
    """The server that forks them imports a library that never ends, or dies of one."""
    hung = threading.Event()
    those = workers.Workers(1, within(60.0))
    those.take_s = 0.05
    monkeypatch.setattr(workers, "_wait_for_fork_server", hung.wait)
    try:
        with pytest.raises(Late):
            await those.run(len, "ab")
    finally:
        hung.set()
    monkeypatch.undo()
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", lambda: None)
    server = multiprocessing.forkserver._forkserver
    monkeypatch.setattr(server, "_forkserver_address", "/no/such/socket")
    those.take_s = 60.0
    with pytest.raises(VerifierError) as failed:
        await those.run(len, "ab")
    assert isinstance(failed.value.__cause__, OSError) and not those.started
