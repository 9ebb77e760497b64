"""A script with TRL's GRPOTrainer becomes a recipe and a file with its functions, without being run."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.plugins import ENVIRONMENT
from openrlhf_tir.plugins import load as load_plugin
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.own import OwnReward
from openrlhf_tir.types import Task
from tests.unit.rewards.reward_fakes import says

SCRIPT = '''
import os
import re
from datasets import Dataset, load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

PATTERN = re.compile(r"\\d+")
MODEL = os.environ.get("MODEL", "Qwen/Qwen2.5-0.5B-Instruct")
N = 4


def numbers(text):
    return PATTERN.findall(text)


def accuracy(completions, solution, **kwargs):
    """Right numbers."""
    return [float(s in numbers(c[-1]["content"] if isinstance(c, list) else c)) for c, s in zip(completions, solution)]


async def brevity(completions, **kwargs):
    return [-len(c) / 100 for c in completions]


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def main():
    rows = [{"prompt": "1+1?", "solution": "2"}, {"prompt": "2+2?", "solution": "4"}]
    dataset = Dataset.from_list(rows)
    training_args = GRPOConfig(
        output_dir="out",
        learning_rate=5e-6,
        num_generations=N,
        per_device_train_batch_size=2 * N,
        gradient_accumulation_steps=2,
        max_completion_length=64,
        beta=0.04,
        loss_type="dr_grpo",
        scale_rewards=False,
        epsilon_high=0.28,
        reward_weights=[1.0, 0.5],
        max_steps=3,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        bf16=True,
        report_to="none",
        repetition_penalty=1.1,
        a_new_argument=7,
        seed=int(os.environ["SEED"]),
    )
    training_args.temperature = 0.9
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[accuracy, brevity],
        args=training_args,
        train_dataset=dataset,
        tools=[add],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    trainer.train()


if __name__ == "__main__":
    main()
'''


@pytest.fixture
def imported(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)

    def make(text=SCRIPT, *words):
        (tmp_path / "train.py").write_text(text)
        code = main(["import-trl", str(tmp_path / "train.py"), "--out", str(tmp_path / "run/r.toml"), *words])
        return code, tmp_path / "run/r.toml", capsys.readouterr().err

    return make


def test_the_trainers_arguments_become_a_recipe_that_loads(imported):
    code, path, told = imported()
    cfg = load(str(path), {})
    assert code == 0 and cfg.actor.model_name_or_path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert (cfg.rollout.batch_size, cfg.rollout.n_samples_per_prompt, cfg.rollout.max_new_tokens) == (4, 4, 64)
    assert (cfg.actor.learning_rate, cfg.actor.lr_scheduler, cfg.actor.lr_warmup_ratio) == (5e-6, "cosine", 0.1)
    assert (cfg.algo.kl.init_coef, cfg.algo.kl.use_loss, cfg.algo.advantage.no_std_norm) == (0.04, True, True)
    assert cfg.actor.loss_agg_mode == "seq-mean-token-sum-norm" and cfg.actor.eps_clip_low_high == (0.2, 0.28)
    assert (cfg.train.max_steps, cfg.rollout.temperature, cfg.ds.lora.rank) == (3, 0.9, 16)
    assert list(cfg.reward.weights.values()) == [1.0, 0.5] and cfg.filter.order == []
    for said in ("repetition_penalty", "a_new_argument", "seed"):
        assert f"differs: {said}" in told
    assert "bf16" not in told


def test_its_functions_are_in_a_file_that_needs_no_trl(imported):
    _, path, _ = imported()
    cfg = load(str(path), {})
    right, short = cfg.reward.weights
    task = Task("", "", extra={"solution": "42"})
    assert OwnReward(right)(says("It is 42"), task, RewardContext())[0].reward == 1.0
    assert OwnReward(short)(says("It is 42"), task, RewardContext())[0].reward == pytest.approx(-0.08)
    tools = load_plugin(ENVIRONMENT, cfg.env.file).tools
    assert [tool["function"]["name"] for tool in tools] == ["add"]
    assert "trl" not in (path.parent / "r_functions.py").read_text()


def test_rows_that_stand_in_the_script_are_written_out(imported):
    _, path, _ = imported()
    rows = [json.loads(line) for line in (path.parent / "r_rows.jsonl").read_text().splitlines()]
    assert rows[1] == {"prompt": "2+2?", "solution": "4"}


@pytest.mark.parametrize(
    ("dataset", "named", "said"),
    [
        ('load_dataset("trl-lib/DeepMath-103K", split="train")', "trl-lib/DeepMath-103K", False),
        ('load_dataset("json", data_files="mine.jsonl", split="train")', "mine.jsonl", False),
        ('load_dataset("openai/gsm8k", "main", split="train")', "r_rows.jsonl", True),
        ('load_dataset("a/b", split="train").map(lambda r: r)', "r_rows.jsonl", True),
        ('load_dataset("a/b", split="train[:5%]")', "a/b", True),
        ("make_rows()", "r_rows.jsonl", True),
    ],
)
def test_a_data_set_is_named_or_a_sentence_says_how_to_write_it_out(imported, dataset, named, said):
    _, path, told = imported(SCRIPT.replace("Dataset.from_list(rows)", dataset))
    named = str(path.parent / named) if named == "r_rows.jsonl" else named
    assert f'prompt_dataset = "{named}"' in path.read_text()
    assert ("train_dataset=" in told or "split=" in told) == said


def test_what_is_done_to_the_rows_is_said_once_each(imported):
    text = SCRIPT.replace(
        "dataset = Dataset.from_list(rows)",
        'dataset = load_dataset("a/b", split="train")\n    dataset = dataset.filter(f)\n    dataset = dataset.map(g)',
    )
    _, _, told = imported(text)
    assert told.count(".filter(") == told.count(".map(") == 1


def test_flags_of_the_script_win(imported):
    _, path, _ = imported(SCRIPT, "--num_generations", "2", "--learning_rate=1e-5")
    cfg = load(str(path), {})
    assert cfg.rollout.n_samples_per_prompt == 2 and cfg.actor.learning_rate == 1e-5


def test_an_environment_factory_and_a_reward_model_are_taken(imported):
    text = SCRIPT.replace("tools=[add]", "environment_factory=Counter").replace("[accuracy, brevity]", "'org/rm'")
    text = text.replace("reward_weights=[1.0, 0.5],", "") + (
        "\n\nclass Counter:\n    def reset(self, **kwargs):\n        self.n = 0\n\n"
        '    def add(self, n: int) -> int:\n        """Add.\n\n        Args:\n            n: How much.\n        """\n'
        "        self.n += n\n        return self.n\n"
    )
    _, path, _ = imported(text)
    cfg = load(str(path), {})
    assert cfg.reward.name == "model" and cfg.reward.model_name_or_path == "org/rm"
    assert load_plugin(ENVIRONMENT, cfg.env.file).tools[0]["function"]["name"] == "add"


def test_a_script_without_such_a_trainer_is_refused_or_has_a_sentence(tmp_path, capsys):
    for text in ("print(1)", "def f(:"):
        (tmp_path / "s.py").write_text(text)
        assert main(["import-trl", str(tmp_path / "s.py")]) == 2
    (tmp_path / "s.py").write_text("from trl import SFTTrainer\nSFTTrainer(model='m', train_dataset=d).train()\n")
    assert main(["import-trl", str(tmp_path / "s.py")]) == 1 and "sft" in capsys.readouterr().err


def test_a_name_that_other_trainers_use_is_answered_with_ours():
    with pytest.raises(ConfigError, match=r"reward\.name"):
        load(None, {"reward.function": "f.py:g"})
