"""What the learner sends in a broadcast: the weights that a push by file would hold, a bucket at a time; what befalls
the group is an answer."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_rank")]  # slow: importing torch and deepspeed


def model():
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(60, 60) for _ in range(6)], torch.nn.Linear(60, 3000, bias=False))
    return layers.bfloat16()


def broadcast(sender, bucket_bytes: int):
    from openrlhf_tir.learner.pushes.broadcast import broadcast_weights

    return broadcast_weights(model(), "push", sender, rank=0, bucket_bytes=bucket_bytes)


def test_it_is_what_a_file_would_hold_and_no_bucket_is_larger_than_asked_but_for_one_tensor(tmp_path):
    from openrlhf_tir.learner.weights_file import write_weights
    from openrlhf_tir.weights.broadcast.receiver import Receiver
    from openrlhf_tir.weights.broadcast.sender import Sender

    sender, receiver, got = Sender(), Receiver(), []
    meeting = sender.open("gloo", "127.0.0.1", 1, 60.0)
    with ThreadPoolExecutor(1) as beside:
        received = beside.submit(receiver.receive, meeting, 1, "push", got.append, got.clear)
        sent = broadcast(sender, 16_000)
    assert sent.digest == received.result().digest == write_weights(model(), tmp_path / "file", rank=0)
    sizes = [sum(t.nbytes for _, t in bucket) for bucket in got]
    assert len(sizes) == 4 and max(sizes[:-1]) <= 16_000 < sizes[-1] == 60 * 3000 * 2
    receiver.leave()
    sender.close()


def test_a_group_that_does_not_meet_is_an_answer_and_the_gathering_goes_to_its_end(monkeypatch):
    """The other ranks take part in it: rank 0 may not leave them alone."""
    from openrlhf_tir.learner import weights_file
    from openrlhf_tir.weights.broadcast.sender import Sender

    gathered, gathering = [], weights_file._gathered

    def counted(*args):
        for bucket in gathering(*args):
            gathered.append(len(bucket))
            yield bucket

    monkeypatch.setattr(weights_file, "_gathered", counted)
    sender = Sender()
    sender.open("gloo", "127.0.0.1", 1, 2.0)
    assert re.search(r"\b1 \w+ 1 .*timeouts\.push_s", broadcast(sender, 16_000).fault)
    assert sum(gathered) == 13
    sender.close()
