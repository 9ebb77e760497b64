"""TaskPrompts: the prompts of a run in the order that its configuration asks for."""

from __future__ import annotations

import inspect

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.data import PromptSet
from openrlhf_tir.ports import Prompts
from openrlhf_tir.types import PromptOutcome, Task


@pytest.mark.parametrize("curriculum", ["off", "difficulty"])
def test_a_runs_prompts_are_all_that_the_loop_asks_of_them(tmp_path, curriculum):
    from openrlhf_tir.cluster.jobs.inputs import TaskPrompts

    cfg = load(
        None,
        {
            "run_dir": str(tmp_path),
            "data.curriculum": curriculum,
            "rollout.n_samples_per_prompt": 4,
            "train.num_episodes": 2,
        },
    )
    prompts = TaskPrompts(PromptSet([Task(f"p{i}", "0") for i in range(6)]), cfg)
    assert all(
        callable(getattr(prompts, name))
        for name, _ in inspect.getmembers(Prompts, inspect.isfunction)
        if not name.startswith("_")
    )
    keys = [prompts.next() for _ in range(6)]
    assert sorted(keys) == [(0, i) for i in range(6)] and prompts.task(2).prompt == "p2"
    prompts.learned([PromptOutcome(prompt, 4 if prompt else 2, 4) for _, prompt in keys])
    assert bool(prompts.facts()) == (curriculum == "difficulty")
    again = TaskPrompts(prompts.prompts, cfg)
    again.restore(prompts.state())
    assert again.next() == prompts.next() is not None
