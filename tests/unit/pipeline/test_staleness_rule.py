"""The arithmetic of gate and surplus, worked by hand. With no batch ahead a group is due at its dispatch version."""

from __future__ import annotations

from openrlhf_tir.pipeline.scheduler import InFlightGroup, StalenessRule
from openrlhf_tir.types import GroupKey

RULE = StalenessRule(batch_groups=2)


def groups_due(*deadlines: int) -> list[InFlightGroup]:
    """Groups 1, 2, 3, ... with these training deadlines."""
    return [InFlightGroup(GroupKey(0, i), sequence_number=i, version=due) for i, due in enumerate(deadlines, 1)]


def test_a_group_is_due_as_many_batches_after_its_dispatch_as_staleness_allows():
    """Two batches ahead of four updates each: dispatched at version 3, due at 11."""
    (group,) = groups_due(3)
    assert StalenessRule(batch_groups=2, updates_per_batch=4, batches_ahead=2).due_version(group) == 11


def test_the_gate_waits_for_a_group_that_must_be_trained_at_this_version():
    assert not RULE.gate_is_open(3, [], [3])
    assert RULE.gate_is_open(3, [], [4])


def test_the_gate_is_shut_when_more_groups_are_due_than_the_remaining_steps_can_take():
    """At version 1, four groups due at 2 remain: the step at version 2 takes two, the other two would be too old."""
    assert not RULE.gate_is_open(1, [1, 1], [2, 2, 2, 2])
    assert RULE.gate_is_open(1, [1, 1], [2, 2])
    assert RULE.gate_is_open(1, [1, 1], [2, 2, 3, 3])
    assert not RULE.gate_is_open(1, [1, 1], [2, 2, 3, 3, 3])


def test_the_gate_counts_what_the_batch_leaves_in_the_buffer():
    """Two of three buffered groups go now; the third and one rolling group fill the step at 2, a second fits not."""
    assert RULE.gate_is_open(1, [2, 2, 2], [2])
    assert not RULE.gate_is_open(1, [2, 2, 2], [2, 2])


def test_the_gate_counts_only_rolling_groups_that_may_be_accepted():
    """Ten groups due at 2 roll, of which two at most will be accepted. One that is due now must end, likely or not."""
    assert RULE.gate_is_open(1, [1, 1], [2] * 10, max_accepted=lambda n: n // 5)
    assert not RULE.gate_is_open(1, [1, 1], [2] * 11, max_accepted=lambda n: -(-n // 5))
    assert not RULE.gate_is_open(1, [1, 1], [1], max_accepted=lambda n: 0)


def test_surplus_is_what_no_order_of_steps_can_train():
    """At version 1 there is room for 2 due at 1, for 4 due by 2, for 6 due by 3. The youngest of a deadline go."""
    assert RULE.surplus(1, groups_due(1, 1, 2, 2, 3, 3)) == ()
    assert RULE.surplus(1, groups_due(1, 1, 1, 2, 2, 3)) == (3,)
    assert RULE.surplus(1, groups_due(2, 2, 2, 2, 2, 3, 3, 3)) == (5, 8)


def test_surplus_does_not_shut_the_gate():
    """Three are due now: the third is lost whether the learner waits or not."""
    assert RULE.gate_is_open(1, [1, 1, 1], [])
    assert RULE.gate_is_open(1, [1, 1, 1, 2, 2], [])
    assert not RULE.gate_is_open(1, [1, 1, 1, 2, 2], [2])
