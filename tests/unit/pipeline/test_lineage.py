"""Whether a resumed run is the one that the checkpoint is of: prompts, labels, tokenizer settings."""

import json
import re

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.own_files import freeze
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.memory.model_size import checkpoint_bytes
from openrlhf_tir.pipeline.checkpoints.lineage import compare, facts_of, resumable
from openrlhf_tir.types import Chat, Task

TASKS = [Task("1+1?", "2"), Task("2+2?", "4", meta={"datasource": "x"}), Task("3+3?", "6")]


def cfg(tmp_path) -> Config:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "transformers_version": "5"}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    return Config(actor={"model_name_or_path": str(tmp_path), "num_gpus_per_node": 1})


def state(config: Config) -> dict:
    facts = json.loads(json.dumps(facts_of(config, TASKS)))
    return {
        "max_staleness": config.pipeline.requested_staleness,
        "updates_per_batch": config.updates_per_batch,
        "batch_size": config.rollout.batch_size,
        "world_size": 1,
        "facts": facts,
    }


def test_the_same_run_has_nothing_to_say(tmp_path):
    config = cfg(tmp_path)
    assert compare(state(config), config, TASKS) == []


@pytest.mark.parametrize(("name", "max_steps", "finished"), [("step_000024", 24, True), ("step_000024a", 25, False)])
def test_a_resume_that_would_make_no_update_says_so(tmp_path, name, max_steps, finished):
    config = cfg(tmp_path)
    config.train.max_steps = max_steps

    class OneCheckpoint:
        def choose(self, wanted):
            return tmp_path / name

        def state(self, path):
            return state(config)

    path, messages = resumable(config, OneCheckpoint(), TASKS)
    assert path == tmp_path / name
    assert [message for message in messages if "train.max_steps" in message] == messages
    assert bool(messages) is finished


def test_a_date_in_the_rendered_prompt_and_new_templates_leave_a_run_resumable(tmp_path):
    """The template wrote today's date: the messages are the same tomorrow."""

    def on(day):
        return [Task(f"Today is {day}. 1+1?", "2", chat=Chat(({"role": "user", "content": "1+1?"},)))]

    config = cfg(tmp_path)
    before = {**state(config), "facts": json.loads(json.dumps(facts_of(config, on("Monday"))))}
    assert compare(before, config, on("Tuesday")) == []
    other = [Task("Today is Tuesday. 2+2?", "2", chat=Chat(({"role": "user", "content": "2+2?"},)))]
    with pytest.raises(ConfigError):
        compare(before, config, other)


def with_own_reward(tmp_path, text) -> Config:
    """A run whose reward, and one of its weights' keys, are files of one's own."""
    (tmp_path / "mine.py").write_text(text)
    name = f"{tmp_path / 'mine.py'}:score"
    return cfg(tmp_path).model_copy(
        update={
            "run_dir": tmp_path / "run",
            "reward": Config().reward.model_copy(update={"name": name, "weights": {name: 1.0}}),
        }
    )


def test_a_file_of_ones_own_is_the_copy_that_the_run_made_of_it_until_it_is_edited(tmp_path):
    before = state(freeze(with_own_reward(tmp_path, "score = 1")))
    assert compare(before, with_own_reward(tmp_path, "score = 1")) == []
    said = compare(before, with_own_reward(tmp_path, "score = 2"))
    assert any(": reward.name " in line for line in said)


def test_other_ranks_are_said_where_they_can_read_the_checkpoint_and_refused_where_not(tmp_path):
    config = cfg(tmp_path)
    before = {**state(config), "world_size": 4}
    (said,) = compare(before, config, TASKS)
    assert re.search(r"= 4\b.*\b1\b", said)
    config.actor.optim = "muon"
    with pytest.raises(ConfigError, match=r"= 4, .*\b1\b .*Muon"):
        compare({**state(config), "world_size": 4}, config, TASKS)
    config.actor.optim = "adam"
    config.ds.zero_stage = 2
    with pytest.raises(ConfigError, match=r"= 4, .*\b1\b .*ds\.zero_stage = 3"):
        compare({**state(config), "world_size": 4}, config, TASKS)


def test_tools_that_the_environment_has_not_been_asked_for_yet_are_no_change(tmp_path):
    config = cfg(tmp_path)
    before = state(config)
    before["facts"]["config"]["env"]["tools"] = [{"type": "function", "function": {"name": "python"}}]
    assert compare(before, config) == []
    (said,) = compare(before, config, TASKS)
    assert "env.tools" in said


@pytest.mark.parametrize(
    "others", [TASKS[:2], TASKS[::-1], [Task("1+2?", "2"), *TASKS[1:]]], ids=["fewer", "reordered", "another text"]
)
def test_other_prompts_are_refused_since_the_ledger_knows_them_by_their_place(tmp_path, others):
    config = cfg(tmp_path)
    with pytest.raises(ConfigError, match=r"3 .*[23]\b"):
        compare(state(config), config, others)


def test_other_labels_are_said(tmp_path):
    config = cfg(tmp_path)
    (said,) = compare(state(config), config, [*TASKS[:2], Task("3+3?", "7")])
    assert re.search(r"\bmeta\b", said)


def test_tokenizer_settings_are_said_and_the_library_version_is_nothing(tmp_path):
    config = cfg(tmp_path)
    before = state(config)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "transformers_version": "6"}))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    (said,) = compare(before, config, TASKS)
    assert "tokenizer_config.json" in said


def test_a_directory_in_place_of_a_name_on_the_hub_is_said(tmp_path):
    before = state(Config(actor={"model_name_or_path": "org/model", "num_gpus_per_node": 1}))
    (said,) = compare(before, cfg(tmp_path), TASKS)
    assert "actor.model_name_or_path" in said


def test_the_size_of_a_checkpoint_is_known_from_the_headers(tmp_path):
    header = json.dumps({"__metadata__": {}, "a": {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(60))
    config = cfg(tmp_path)
    assert checkpoint_bytes(config) == 15 * 12
    config.ds.zero_stage = 2
    assert checkpoint_bytes(config) == 15 * (12 + 2)
    config.train.ema_beta = 0.992
    assert checkpoint_bytes(config) == 15 * (12 + 2 + 4)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    assert checkpoint_bytes(cfg(tmp_path)) == 0
