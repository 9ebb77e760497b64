"""Restarts are counted since the newest checkpoint."""

from openrlhf_tir.waiting.restart_count import RestartCount


def test_no_more_restarts_than_allowed_without_a_new_checkpoint():
    restarts = RestartCount(2, lambda: "step_8")
    assert [restarts.take() for _ in range(4)] == [True, True, False, False]
    assert restarts.used == 2


def test_a_new_checkpoint_gives_all_restarts_back():
    newest = iter(["step_8", "step_8", "step_16", None, "step_16"])
    restarts = RestartCount(1, lambda: next(newest))
    assert [restarts.take() for _ in range(5)] == [True, False, True, False, False]


def test_none_is_allowed():
    assert not RestartCount(0, lambda: None).take()
