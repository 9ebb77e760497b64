"""The engine of another actor behind a fake handle: what its death, its silence and its errors are for the actor whose
response went there."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import DeadlineMissed, EngineGone
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import Sampling

from .fake_actors import Remote

pytestmark = pytest.mark.slow  # importing ray


class Handle:
    """Requests are answered with what `answers` holds, an error or a result; without it never."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), []
        self.generate, self.abort = Remote(self._answer), Remote(self._answer)

    async def _answer(self, *args: object) -> object:
        self.asked.append(args)
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def remote(handle: Handle):
    from openrlhf_tir.cluster.peer_engine import PeerEngine

    return PeerEngine(handle, "rollout-1", Config(rollout={"group_deadline_s": 900}))


def generated(handle: Handle) -> object:
    return run(remote(handle).generate((1, 2), Sampling(8, seed=3), request_id="0/7/0#2/0~1"))


def test_a_response_goes_there_as_ids_with_its_sampling_and_its_name():
    handle = Handle("what follows")
    assert generated(handle) == "what follows"
    assert handle.asked == [([1, 2], Sampling(8, seed=3), "0/7/0#2/0~1")]


def test_an_actor_that_dies_is_an_engine_that_is_gone():
    import ray

    with pytest.raises(EngineGone, match=r"rollout-1, .*: .*the process was killed"):
        generated(Handle(ray.exceptions.RayActorError(error_msg="the process was killed")))


def test_an_error_of_a_living_actor_is_raised_as_it_is():
    import ray

    with pytest.raises(ray.exceptions.RayTaskError) as raised:
        generated(Handle(ray.exceptions.RayTaskError("generate", "Traceback", ValueError("a bug"))))
    assert not isinstance(raised.value, EngineGone)


def test_one_that_does_not_answer_is_waited_for_as_long_as_a_group_may_take():
    with pytest.raises(DeadlineMissed, match=r" rollout-1 .*rollout\.group_deadline_s = 900 s"):
        generated(Handle())


def test_a_caller_that_is_cancelled_takes_its_request_back(monkeypatch):
    cancelled = []
    monkeypatch.setattr("ray.cancel", cancelled.append)

    async def main() -> None:
        handle = Handle()
        asking = asyncio.create_task(remote(handle).generate((1,), Sampling(8), request_id="r"))
        await asyncio.sleep(1)
        assert handle.asked and not cancelled
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(cancelled) == 1

    run(main())


def test_an_abort_waits_for_no_answer():
    """The actor that asks is itself being asked, within the same deadline: it would be taken for the hung one."""

    async def main() -> None:
        handle = Handle()
        await remote(handle).abort("0/7/0#2/0~1")
        assert asyncio.get_running_loop().time() == 0.0
        await asyncio.sleep(0)
        assert handle.asked == [("0/7/0#2/0~1",)]

    run(main())
