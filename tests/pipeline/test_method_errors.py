"""User code that fails: before the first update it ends the run, later a bad row is a failed prompt, and a bad function
ends the run by name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from openrlhf_tir.errors import USER_CODE_REASONS, MethodBroken
from tests.pipeline.fakes import FakeLearner, FakeRollout, group_of, pipeline, what_stops
from tests.pipeline.fakes import run as run_virtual


class BrokenFor(FakeRollout):
    """Every sample of a prompt fails by user code when `broken(prompt)`, from the version `since` on."""

    def __init__(self, broken, reason="reward_error", since=1):
        super().__init__()
        self.broken, self.reason, self.since = broken, reason, since
        self.failed = []

    async def run_group(self, key, task):
        meta, group = await super().run_group(key, task)
        if self.version >= self.since and self.broken(key.prompt):
            self.failed.append(key)
            meta, group = group_of(key, self.version, failed=self.reason)
            why = {self.reason: "reward.name = 'mine.py:score': mine.py:4: KeyError: 'x'."}
            meta = replace(meta, failures={self.reason: 2}, why=why)
        return meta, group


@pytest.mark.parametrize("reason", sorted(USER_CODE_REASONS))
def test_the_first_group_that_user_code_fails_before_the_first_update_ends_the_run(tmp_path, reason):
    rollout = BrokenFor(lambda prompt: prompt == 1, reason, since=0)
    p = pipeline(tmp_path, rollout=rollout)
    said = what_stops(p, MethodBroken)
    assert reason in said and "mine.py:4: KeyError: 'x'" in said
    assert p.version == 0 and len(rollout.failed) == 1


def test_a_reward_that_fails_every_group_ends_the_run_with_its_last_error(tmp_path):
    p = pipeline(tmp_path, rollout=BrokenFor(lambda prompt: True))
    said = what_stops(p, MethodBroken)
    assert re.search(r"(?s) 3 .*'reward_error'.*mine\.py:4: KeyError: 'x'", said)
    assert p.version >= 1


def test_a_reward_that_fails_every_group_is_named_however_small_the_batch(tmp_path):
    p = pipeline(tmp_path, mode="sync", B=1, retries=0, rollout=BrokenFor(lambda prompt: True))
    assert re.search(r" 3 .*'reward_error'", what_stops(p, MethodBroken))


def test_a_row_that_the_reward_does_not_expect_fails_alone_and_is_not_tried_again(tmp_path):
    learner, rollout = FakeLearner(), BrokenFor(lambda prompt: prompt == 15)
    p = pipeline(tmp_path, rollout=rollout, learner=learner, max_steps=12, retries=2)
    run_virtual(p.run())
    assert p.version == 12 and 15 not in {key.prompt for _, key, _ in learner.trained}
    assert [key.attempt for key in rollout.failed] == [0]


def test_after_a_restart_of_the_learner_a_bad_row_fails_alone_as_it_did_before(tmp_path):
    """This process has its user code already: nobody can have edited it, so the attempt after is no start."""
    before = pipeline(tmp_path, max_steps=2)
    run_virtual(before.run())
    rollout = BrokenFor(lambda prompt: prompt == 1, since=0)
    after = pipeline(tmp_path / "after", rollout=rollout, max_steps=2, method_errors=before.method_errors)
    run_virtual(after.run())
    assert after.version == 2 and len(rollout.failed) == 1
