"""A checkpoint holds what was there when it was saved: tensors are copied, or written from where they are."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # importing torch and deepspeed

DEADLINE_S = 300.0
"""Seconds after which a wait is a failure."""


@pytest.fixture
def held_back(monkeypatch):
    """Writing waits until this is set; what waits for the writer then shows."""
    from openrlhf_tir.learner.saved import background

    write, may_write = background._write, threading.Event()

    def later(state: Any, path: Any) -> tuple[int, str]:
        assert may_write.wait(DEADLINE_S)
        return write(state, path)

    monkeypatch.setattr(background, "_write", later)
    yield may_write
    may_write.set()


def changed_after(call, allow: threading.Event, *, waits: bool) -> list[str]:
    """Return the order in which `call` and the writer's permission to write came to their ends.

    A call that `waits` gets a moment in which it could end too early; one that does not is awaited, up to a deadline.
    """
    order = []

    def run() -> None:
        call()
        order.append("settled")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.2 if waits else DEADLINE_S / 2)
    order.append("allowed")
    allow.set()
    thread.join()
    return order


@pytest.mark.parametrize("keeps", [True, False])
def test_a_file_has_the_values_from_before_the_step(tmp_path, held_back, keeps):
    import torch

    from openrlhf_tir.learner.saved.background import BackgroundWriter

    writer = BackgroundWriter(keeps=keeps)
    weights = torch.arange(4.0)
    group = {"lr": 0.1}
    writer.save({"weights": [weights], "group": group}, tmp_path / "file")
    group["lr"] = 0.2  # set before a step, and before `wait_before_change`
    order = changed_after(writer.wait_before_change, held_back, waits=keeps)
    weights.add_(1.0)
    writer.written()
    assert order == (["allowed", "settled"] if keeps else ["settled", "allowed"])
    saved = torch.load(tmp_path / "file", weights_only=True)
    assert saved["group"] == {"lr": 0.1}
    assert saved["weights"][0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_step_waits_also_while_another_thread_waits_for_the_files(tmp_path, held_back):
    """The controller asks for the files from a thread of its own, as soon as they are saved."""
    import torch

    from openrlhf_tir.learner.saved.background import BackgroundWriter

    writer = BackgroundWriter(keeps=True)
    writer.save({"weights": torch.arange(4.0)}, tmp_path / "file")
    asks = threading.Thread(target=writer.written, daemon=True)
    asks.start()
    deadline = time.monotonic() + DEADLINE_S
    while writer._pending:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert changed_after(writer.wait_before_change, held_back, waits=True) == ["allowed", "settled"]
    asks.join()


def test_what_is_kept_shares_memory_unless_it_is_a_part_of_a_larger_tensor():
    import torch

    from openrlhf_tir.learner.saved.background import host_copy

    whole = torch.arange(8.0)
    part = whole[2:4]
    kept = host_copy({"whole": whole, "part": part}, keep=True)
    assert kept["whole"].data_ptr() == whole.data_ptr()
    assert kept["part"].data_ptr() != part.data_ptr() and kept["part"].untyped_storage().nbytes() == part.nbytes
    assert host_copy(whole).data_ptr() != whole.data_ptr()


def test_a_step_calls_settle_before_the_optimizer_changes_anything():
    from openrlhf_tir.config import Config
    from openrlhf_tir.learner.passes import MicroBatchRunner

    called = []
    strategy = SimpleNamespace(
        device="cpu", optimizer_step=lambda *_: called.append("step"), get_grad_norm=lambda model: 1.0
    )
    runner = MicroBatchRunner(Config(), strategy, lambda: called.append("settle"))
    runner.apply(object(), SimpleNamespace(param_groups=[]), 0.1)
    assert called == ["settle", "step"]


def test_a_checkpoint_of_the_model_before_is_written_before_a_rank_gives_that_model_up(
    tmp_path, held_back, monkeypatch
):
    """After fine-tuning a rank takes the run's model. The engine may free its weights in place, so it is asked last."""
    import torch

    from openrlhf_tir.config import Config
    from openrlhf_tir.learner.saved.background import BackgroundWriter
    from openrlhf_tir.learner.zero3 import Zero3Rank

    weights = torch.arange(4.0)
    rank = Zero3Rank.__new__(Zero3Rank)
    rank.writer = BackgroundWriter(keeps=True)
    rank.model = rank.optimizer = rank.average = None
    rank.engine = SimpleNamespace(destroy=weights.zero_)
    rank.auxiliary = SimpleNamespace(destroy=lambda: None)
    rank.exposer = SimpleNamespace(release=lambda: None)
    monkeypatch.setattr(Zero3Rank, "_start", lambda self, cfg: None)
    rank.writer.save({"weights": weights}, tmp_path / "file")
    assert changed_after(lambda: rank.reload(Config()), held_back, waits=True) == ["allowed", "settled"]
    assert list(rank.writer.written()) == [str(tmp_path / "file")]
    assert torch.load(tmp_path / "file", weights_only=True)["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
