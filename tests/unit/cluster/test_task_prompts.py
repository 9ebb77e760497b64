"""TaskPrompts: the prompts of a run in the order that its configuration asks for."""

from __future__ import annotations

import inspect
import json

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.data import PromptSet
from openrlhf_tir.errors import ConfigError
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


class Tokenizer:
    """One token for each character, and a chat template without tools."""

    chat_template = "{{ messages }}"
    all_special_tokens = ()
    unk_token = None

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [list(map(ord, text)) for text in texts]}

    def apply_chat_template(self, messages, **arguments):
        return "|".join(message["content"] for message in messages)


@pytest.mark.parametrize(
    ("question", "max_calls", "is_refused"),
    [("1+1?", 1, True), ("Write python(code). 1+1?", 1, False), ("1+1?", 0, False)],
    ids=["hidden", "described", "never called"],
)
def test_tools_that_a_template_from_the_hub_does_not_show_are_refused_once_it_is_here(
    tmp_path, question, max_calls, is_refused
):
    from openrlhf_tir.cluster.jobs.chat_tools import with_tools
    from openrlhf_tir.cluster.jobs.inputs import prompts_of

    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": question, "label": "2"}) + "\n")
    settings = {"data.prompt_dataset": str(tmp_path / "d.jsonl"), "data.apply_chat_template": True}
    cfg = with_tools(load(None, {**settings, "env.protocol": "messages", "env.max_calls": max_calls}))
    if not is_refused:
        assert len(prompts_of(cfg, cfg.data, Tokenizer())) == 1
        return
    with pytest.raises(ConfigError) as e:
        prompts_of(cfg, cfg.data, Tokenizer())
    assert e.value.problems[0].code == "hidden_tools"
