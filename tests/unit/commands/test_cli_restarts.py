"""Restarts of a died run: resumed, bounded, and not for mistakes."""

from openrlhf_tir.commands.restarts import run_with_restarts


def calls(codes, max_restarts):
    seen, codes = [], iter(codes)

    def launch(command):
        seen.append("--train.resume" in command)
        return next(codes)

    return run_with_restarts(["train", "--run-dir", "x"], max_restarts, launch), seen


def test_a_died_run_is_resumed_until_it_ends_well():
    assert calls([-9, 1, 0], 5) == (0, [False, True, True])


def test_restarts_are_bounded():
    assert calls([-9, -9, -9], 2) == (-9, [False, True, True])


def test_a_mistake_is_not_tried_again():
    assert calls([2], 3) == (2, [False])
