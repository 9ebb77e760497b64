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
