"""Broadcasts between a sender and receivers over gloo: the same bits, the digest of a file, and an end for all when one
cannot go on."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from ..torch_processes import forked_with

pytest.importorskip("torch")
pytestmark = pytest.mark.slow  # importing torch


@pytest.fixture(scope="module")
def processes():
    with forked_with("tests.unit.weights.broadcast.sides") as context:
        yield context


@pytest.fixture
def hub(request):
    from .sides import Hub

    made = []

    def make(*args) -> Hub:
        made.append(Hub(*args))
        return made[-1]

    yield make
    for each in made:
        each.close()
    # one that comes back from gloo while the interpreter ends would take the process with it
    for thread in [t for t in threading.enumerate() if t.name == "broadcast bucket"]:
        thread.join()


def test_all_receivers_hold_the_senders_bits_and_all_tell_the_digest_of_a_file_of_them(hub):
    from openrlhf_tir.weights.digest import tensors_digest

    from .sides import equal, weights

    two = hub(2)
    for n in (1, 2):  # the second goes through the group that the first one made
        tensors = weights(seed=n)
        sent, received = two.push(f"push{n}", tensors)
        assert {sent.digest, *(r.digest for r in received)} == {tensors_digest(tensors.items())}
        assert sent.nbytes == received[0].nbytes == sum(t.numel() * t.element_size() for t in tensors.values())
        assert all(equal(side, tensors) and side.undone == 0 for side in two.sides), (
            "views of a bucket stay as they are while others arrive"
        )


def test_who_does_not_come_is_named_and_the_others_are_not_kept_waiting_for_it(hub):
    from .sides import weights

    three = hub(3, 8.0)
    received = three.receive("push1", three.sides[:2])
    sent = three.send("push1", weights()).result()
    assert re.search(r"\b3 \w+ 3 .*timeouts\.push_s / 10, 60 s\) = 8 s", sent.fault) and sent.digest is None
    assert all(re.search(r"\b3 \w+ 3 ", r.result().fault) for r in received)
    assert [side.undone for side in three.sides] == [1, 1, 0]


def test_a_push_that_is_ended_is_over_for_receivers_while_the_sender_still_gathers(hub):
    from .sides import equal, weights

    two, third, stopped = hub(2), threading.Event(), threading.Event()

    def between(n: int) -> None:
        if n == 3:
            third.set()
            assert stopped.wait(300)

    received = two.receive("push1")
    sending = two.send("push1", weights(), between)
    assert third.wait(300)
    two.sender.end("push1", "rollout-1 died")
    assert all("rollout-1 died" in r.result().fault for r in received)
    assert not sending.done() and all(not side.got and side.undone == 1 for side in two.sides), (
        "what came is nobody's weights"
    )
    stopped.set()
    assert "rollout-1 died" in sending.result().fault

    two.open()
    tensors = weights(1)
    sent, received = two.push("push2", tensors)
    assert sent.digest == received[0].digest == received[1].digest and all(equal(side, tensors) for side in two.sides)


def test_a_push_that_is_ended_before_it_begins_keeps_nobody_waiting(hub):
    from .sides import weights

    three = hub(3)
    received = three.receive("push1", three.sides[:2])
    three.sender.end("push1", "rollout-2 died")  # the learner's call is still on its way
    assert "rollout-2 died" in three.send("push1", weights()).result().fault
    assert all("rollout-2 died" in r.result().fault for r in received)

    three.open()
    assert three.push("push2", weights())[0].digest
    received = three.receive("push3", three.sides[:2])
    three.sender.end("push3", "rollout-2 died again")  # in a group that has met
    assert "rollout-2 died again" in three.send("push3", weights()).result().fault
    assert all("rollout-2 died again" in r.result().fault for r in received)


def test_who_waits_for_the_connection_of_one_that_came_and_died_is_told_that_the_push_has_ended(hub):
    """Both said that they are there; then one of them did not connect. Its death is known to whoever ends the push,
    long before the deadline."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    from .sides import LONG, weights

    two = hub(2)
    received = two.receive("push1", two.sides[:1])
    sending = two.send("push1", weights())
    dying = TCPStore(
        two.meeting.address, two.meeting.port, is_master=False, timeout=timedelta(seconds=LONG), wait_for_workers=False
    )
    dying.set("here/2", "")
    dying.wait(["go"])
    two.sender.end("push1", "rollout-2 died")
    assert "rollout-2 died" in sending.result().fault
    assert "rollout-2 died" in received[0].result().fault and two.sides[0].undone == 1


def test_the_end_of_an_older_push_does_not_reach_the_next(hub):
    from .sides import equal, weights

    one, tensors = hub(1), weights()
    assert one.push("push1", tensors)[0].digest
    one.sender.end("push1", "too late")
    assert one.push("push2", tensors)[0].digest and equal(one.sides[0], tensors)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_loader_that_fails_makes_its_worker_unusable_and_tears_the_push_of_the_others(hub, monkeypatch, deaf):
    """A sender that feels the connection break before it hears why says why all the same."""
    import torch

    from openrlhf_tir.weights.broadcast.group import Group

    from .sides import weights

    two, listen = hub(2), Group._listen
    if deaf:
        monkeypatch.setattr(Group, "_listen", lambda self, push: self.rank and listen(self, push))

    def refuse(tensors) -> None:
        raise ValueError("no such layer")

    two.sides[1].load = refuse
    more_than_a_socket_holds = torch.zeros(1 << 26, dtype=torch.uint8)
    sent, (well, failed) = two.push("push1", {**weights(), "z": more_than_a_socket_holds})
    assert failed.unusable and "ValueError: no such layer" in failed.fault
    assert not well.unusable and re.search(r"\b2 .*: no such layer", well.fault) and well.digest is None
    assert "no such layer" in sent.fault


def test_a_torn_push_that_cannot_be_undone_makes_its_worker_unusable(hub):
    from .sides import weights

    one = hub(2, 8.0)

    def undo() -> None:
        raise RuntimeError("layers are gone")

    one.sides[0].undo = undo
    received = one.receive("push1", one.sides[:1])
    one.send("push1", weights()).result()
    assert (
        received[0].result().unusable
        and "timeouts.push_s / 10" in received[0].result().fault
        and "layers are gone" in received[0].result().fault
    )


def test_a_learner_that_is_gone_is_no_wait(hub, processes):
    from .sides import LONG, Side, learner

    ours, theirs = processes.Pipe()
    process = processes.Process(target=learner, args=(theirs,))
    process.start()
    assert ours.poll(LONG)
    received = Side(1).receive(ours.recv(), "push")  # it dies in the middle of it
    assert received.digest is None and "timeouts.push_s / 10" not in received.fault
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("fault", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_receiver_that_dies_or_hangs_costs_the_others_that_push_only(fault, processes):
    from openrlhf_tir.pushes import BroadcastResult
    from openrlhf_tir.weights.broadcast.sender import Sender
    from openrlhf_tir.weights.digest import tensors_digest

    from .sides import LONG, buckets, gathered, weights, worker

    sender, tensors = Sender(), weights()
    meeting = sender.open("gloo", "127.0.0.1", 3, LONG if fault == signal.SIGKILL else 3.0)
    pipes, workers = [], []
    for rank in (1, 2, 3):
        ours, theirs = processes.Pipe()
        process = processes.Process(target=worker, args=(rank, meeting, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        workers.append(process)

    def between(n: int) -> None:
        if n == 2:  # the first bucket is through everywhere
            for pipe in pipes:
                assert pipe.poll(LONG) and pipe.recv() == "bucket"
            os.kill(workers[1].pid, fault)

    def answer(pipe) -> BroadcastResult:
        while pipe.poll(LONG):
            if (said := pipe.recv()) != "bucket":
                return BroadcastResult(*said)
        raise AssertionError("no answer")

    try:
        sent = sender.send("push", buckets(tensors), gathered(tensors, between))
        assert sent.digest is None and sent.fault
        # they are told, though nobody told the sender; or had it all before
        for said in (answer(pipe) for pipe in (pipes[0], pipes[2])):
            assert said.fault or said.digest == tensors_digest(tensors.items())
        assert (
            sent.fault.count("timeouts.push_s / 10, 60 s) = 3 s")
            + sent.fault.count("Connection")
            + sent.fault.count("timed out")
            >= 1
        )
    finally:
        sender.close()
        for process in workers:
            process.kill()
            process.join()
