"""The digest of a run's settings: what counts in it."""

from __future__ import annotations

from dataclasses import replace

from miniatures.seeds import digest
from miniatures.tasks import NUMBERS, TASKS

TASK = TASKS[NUMBERS]


def of(*flags: str, demonstrations: int = 0) -> str:
    return digest(TASK, TASK.recipe, flags, demonstrations)


def test_demonstrations_count_and_with_them_the_settings_of_fine_tuning():
    assert len({of(), of(demonstrations=96), of(demonstrations=192)}) == 3
    rate = ("--sft.learning_rate", "1e-6")
    assert of(*rate) == of()
    assert of(*rate, demonstrations=96) != of(demonstrations=96)


def test_held_out_rows_count():
    other = replace(TASK, held_out=lambda: [*TASK.held_out(), {"prompt": "one more"}])
    assert digest(other, TASK.recipe, ()) != of()
