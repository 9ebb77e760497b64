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


def test_a_restart_may_start_anew_and_takes_a_named_checkpoint_once():
    """Before the first checkpoint there is nothing to resume; after it `latest` is newer than the one that was asked for by name."""

    def commands(resume_from):
        seen, codes = [], iter([-9, 0])

        def launch(command):
            seen.append(command)
            return next(codes)

        run_with_restarts(["train", "--train.resume_from", resume_from], 3, launch, resume_from=resume_from)
        return seen

    _, again = commands("step_000010")
    anyway = ["--train.resume", "true", "--train.resume_or_start", "true", "--train.new_ledger", "false"]
    assert again[-8:] == [*anyway, "--train.resume_from", "latest"]
    _, again = commands("newest_whole")
    assert again[-6:] == anyway
