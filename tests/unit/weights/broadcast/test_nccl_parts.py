"""What the nccl group asks of vLLM is there under these names. Nothing is sent: that takes GPUs; none has run it."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

pytestmark = pytest.mark.slow  # importing vllm


def test_vllms_communicator_takes_what_the_group_gives_it():
    import torch
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.device_communicators.pynccl_wrapper import ncclDataTypeEnum
    from vllm.distributed.utils import StatelessProcessGroup

    assert [f.name for f in dataclasses.fields(StatelessProcessGroup)][:3] == ["rank", "world_size", "store"]
    assert [*inspect.signature(PyNcclCommunicator.__init__).parameters][1:3] == ["group", "device"]
    assert [*inspect.signature(PyNcclCommunicator.broadcast).parameters][1:] == ["tensor", "src", "stream"]
    assert callable(PyNcclCommunicator.destroy)
    assert ncclDataTypeEnum.from_torch(torch.uint8) == ncclDataTypeEnum.ncclUint8


def test_both_groups_have_one_interface():
    from openrlhf_tir.weights.broadcast.group import GROUPS, Group

    for made in GROUPS.values():
        assert issubclass(made, Group) and not inspect.isabstract(made) and isinstance(made.overlaps, bool)
        for name in ("_connect", "_broadcast", "_close"):
            assert inspect.signature(getattr(made, name)) == inspect.signature(getattr(Group, name))


def test_a_bucket_arrives_when_the_callers_stream_is_through_with_its_memory(monkeypatch):
    """vLLM's worker has a stream of its own, which may still load from the bucket before, whose memory this one has
    been given; NCCL writes on another."""
    import torch

    from openrlhf_tir.pushes import BroadcastRendezvous
    from openrlhf_tir.weights.broadcast.group import NcclGroup

    events = []

    class Stream:
        def synchronize(self):
            events.append("the caller's copies are through")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    group = NcclGroup(BroadcastRendezvous("nccl", "127.0.0.1", 1, 1, 5.0), 1, None)
    group._broadcast = lambda buffer: events.append("a bucket arrives")
    group.start(torch.empty(0))
    group.join()
    assert events == ["the caller's copies are through", "a bucket arrives"]
