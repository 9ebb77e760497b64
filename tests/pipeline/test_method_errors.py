"""A method's own code that fails: one bad row is a failed prompt, a bad function ends the run by name."""

from __future__ import annotations

from openrlhf_tir.errors import MethodBroken
from tests.pipeline.fakes import FakeLearner, FakeRollout, group_of, pipeline, what_stops
from tests.pipeline.fakes import run as run_virtual


class BrokenFor(FakeRollout):
    """Every sample of a prompt fails by the reward when `broken(prompt)`."""

    def __init__(self, broken, reason="reward_error"):
        super().__init__()
        self.broken, self.reason = broken, reason

    async def run_group(self, key, task):
        meta, group = await super().run_group(key, task)
        if self.broken(key.prompt):
            meta, group = group_of(key, self.version, failed=self.reason)
            meta.failures = {self.reason: 2}
            meta.why = {self.reason: "reward.name = 'mine.py:score': mine.py:4: KeyError: 'x'."}
        return meta, group


def test_a_reward_that_fails_every_group_ends_the_run_with_its_last_error(tmp_path):
    p = pipeline(tmp_path, rollout=BrokenFor(lambda prompt: True))
    said = what_stops(p, MethodBroken)
    assert "3 prompts in a row failed as 'reward_error'" in said and "mine.py:4: KeyError: 'x'" in said


def test_a_reward_that_fails_every_group_is_named_however_small_the_batch(tmp_path):
    """B = 1, one group at a time, no second tries: two failed in a row are one short of reward.max_failed_groups."""
    p = pipeline(tmp_path, mode="sync", B=1, reissues=0, rollout=BrokenFor(lambda prompt: True))
    assert "3 prompts in a row failed as 'reward_error'" in what_stops(p, MethodBroken)


def test_a_row_that_the_reward_does_not_expect_fails_alone(tmp_path):
    learner = FakeLearner()
    p = pipeline(tmp_path, rollout=BrokenFor(lambda prompt: prompt == 5), learner=learner, max_steps=6, reissues=2)
    run_virtual(p.run())
    assert p.version == 6 and 5 not in {key.prompt for _, key, _ in learner.trained}
