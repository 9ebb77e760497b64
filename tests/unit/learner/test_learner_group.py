"""A dead or silent learner rank is told from a broken one, whichever peer complains first. Ray's errors, no Ray."""

from __future__ import annotations

import asyncio
import socket

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.simulation import virtual_loop
from openrlhf_tir.waiting.deadlines import Deadline

pytestmark = pytest.mark.slow  # importing ray


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    from openrlhf_tir.cluster import learner_group

    monkeypatch.setattr(learner_group, "DEATH_NOTICE_S", 0.2)


def answers(*calls):
    """What LearnerGroup._all makes of calls: (seconds until it ends, result or error)."""
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    async def call(seconds, result):
        await asyncio.sleep(seconds)
        if isinstance(result, Exception):
            raise result
        return result

    async def run():
        return await LearnerGroup(Config(), [], None)._all(
            [call(*c) for c in calls], "step", Deadline(1.0, "timeouts.learner_s")
        )

    return virtual_loop.run(run())


def died():
    import ray

    return ray.exceptions.RayActorError(error_msg="the process was killed")


def test_results_come_in_the_order_of_the_ranks():
    assert answers((0.02, "rank 0"), (0, "rank 1")) == ["rank 0", "rank 1"]


def test_a_rank_that_loses_its_peer_complains_first_and_the_death_is_still_seen():
    from openrlhf_tir.errors import LearnerDied

    with pytest.raises(LearnerDied, match="the process was killed"):
        answers((0, RuntimeError("Connection closed by peer")), (0.05, died()))


def test_the_others_are_not_waited_for_when_they_hang_in_a_collective():
    from openrlhf_tir.errors import LearnerDied

    with pytest.raises(LearnerDied):
        answers((0, died()), (1e6, None))


def test_an_error_of_a_living_rank_is_raised_as_it_is():
    with pytest.raises(ValueError, match="a bug"):
        answers((0, ValueError("a bug")), (1e6, None))


def test_a_rank_that_hangs_is_given_up_and_named():
    from openrlhf_tir.errors import LearnerDied

    with pytest.raises(
        LearnerDied,
        match=r"'step' .*timeouts\.learner_s = 1 s\. .* 1\.",
    ):
        answers((0, "rank 0"), (1e6, None), (0, "rank 2"))


def lost(kind: str, wrapped: bool = False):
    import ray

    error = {
        "killed for memory": ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory."),
        "lost object": ray.exceptions.ObjectLostError("ab" * 28, None, ""),
        "owner died": ray.exceptions.OwnerDiedError("ab" * 28, None, ""),
        "node died": ray.exceptions.NodeDiedError("node"),
        "crashed": ray.exceptions.WorkerCrashedError(),
        "unreachable": ray.exceptions.ActorUnavailableError("rpc", None),
    }[kind]
    return ray.exceptions.RayTaskError("step", "Traceback", error) if wrapped else error


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "kind", ["killed for memory", "lost object", "owner died", "node died", "crashed", "unreachable"]
)
def test_what_ray_kills_or_loses_is_a_death(kind, wrapped, monkeypatch):
    from openrlhf_tir.errors import LearnerDied

    monkeypatch.setattr("openrlhf_tir.cluster.lost._answers", {})
    error = lost(kind, wrapped)
    with pytest.raises(LearnerDied, match=rf"\b{type(lost(kind)).__name__}\b") as e:
        answers((0, error), (0, "rank 1"))
    assert e.value.__cause__ is error


def test_an_error_that_the_code_itself_raised_under_ray_is_no_death():
    import ray

    with pytest.raises(ray.exceptions.RayTaskError):
        answers((0, ray.exceptions.RayTaskError("step", "Traceback", ValueError("a bug"))), (0, "rank 1"))


def test_a_death_is_told_in_one_line_of_bounded_length_but_for_the_memory_monitors():
    import ray

    from openrlhf_tir.cluster.ray_faults import death

    said = death(
        ray.exceptions.OutOfMemoryError(
            "1 worker(s) were killed due to the node running low on memory. " + "PID 1, " * 1000 + "\nmore"
        )
    )
    assert "(OutOfMemoryError: 1 worker(s) were killed" in said
    assert "\n" not in said
    assert len(death(ray.exceptions.RayActorError(error_msg="a" * 5000))) < 500
    assert death(ray.exceptions.WorkerCrashedError()) and death(ValueError("a bug")) is None


def test_a_broadcast_is_opened_when_rank_0_is_through_with_what_it_does():
    """It exports for longer than a broadcast's peers wait for each other."""
    from types import SimpleNamespace

    from openrlhf_tir.cluster.learner_group import LearnerGroup
    from openrlhf_tir.pushes import BroadcastRendezvous

    meeting = BroadcastRendezvous("gloo", "10.0.0.1", 5000, 4, 0.05)

    async def opened(receivers: int) -> BroadcastRendezvous:
        await asyncio.sleep(0.3)
        return meeting

    group = LearnerGroup(
        Config(timeouts={"push_s": 0.5, "learner_s": 60}),
        [SimpleNamespace(open_broadcast=SimpleNamespace(remote=opened))],
        None,
    )
    assert virtual_loop.run(group.open_broadcast(4)) == meeting


def test_a_broadcast_is_every_ranks_and_its_meeting_and_its_end_are_rank_0s():
    from types import SimpleNamespace

    from openrlhf_tir.cluster.learner_group import LearnerGroup
    from openrlhf_tir.pushes import BroadcastRendezvous, BroadcastResult

    called, meeting = [], BroadcastRendezvous("gloo", "10.0.0.1", 5000, 4, 60.0)

    def rank(n: int) -> SimpleNamespace:
        async def answer(what, result, *args):
            called.append((n, what, *args))
            return result

        def method(what, result):
            return SimpleNamespace(remote=lambda *args: answer(what, result, *args))

        sent = BroadcastResult("digest", 100) if n == 0 else None
        return SimpleNamespace(
            open_broadcast=method("open", meeting), end_broadcast=method("end", None), call=method("call", sent)
        )

    async def run():
        group = LearnerGroup(Config(), [rank(0), rank(1)], None)
        assert await group.open_broadcast(4) == meeting and await group.broadcast("push1") == BroadcastResult(
            "digest", 100
        )
        await group.end_broadcast("push1", "rollout-1 died")

    virtual_loop.run(run())
    assert called == [
        (0, "open", 4),
        (0, "call", "broadcast", "push1"),
        (1, "call", "broadcast", "push1"),
        (0, "end", "push1", "rollout-1 died"),
    ]


class PartsRank:
    """A rank that notes each call; `answers`: of its methods, None where they hang."""

    def __init__(self, **answers) -> None:
        self.calls, self.answers = [], answers

    def __getattr__(self, method):
        from types import SimpleNamespace

        async def called(*args):
            self.calls.append((method, *args))
            answer = self.answers.get(args[0] if method == "call" else method)
            if isinstance(answer, Exception):
                raise answer
            return answer if answer is not None else await asyncio.sleep(1e6)

        return SimpleNamespace(remote=called)


def parts_group(monkeypatch, **answers):
    from openrlhf_tir.cluster.learner_group import LearnerGroup

    monkeypatch.setattr("ray.put", lambda batch: batch)
    ranks = [PartsRank(**answers) for _ in range(2)]
    return LearnerGroup(Config(timeouts={"learner_s": 0.2}), ranks, None), ranks


def test_the_end_of_a_broadcast_has_the_deadline_of_a_bucket():
    from openrlhf_tir.cluster.learner_group import LearnerGroup
    from openrlhf_tir.errors import LearnerDied

    group = LearnerGroup(Config(timeouts={"push_s": 0.5}), [PartsRank()], None)
    with pytest.raises(LearnerDied, match=r"timeouts\.push_s / 10 = 0\.05 s"):
        virtual_loop.run(asyncio.wait_for(group.end_broadcast("push1", "rollout-1 died"), 60))


def part_of(groups):
    from openrlhf_tir.types import BatchItem, TrainBatch
    from tests.e2e.support.learner_batch import make_batch

    batch = make_batch(groups, 2)
    items = [BatchItem(item.meta, ("reference to", item.meta.key)) for item in batch.items]
    return TrainBatch(batch.step, items, batch.rank_of)


def test_a_step_reports_the_tokens_of_all_its_parts_and_payloads_go_to_every_rank_by_reference(monkeypatch):
    from tests.e2e.support.learner_batch import random_groups

    groups = random_groups(4, 2, 0)
    parts = part_of(groups[:1]), part_of(groups[1:3]), part_of(groups[3:])
    group, ranks = parts_group(monkeypatch, accumulate=True, step={"updates": 1.0})

    async def run():
        for part in parts[:2]:
            await group.accumulate(part)
        assert group.version == 0
        return await group.step(parts[2]), await group.step(parts[2])

    first, second = virtual_loop.run(run())
    assert first.trained_tokens == sum(t.model_tokens for g in groups for t in g.trajectories)
    assert second.trained_tokens == parts[2].num_tokens and (first.version, second.version) == (1, 2)
    for rank in ranks:
        assert [call[0] for call in rank.calls] == ["accumulate", "accumulate", "step", "step"]
        _, light, *payloads = rank.calls[1]
        assert payloads == [("reference to", g.key) for g in groups[1:3]]
        assert [item.payload for item in light.items] == [None, None] and light.rank_of == parts[1].rank_of


@pytest.mark.parametrize("how", ["load", "reload", "fault"])
def test_tokens_of_parts_that_are_void_are_not_reported(monkeypatch, how):
    from tests.e2e.support.learner_batch import random_groups

    part = part_of(random_groups(2, 2, 0))
    group, ranks = parts_group(monkeypatch, accumulate=True, step={"updates": 1.0}, load=3, reload=True)

    async def run():
        await group.accumulate(part)
        if how == "fault":
            ranks[1].answers["accumulate"] = ValueError("a bug")
            with pytest.raises(ValueError, match="a bug"):
                await group.accumulate(part)
        else:
            await (group.load("directory") if how == "load" else group.reload(group.cfg))
        return await group.step(part)

    assert virtual_loop.run(run()).trained_tokens == part.num_tokens


def test_a_rank_that_hangs_or_dies_while_it_accumulates_is_lost_as_in_a_step(monkeypatch):
    from openrlhf_tir.errors import LearnerDied
    from tests.e2e.support.learner_batch import random_groups

    part = part_of(random_groups(2, 2, 0))
    group, ranks = parts_group(monkeypatch, accumulate=True)
    ranks[1].answers = {}
    with pytest.raises(LearnerDied, match=r"'accumulate' .*timeouts\.learner_s.* 1\."):
        virtual_loop.run(group.accumulate(part))
    ranks[1].answers = {"accumulate": died()}
    with pytest.raises(LearnerDied, match="the process was killed"):
        virtual_loop.run(group.accumulate(part))


def test_rank_0_listens_where_it_says_from_the_moment_it_says_so(monkeypatch):
    import ray

    from openrlhf_tir.cluster.learner_group import LearnerRank

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    rank = LearnerRank(0, 2)
    socket.create_connection(rank.address()).close()


def test_an_address_of_ray_that_is_not_the_nodes_own_is_refused_with_the_remedy(monkeypatch):
    import ray

    from openrlhf_tir.cluster.learner_group import LearnerRank
    from openrlhf_tir.errors import ConfigError

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1.*--node-ip-address="):
        LearnerRank(0, 2).address()
