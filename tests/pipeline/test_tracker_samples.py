"""Tracker samples: an accepted and a dropped response, each group once, indented so that it stays text."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from openrlhf_tir.pipeline.tracker_samples import ACCEPTED, DROPPED, TrackerSamples
from openrlhf_tir.types import KEEP, BatchItem, Group, GroupKey, Segment, Task, Trajectory, Verdict
from tests.pipeline.fakes import group_of


def sampled(prompt: int, *texts: tuple[str, float]) -> Group:
    ids = np.zeros(1, np.int32)
    members = [
        Trajectory(i, ids, [Segment("model", ids, np.zeros(1, np.float32), ids, text)], reward=reward)
        for i, (text, reward) in enumerate(texts)
    ]
    return Group(GroupKey(0, prompt), Task("Q: 1+1?", "2"), members)


class Rollout:
    async def fetch(self, payloads):
        return payloads


async def test_each_group_is_shown_once_with_its_best_response():
    put = []
    accepted = group_of(GroupKey(0, 1), 0, KEEP)[0]
    dropped = group_of(GroupKey(0, 2), 0, Verdict(False, "too_long"))[0]
    item = BatchItem(accepted, sampled(1, ("worse", 0.0), ("better\n# no heading", 1.0)))
    scheduler = SimpleNamespace(version=3, buffered=[SimpleNamespace(item=item)], current_batch=[])
    notice = SimpleNamespace(latest=("too_long", dropped, sampled(2, ("endless", 0.0))))
    samples = TrackerSamples(scheduler, notice, Rollout(), lambda step, texts: put.append((step, texts)))
    await samples.look()
    await samples.look()
    ((step, texts),) = put
    assert step == 3 and set(texts) == {ACCEPTED, DROPPED}
    assert "    Q: 1+1?better\n    # no heading" in texts[ACCEPTED] and "rewards of the group: 0, 1" in texts[ACCEPTED]
    assert texts[DROPPED].startswith("**too_long**") and "endless" in texts[DROPPED]
    notice.latest = ("too_long", group_of(GroupKey(0, 5), 0, Verdict(False, "too_long"))[0], sampled(5, ("more", 0.0)))
    await samples.look()
    assert set(put[1][1]) == {DROPPED}, "the accepted one is still the same"


async def test_nothing_is_put_while_there_is_nothing():
    put = []
    scheduler = SimpleNamespace(version=0, buffered=[], current_batch=[])
    await TrackerSamples(scheduler, SimpleNamespace(latest=None), Rollout(), lambda *a: put.append(a)).look()
    assert put == []
