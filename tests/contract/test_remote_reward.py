"""`reward.remote_url`: real reward servers and workers, asked as OpenRLHF asks them; a failure is a failed sample."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest
from aiohttp import web

from openrlhf_tir.config import Config, Reward
from openrlhf_tir.errors import RewardError, VerifierError
from openrlhf_tir.rewards.limits import RewardLimits
from openrlhf_tir.rewards.pool import RewardPool
from openrlhf_tir.types import Segment, Task, Trajectory
from openrlhf_tir.waiting.deadlines import Deadline
from tests.contract.docs.docs_blocks import block

TASK = Task("2+2=", "4")


def says(text: str) -> Trajectory:
    return Trajectory(0, np.array([1], np.int32), [Segment.of_env([1], text)])


class Server:
    """Right is what is the prompt with its label. `script`: answers before that, by turn: an HTTP status, or a body."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.script: list[int | str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        await self.gate.wait()
        if self.script:
            said = self.script.pop(0)
            return web.Response(status=said, text="no") if isinstance(said, int) else web.Response(text=said)
        right = [
            float(q == p + label) for q, p, label in zip(body["query"], body["prompts"], body["labels"], strict=True)
        ]
        return web.json_response(
            {"rewards": [r - 0.5 for r in right], "scores": right, "extra_logs": {"n": len(right)}}
        )


@pytest.fixture
async def server_of():
    runners = []

    async def start() -> Server:
        server = Server()
        app = web.Application()
        app.router.add_post("/score", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/score"
        return server

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def pool_of(monkeypatch):
    pools = []
    monkeypatch.setattr("openrlhf_tir.rewards.remote.http.backoff_s", lambda failures, cap_s: 0.0)

    def make(url, limits=RewardLimits(), **settings):
        pools.append(RewardPool(Reward(remote_url=url, **settings), limits=limits))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.stop()


async def test_a_server_scores_a_prompts_responses_in_openrlhfs_form(server_of, pool_of):
    server = await server_of()
    pool = pool_of(server.url)
    right, wrong = await asyncio.gather(pool.score(says("4"), TASK), pool.score(says("5"), TASK))
    assert right == (0.5, True, {"n": 2.0, "correct": 1.0}) and wrong == (-0.5, False, {"n": 2.0, "correct": 0.0})
    assert server.asked == [{"query": ["2+2=4", "2+2=5"], "prompts": ["2+2="] * 2, "labels": ["4"] * 2}]


async def test_a_response_that_just_ended_is_not_waited_for_when_the_reward_is_closed(pool_of):
    pool = pool_of("http://127.0.0.1:9/score")
    scored = asyncio.create_task(pool.score(says("4"), TASK))
    await asyncio.sleep(0)  # it waits for a call that has not begun
    await pool.stop()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(scored, 10)


async def test_what_ends_while_a_call_is_answered_goes_together_in_the_next(server_of, pool_of):
    server = await server_of()
    server.gate.clear()
    pool = pool_of(server.url, remote_batch=2)
    first = asyncio.create_task(pool.score(says("1"), TASK))
    while not server.asked:
        await asyncio.sleep(0.001)
    later = [asyncio.create_task(pool.score(says(str(i)), TASK)) for i in range(2, 5)]
    other = asyncio.create_task(pool.score(says("x"), Task("P", "x")))
    await asyncio.sleep(0)
    later[0].cancel()
    server.gate.set()
    await asyncio.gather(first, *later[1:], other)
    assert sorted(body["query"] for body in server.asked) == [["2+2=1"], ["2+2=3", "2+2=4"], ["Px"]]


async def test_a_server_that_is_full_or_broken_is_asked_again_the_next_of_several_in_turn(server_of, pool_of):
    one, two = await server_of(), await server_of()
    one.script = [503, 429]
    pool = pool_of(f"{one.url}, {two.url}")
    two.script = [500]
    assert (await pool.score(says("4"), TASK)).reward == 0.5
    assert (len(one.asked), len(two.asked)) == (2, 2)


@pytest.mark.parametrize(
    ("group_s", "remote"),
    [(600, Deadline(180.0, "limits.REMOTE")), (7200, Deadline(1200.0, "rollout.group_deadline_s / 6"))],
)
def test_a_judge_may_take_a_sixth_of_a_group_and_never_less_than_openrlhf_gives_it(group_s, remote):
    assert RewardLimits.of(Config(rollout={"group_deadline_s": group_s})).remote == remote


async def test_a_server_that_never_answers_fails_the_sample(server_of, pool_of):
    server = await server_of()
    server.gate.clear()
    pool = pool_of(server.url, RewardLimits(remote=Deadline(0.2, "a sixth"), remote_retries=1))
    with pytest.raises(VerifierError, match=r"reward\.remote_url: 2\b.* a sixth = 0\.2 s .*TimeoutError"):
        await pool.score(says("4"), TASK)
    server.gate.set()
    with pytest.raises(VerifierError, match=r"reward\.remote_url: 1\b.*http://127\.0\.0\.1:9/score"):
        await pool_of("http://127.0.0.1:9/score", RewardLimits(remote_retries=0)).score(says("4"), TASK)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (404, "HTTP 404: no"),
        ("<html>", "JSON: '<html>'"),
        ("{}", '"rewards"'),
        ('{"rewards": [1, 2]}', r"\b2\b.*\b1\b"),
        pytest.param('{"rewards": [1%s]}' % ("0" * 400), r"rewards.*\b10", id="beyond every float"),
        pytest.param('{"rewards": [1%s]}' % ("0" * 5000), r"\bJSON\b", id="more digits than Python reads"),
        pytest.param("[" * 900 + "1" + "]" * 900, r"\brewards\b", id="deep"),
        pytest.param("[" * 30_000, r"\bJSON\b", id="endless"),
    ],
)
async def test_what_is_no_answer_of_a_reward_server_is_an_error_not_a_zero(server_of, pool_of, answer, said):
    server = await server_of()
    server.script = [answer]
    with pytest.raises(RewardError, match=said):
        await pool_of(server.url).score(says("4"), TASK)
    assert len(server.asked) == 1, "the same again would fail the same way"


async def test_a_remote_reward_may_be_one_of_several(server_of, pool_of):
    server = await server_of()
    r = await pool_of(server.url, weights={"remote": 2.0, "format": 1.0}).score(says("4"), TASK)
    assert r.reward == 2.0 * 0.5 + r.parts["format"] and r.parts["remote"] == 0.5 and r.correct


FILE = """
import time

import numpy as np


def reward_func(queries, prompts, labels, **kwargs):
    if labels[0] == "raise":
        return {}["missing"]
    if labels[0] == "hang":
        time.sleep(3600)
    right = np.array([float(q == p + label) for q, p, label in zip(queries, prompts, labels)])
    if labels[0] == "list":
        return right
    return {"rewards": right - 0.5, "scores": right, "extra_logs": {"mean": right.mean()}}
"""


@pytest.mark.slow
async def test_a_file_scores_in_a_worker_process(pool_of, tmp_path):
    (tmp_path / "reward.py").write_text(FILE)
    pool = pool_of(f"{tmp_path / 'reward.py'}:reward_func")
    right, wrong = await asyncio.gather(pool.score(says("4"), TASK), pool.score(says("5"), TASK))
    assert right == (0.5, True, {"mean": 0.5, "correct": 1.0}) and wrong == (-0.5, False, {"mean": 0.5, "correct": 0.0})
    assert (await pool.score(says("list"), Task("", "list"))).reward == 1.0
    with pytest.raises(RewardError, match=rf"reward.remote_url = .*{tmp_path}/reward.py:9: KeyError: 'missing'"):
        await pool.score(says("4"), Task("2+2=", "raise"))


@pytest.mark.slow
async def test_the_documentations_function_scores_with_tensors(pool_of, tmp_path):
    (tmp_path / "right.py").write_text(block("openrlhf_files.md", "python", "def reward_func"))
    pool = pool_of(f"{tmp_path / 'right.py'}:reward_func")
    right, wrong = await asyncio.gather(pool.score(says("4"), TASK), pool.score(says("5"), TASK))
    assert right == (pytest.approx(0.9), True, {"right": 1.0, "correct": 1.0})
    assert wrong == (pytest.approx(-0.1), False, {"right": 0.0, "correct": 0.0})


@pytest.mark.slow
async def test_a_file_that_hangs_fails_its_samples_by_a_fault_of_its_code_and_the_next_are_scored(pool_of, tmp_path):
    (tmp_path / "reward.py").write_text(FILE)
    pool = pool_of(f"{tmp_path / 'reward.py'}:reward_func", RewardLimits(remote=Deadline(1.0, "a sixth")))
    for _ in range(5):
        with pytest.raises((RewardError, VerifierError), match="a sixth = 1 s") as hung:
            await pool.score(says("4"), Task("2+2=", "hang"))
        if issubclass(hung.type, RewardError):
            break  # else a machine that stalled had not let it come to its own lines
    assert re.search(r"reward.py:\d+:.*a sixth = 1 s", str(hung.value))
    pool.remote.server.workers.wall_s = 60.0
    assert (await pool.score(says("4"), TASK)).correct


@pytest.mark.slow
async def test_a_file_that_cannot_be_loaded_fails_its_samples(pool_of, tmp_path):
    (tmp_path / "reward.py").write_text("import no_such_thing_here\n")
    with pytest.raises(RewardError, match=r"reward.py:1: ModuleNotFoundError"):
        await pool_of(f"{tmp_path / 'reward.py'}:reward_func").score(says("4"), TASK)
