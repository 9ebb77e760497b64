"""A hub that cannot be reached is no wrong name, and the other way round."""

from __future__ import annotations

import socket

import datasets
import pytest

from openrlhf_tir.data.hub import OFFLINE_VARIABLES, fault_of
from openrlhf_tir.data.rows import read_rows
from openrlhf_tir.errors import ConfigError, Unavailable


class OfflineModeIsEnabled(ConnectionError):
    """As huggingface_hub's."""


def because(error, *causes):
    """`error`, raised from the first of `causes`, which was raised from the second, and so on."""
    cause = because(*causes) if causes else None
    try:
        raise error from cause
    except Exception as e:
        return e


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (because(OSError("cannot load"), ConnectionRefusedError(111, "refused")), Unavailable),
        (because(OSError("cannot load"), RuntimeError("client"), socket.gaierror(-3, "name resolution")), Unavailable),
        (TimeoutError("read"), Unavailable),
        (because(OSError("no such repository"), ValueError("404")), ConfigError),
        (because(OSError("not in the cache"), OfflineModeIsEnabled("offline")), ConfigError),
    ],
)
def test_the_causes_tell_the_network_from_the_name(error, kind):
    assert fault_of(error) is kind


def test_a_data_set_of_a_hub_that_does_not_answer_may_be_had_later(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for variable in OFFLINE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(Unavailable, match="somebody/something"):
        list(read_rows("somebody/something", "train"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        list(read_rows("somebody/something", "train"))
