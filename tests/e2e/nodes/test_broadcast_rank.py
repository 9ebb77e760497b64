"""A learner rank's process under Ray: the end of a broadcast reaches it while it is in one."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]
NEVER = 1e6
"""Seconds: only who is told ends."""
SOON = 600
"""Seconds, for Ray to start a process on a busy machine."""


@pytest.fixture(scope="module")
def rank(tmp_path_factory):
    import ray

    from openrlhf_tir.cluster.learner_group import THREADS, LearnerRank
    from openrlhf_tir.cluster.ray_session import ray_session
    from openrlhf_tir.config import Config
    from openrlhf_tir.pushes import BroadcastRendezvous, BroadcastResult
    from openrlhf_tir.weights.broadcast.sender import Sender

    class Inner:
        """Zero3Rank's part in a broadcast, without a model."""

        def __init__(self) -> None:
            self.sender = Sender()

        def open_broadcast(self, address: str, receivers: int) -> BroadcastRendezvous:
            return self.sender.open("gloo", address, receivers, NEVER)

        def broadcast(self, push: str) -> BroadcastResult:
            return self.sender.send(push, [], [])

    class Rank(LearnerRank):
        def start(self) -> None:
            self.inner = Inner()

    with ray_session(Config(run_dir=tmp_path_factory.mktemp("ray"))):
        actor = ray.remote(concurrency_groups=THREADS)(Rank).options(num_cpus=1).remote(0, 1)
        ray.get(actor.start.remote(), timeout=SOON)
        yield actor


def test_a_rank_that_waits_for_an_engine_is_told_that_it_will_not_come(rank):
    import ray

    meeting = ray.get(rank.open_broadcast.remote(1), timeout=SOON)
    assert meeting.address == ray.util.get_node_ip_address() and meeting.port > 0
    sending = rank.call.remote("broadcast", "push1")
    ray.get(rank.end_broadcast.remote("push1", "rollout-0 is gone"), timeout=SOON)
    assert ray.get(sending, timeout=SOON).fault == "rollout-0 is gone"
