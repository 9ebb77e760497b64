"""Budget and gate, by hand."""

import pytest

from openrlhf_tir.errors import ConservationError
from openrlhf_tir.pipeline.budget import Budget, gate_open, surplus_by_deadline


def test_gate_waits_for_a_group_that_must_be_trained_at_this_version():
    assert not gate_open(3, 2, [], [3])
    assert gate_open(3, 2, [], [4])


def test_gate_is_shut_when_more_groups_are_due_than_the_steps_left_can_take():
    """B = 2 at version 1, four groups due at 2 remain: the step at version 2 takes two, the other two were too old."""
    assert not gate_open(1, 2, [1, 1], [2, 2, 2, 2])
    assert gate_open(1, 2, [1, 1], [2, 2])
    assert gate_open(1, 2, [1, 1], [2, 2, 3, 3])
    assert not gate_open(1, 2, [1, 1], [2, 2, 3, 3, 3])


def test_gate_counts_what_the_batch_leaves_in_the_buffer():
    """B = 2: two of three buffered go now; the third and one rolling fill the step at 2, a second one would not fit."""
    assert gate_open(1, 2, [2, 2, 2], [2])
    assert not gate_open(1, 2, [2, 2, 2], [2, 2])


def test_gate_trusts_what_rolling_groups_will_become():
    """Ten groups due at 2 roll, of which two at most will be accepted; but one due now must be over, likely or not."""
    assert gate_open(1, 2, [1, 1], [2] * 10, possible=lambda n: n // 5)
    assert not gate_open(1, 2, [1, 1], [2] * 11, possible=lambda n: -(-n // 5))
    assert not gate_open(1, 2, [1, 1], [1], possible=lambda n: 0)


def test_surplus_is_what_no_order_of_steps_can_train():
    """B = 2 at version 1: room for 2 due at 1, for 4 due by 2, for 6 due by 3."""
    assert surplus_by_deadline(1, 2, [1, 1, 2, 2, 3, 3]) == {}
    assert surplus_by_deadline(1, 2, [1, 1, 1, 2, 2, 3]) == {1: 1}
    assert surplus_by_deadline(1, 2, [2] * 5 + [3] * 3) == {2: 1, 3: 1}


def test_surplus_does_not_shut_the_gate():
    """Three due now, B = 2: the third is lost whether one waits or not."""
    assert gate_open(1, 2, [1, 1, 1], [])
    assert gate_open(1, 2, [1, 1, 1, 2, 2], [])
    assert not gate_open(1, 2, [1, 1, 1, 2, 2], [2])


def test_admission_counts_groups_in_training_until_their_weights_are_pushed():
    budget = Budget(batch_groups=2, max_staleness=0)
    budget.enter()
    budget.enter()
    assert not budget.admits()
    budget.move("rolling", "buffered", 2)
    budget.move("buffered", "training", 2)
    assert not budget.admits()
    budget.move("training", "trained", 2)
    assert budget.admits()


def test_a_filtered_group_frees_its_slot_at_once():
    budget = Budget(batch_groups=1, max_staleness=0)
    budget.enter()
    budget.move("rolling", "filtered")
    assert budget.admits()


def test_a_group_cannot_leave_a_state_that_it_is_not_in():
    budget = Budget(batch_groups=2, max_staleness=1)
    budget.enter()
    with pytest.raises(ConservationError, match="counted twice"):
        budget.move("rolling", "buffered", 2)


def test_books_that_differ_from_reality_stop_the_run():
    budget = Budget(batch_groups=2, max_staleness=1)
    budget.enter()
    budget.check(rolling=1, buffered=0)
    with pytest.raises(ConservationError, match="rolling: 1 in the books, 0 in fact"):
        budget.check(rolling=0, buffered=0)
