"""Drop notice: a run that accepts nothing says so at once, with reasons and samples; a healthy one says nothing."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from openrlhf_tir.errors import SUSPENDED
from openrlhf_tir.pipeline.drop_notice import AGAIN_AFTER_S, FIRST_AFTER_S, DropNotice
from openrlhf_tir.types import KEEP, Group, GroupKey, GroupState, Segment, Task, Trajectory, Verdict
from tests.pipeline.fakes import group_of

B = 4


class Rollout:
    """Payloads are the groups themselves."""

    async def fetch(self, payloads):
        if "lost" in payloads:
            raise OSError("the node is gone")
        return payloads


def sampled(text: str, reward: float) -> Group:
    ids = np.zeros(1, np.int32)
    segment = Segment("model", ids, np.zeros(1, np.float32), ids, text)
    return Group(GroupKey(0, 0), Task("Q: 1+1?", "2"), [Trajectory(0, ids, [segment], reward=reward)])


class World:
    def __init__(self) -> None:
        self.said: list[list[str]] = []
        self.notice = DropNotice(B, Rollout(), lambda lines: self.said.append(list(lines)))

    def drop(self, reason: str, payload="lost") -> None:
        meta = group_of(GroupKey(0, 0), 0, Verdict(False, reason))[0]
        self.notice.ended(GroupState.FILTERED, meta, payload, None)

    def accept(self) -> None:
        self.notice.ended(GroupState.BUFFERED, group_of(GroupKey(0, 0), 0, KEEP)[0], None, None)


@pytest.fixture
async def world():
    return World()


async def test_nothing_accepted_ever_is_said_after_a_batch_or_after_seconds(world):
    now = asyncio.get_running_loop().time()
    assert not world.notice.is_due(now + 1000)
    world.drop("accuracy_low")
    assert not world.notice.is_due(now + 1)
    assert world.notice.is_due(now + FIRST_AFTER_S + 1), "one group is enough when they are slow"
    for _ in range(B - 1):
        world.drop("accuracy_low")
    assert world.notice.is_due(now + 1), "a batch of them is enough when they are fast"
    assert FIRST_AFTER_S < 45, "with the look and the fetch it is said within a minute"


async def test_after_an_accepted_group_two_batches_in_a_row_are_bad_luck_no_more(world):
    world.accept()
    now = asyncio.get_running_loop().time()
    for _ in range(2 * B - 1):
        world.drop("accuracy_high")
    assert not world.notice.is_due(now + 1000)
    world.drop("accuracy_high")
    assert not world.notice.is_due(now + 1) and world.notice.is_due(now + FIRST_AFTER_S + 1)
    world.accept()
    assert not world.notice.is_due(now + 1000)


async def test_it_is_said_again_when_twice_as_many_were_dropped_and_not_at_once(world):
    now = asyncio.get_running_loop().time()
    for _ in range(B):
        world.drop("accuracy_low")
    await world.notice.print_now(now)
    for _ in range(B - 1):
        world.drop("accuracy_low")
    assert not world.notice.is_due(now + AGAIN_AFTER_S)
    world.drop("accuracy_low")
    assert not world.notice.is_due(now + AGAIN_AFTER_S - 1) and world.notice.is_due(now + AGAIN_AFTER_S)


async def test_it_names_the_reasons_and_shows_three_samples_of_different_groups(world):
    world.drop("accuracy_low", sampled("first", 0.0))
    world.drop("accuracy_low", sampled("second", 0.0))
    world.drop("too_long", sampled("third\x1b[2J", 0.5))
    world.notice.ended(GroupState.REQUEUED, None, None, "env_error")
    world.notice.ended(GroupState.REQUEUED, None, None, SUSPENDED)
    await world.notice.print_now(0.0)
    (lines,) = world.said
    text = "\n".join(lines)
    assert re.search(r" 4 .*\(accuracy_low 2, too_long 1, .*env_error 1\)", lines[0])
    assert text.count("'Q: 1+1?'") == 3
    for sampled_text, reward in (("'first'", "0"), ("'second'", "0"), ("third", "0.5")):
        response = next(i for i, line in enumerate(lines) if sampled_text in line)
        assert re.search(rf"\breward {re.escape(reward)};.*'2'", "\n".join(lines[response - 2 : response]))


async def test_it_is_said_without_samples_when_their_node_is_gone(world):
    world.drop("accuracy_low", "lost")
    await world.notice.print_now(0.0)
    assert len(world.said) == 1 and len(world.said[0]) == 1


async def test_an_accepted_group_takes_the_notice_back(world):
    world.drop("accuracy_low")
    await world.notice.print_now(0.0)
    world.accept()
    world.accept()
    assert world.said[1:] == [[]]
