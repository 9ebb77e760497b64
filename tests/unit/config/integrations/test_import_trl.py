"""A script with TRL's GRPOTrainer becomes a recipe and a file with its functions, without being run."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.config import Config
from openrlhf_tir.config.catalog import value_at
from openrlhf_tir.config.fine_tuning import RANKS_OF
from openrlhf_tir.config.integrations.shared_settings import with_numbers
from openrlhf_tir.config.integrations.trl_import import FROM_ONE_ON, NUMBERS, WHOLE
from openrlhf_tir.config.method_summary import method_summary
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.rules import violations_of_fine_tuning
from openrlhf_tir.config.settings import attempt, load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import REWARD
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.own import OwnReward
from openrlhf_tir.types import Task
from openrlhf_tir.user_code.plugins import ENVIRONMENT
from openrlhf_tir.user_code.plugins import load as load_plugin
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


def ways_said(text):
    """The flags of each way without train.colocate_all that an import says."""
    return [way.split() for way in re.findall(r"--train\.colocate_all false(?: --[a-z_.]+ \w+)+", text)]


@pytest.fixture
def imported(tmp_path, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)

    def make(text=SCRIPT, *words):
        (tmp_path / "train.py").write_text(text)
        code = main(
            ["import-trl", str(tmp_path / "train.py"), "--out", str(tmp_path / "run/r.toml"), "--force", *words]
        )
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
        ('load_dataset(args.data, split="train")', "r_rows.jsonl", True),
        ('load_dataset("a/b", split=args.part)', "r_rows.jsonl", True),
        ('load_dataset("json", data_files=args.data)', "r_rows.jsonl", True),
        ('load_dataset("json", data_files={"train": args.data})', "r_rows.jsonl", True),
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


def test_a_script_without_such_a_trainer_is_refused(tmp_path):
    for text in ("print(1)", "def f(:"):
        (tmp_path / "s.py").write_text(text)
        assert main(["import-trl", str(tmp_path / "s.py"), "--out", str(tmp_path / "s.toml")]) == 2


def test_fine_tuning_becomes_a_recipe_of_sft(imported):
    script = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
args = SFTConfig(max_length=512, packing=True, per_device_train_batch_size=4, learning_rate=1e-5, num_train_epochs=2)
args.gradient_accumulation_steps = 3
SFTTrainer("m", args=args, train_dataset=load_dataset("json", data_files="r.jsonl")["train"], formatting_func=f)
"""
    code, path, told = imported(script)
    problems = Problems()
    cfg = attempt(str(path), {}, problems, violations_of_fine_tuning, ranks_of=RANKS_OF)
    assert code == 0 and not problems.lines
    assert (cfg.sft.batch_size, cfg.sft.max_len) == (12, 512) and 'dataset = "r.jsonl"' in path.read_text()
    assert (cfg.sft.learning_rate, cfg.sft.lr_scheduler, cfg.sft.max_epochs) == (1e-5, "linear", 2)
    assert cfg.ds.packing_samples and cfg.actor.model_name_or_path == "m"
    assert all(word in told for word in ("max_length", "assistant_only_loss", "formatting_func"))
    _, path, _ = imported(script.replace("max_length=512", "max_seq_length=2048"))
    assert attempt(str(path), {}, problems, violations_of_fine_tuning, ranks_of=RANKS_OF).sft.max_len == 2048
    part = 'load_dataset("a/b", split="train[:9]")'
    _, _, told = imported(script.replace('load_dataset("json", data_files="r.jsonl")["train"]', part))
    assert "data.max_samples" in told and "sft.max_samples" not in told


OF_SFT = """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
SFTTrainer("m", args=SFTConfig({given}), train_dataset=load_dataset("json", data_files="r.jsonl")["train"]).train()
"""


@pytest.mark.parametrize(
    ("given", "settings", "told_of"),
    [
        ("", {"actor.adam_betas": (0.9, 0.999), "actor.adam_eps": 1e-8, "sft.lr_warmup_ratio": 0.0}, ()),
        ("adam_beta1=0.8, adam_beta2=0.99", {"actor.adam_betas": (0.8, 0.99)}, ()),
        ("adam_epsilon=1e-6", {"actor.adam_eps": 1e-6}, ()),
        ("max_steps=40, warmup_steps=10", {"sft.lr_warmup_ratio": 0.25}, ()),
        ("warmup_steps=10", {"sft.lr_warmup_ratio": 0.0}, ("warmup_steps=10",)),
        ("lr_scheduler_type='constant', warmup_ratio=0.03", {"sft.lr_warmup_ratio": 0.0}, ()),
        ("lr_scheduler_type='constant_with_warmup', warmup_ratio=0.03", {"sft.lr_warmup_ratio": 0.03}, ()),
        ("lr_scheduler_type='inverse_sqrt'", {"sft.lr_scheduler": "inverse_sqrt"}, ()),
        ("lr_scheduler_type='polynomial'", {"sft.lr_scheduler": "constant"}, ("lr_scheduler_type=polynomial",)),
    ],
)
def test_fine_tuning_has_the_optimiser_that_trl_has(imported, given, settings, told_of):
    """TRL's second beta is 0.999, and the default here is 0.95."""
    _, path, told = imported(OF_SFT.format(given=given))
    cfg = attempt(str(path), {}, Problems(), violations_of_fine_tuning, ranks_of=RANKS_OF)
    for name, value in settings.items():
        section, _, field = name.partition(".")
        assert getattr(getattr(cfg, section), field) == value, name
    names = ("adam", "warmup_steps", "lr_scheduler_type")
    assert [name for name in names if f"differs: {name}" in told] == [word.partition("=")[0] for word in told_of]


def test_what_of_a_fine_tuning_is_not_taken_over_is_said(imported):
    _, _, told = imported(
        "from trl import SFTConfig, SFTTrainer\n\n\nclass Mine(SFTTrainer):\n    def compute_loss(self):\n"
        "        pass\n\n\nmodel = AutoModelForCausalLM.from_pretrained('m', load_in_4bit=True)\n"
        "Mine(model, SFTConfig(), train_dataset='rows', max_seq_length=512).train()\n"
    )
    assert all(word in told for word in ("Mine (compute_loss)", "(ds.param_dtype)", "SFTTrainer(max_seq_length=...)"))


@pytest.mark.parametrize("given", ["cosine_with_restarts", "cosine_with_min_lr"])
def test_a_schedule_that_is_only_nearly_one_of_ours_is_said(imported, given):
    _, path, told = imported(SCRIPT.replace('"cosine"', f'"{given}"'))
    assert load(str(path), {}).actor.lr_scheduler == "cosine" and f"lr_scheduler_type={given}" in told


@pytest.mark.parametrize(("gpus", "apart"), [(8, [(4, 4, False)]), (1, [])])
def test_the_flags_for_recipes_without_turns_are_said_and_right(tmp_path, capsys, gpus, apart):
    (tmp_path / "train.py").write_text(SCRIPT)
    recipe = str(tmp_path / "r.toml")
    words = ["--gpus", str(gpus), "--out", recipe, str(tmp_path / "train.py")]
    assert main(["import-trl", *words]) == 0
    placements = []
    for flags in ways_said(capsys.readouterr().err):
        assert main(["show-config", "--recipe", recipe, *flags]) == 0
        made = tomllib.loads(capsys.readouterr().out)
        assert not made["train"]["colocate_all"]
        shares = made["train"]["share_gpus"]
        placements.append((made["actor"]["num_gpus_per_node"], made["vllm"]["num_engines"], shares))
    assert placements == [*apart, (gpus, gpus, True)]
    assert main(["import-trl", "--rehearse", "--force", *words]) == 0
    assert not ways_said(capsys.readouterr().err)


def test_learner_and_engines_take_turns_on_as_many_devices_as_the_script_had(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert main(["import-trl", "--gpus", "4", "--out", str(tmp_path / "r.toml"), str(tmp_path / "train.py")]) == 0
    cfg = load(str(tmp_path / "r.toml"), {})
    assert (cfg.actor.num_gpus_per_node, cfg.vllm.num_engines, cfg.train.colocate_all) == (4, 4, True)
    assert (cfg.rollout.batch_size, cfg.pipeline.mode) == (16, "sync")  # 4 devices, 8 each, 2 times, groups of 4


def test_low_rank_adapters_that_flags_ask_for_are_trained(imported):
    given = 'LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")'
    script = SCRIPT.replace(given, "get_peft_config(model_args)")
    _, path, told = imported(script, "--use_peft", "--lora_r", "4", "--lora_target_modules", "q_proj", "v_proj")
    lora = load(str(path), {}).ds.lora
    assert (lora.rank, lora.alpha, lora.target_modules) == (4, 32, ["q_proj", "v_proj"]) and "lora_r" not in told
    _, path, _ = imported(script)
    assert load(str(path), {}).ds.lora.rank == 0  # get_peft_config gives none without --use_peft


def test_a_yaml_file_of_arguments_is_read_and_flags_win(imported, tmp_path, capsys):
    (tmp_path / "args.yaml").write_text("learning_rate: 3e-6\nnum_generations: 8\nlog_level: info\n")
    _, path, _ = imported(SCRIPT, "--config", str(tmp_path / "args.yaml"), "--num_generations", "2")
    cfg = load(str(path), {})
    assert (cfg.actor.learning_rate, cfg.rollout.n_samples_per_prompt) == (3e-6, 2)
    out = ["--out", str(tmp_path / "r.toml")]
    assert main(["import-trl", *out, str(tmp_path / "train.py"), "--config", "nowhere.yaml"]) == 2
    assert "--config nowhere.yaml: " in capsys.readouterr().err


def test_arguments_that_are_one_setting_each_are_taken_over(imported):
    arguments = {
        "temperature": (0.7, "rollout.temperature", 0.7),
        "top_p": (0.8, "rollout.top_p", 0.8),
        "top_k": (-1, "rollout.top_k", 0),
        "min_p": (0.05, "rollout.min_p", 0.05),
        "num_iterations": (2, "train.max_epochs", 2),
        "shuffle_dataset": (False, "data.shuffle", False),
        "chat_template_kwargs": ({"enable_thinking": False}, "data.chat_template_options", {"enable_thinking": False}),
        "entropy_coef": (0.01, "actor.entropy_coef", 0.01),
        "delta": (4.0, "actor.dual_clip", 4.0),
        "mask_truncated_completions": (True, "filter.sample", "over_length"),
        "weight_decay": (0.1, "actor.l2", 0.1),
        "adam_epsilon": (1e-7, "actor.adam_eps", 1e-7),
        "max_grad_norm": (0.5, "actor.max_norm", 0.5),
        "gradient_checkpointing": (True, "actor.gradient_checkpointing_enable", True),
        "seed": (7, "train.seed", 7),
    }
    given = ", ".join(f"{name}={value!r}" for name, (value, _, _) in arguments.items())
    text = "def right(completions, **kwargs):\n    return [1.0 for c in completions]\n\n\n"
    text += f"GRPOTrainer('m', right, GRPOConfig({given}), 'rows')"
    text = "from trl import GRPOConfig, GRPOTrainer\n\n\n" + text
    cfg = load(str(imported(text)[1]), {})
    expected = {setting: value for _, setting, value in arguments.values()}
    assert {setting: value_at(cfg, setting) for setting in expected} == expected
    without = load(str(imported(text.replace(given, ""))[1]), {})
    for name in ("min_p", "num_iterations", "entropy_coef", "delta", "mask_truncated_completions"):
        setting = arguments[name][1]
        assert value_at(without, setting) == value_at(Config(), setting)


def test_a_config_of_any_name_is_read_with_what_is_set_later_and_with_a_table(imported):
    script = SCRIPT.replace("training_args", "cfg").replace("output_dir=", "**{'top_k': 20}, output_dir=")
    _, path, _ = imported(script.replace("cfg.temperature = 0.9", "cfg.temperature = 0.7"))
    rollout = load(str(path), {}).rollout
    assert (rollout.temperature, rollout.top_k) == (0.7, 20)


def test_what_is_set_later_on_the_trainer_s_args_is_read_whatever_their_name(imported):
    """They come from TrlParser, so that no call of the script shows which of its results they are."""
    made = SCRIPT[SCRIPT.index("    training_args = GRPOConfig(") : SCRIPT.index("    training_args.temperature")]
    parsed = "    import trl\n    _, c = trl.TrlParser((object, GRPOConfig)).parse_args_and_config()\n"
    script = SCRIPT.replace(made, parsed).replace("training_args", "c")
    _, path, _ = imported(script, "--per_device_train_batch_size", "8", "--num_generations", "4")
    assert load(str(path), {}).rollout.temperature == 0.9


@pytest.mark.parametrize("reward", ["Brief(2)", "partial(scaled, by=2)", "scaled_by_2", "REWARDS['b']"])
def test_a_reward_that_an_expression_makes_is_taken_over(imported, reward):
    code = """
from functools import partial
class Brief:
    def __init__(self, by):
        self.by = by
    def __call__(self, completions, **kwargs):
        return [self.by * len(c) for c in completions]
def scaled(completions, by=2, **kwargs):
    return [by * len(c) for c in completions]
scaled_by_2 = partial(scaled, by=2)
REWARDS = {"a": accuracy, "b": scaled}
def main("""
    _, path, told = imported(
        SCRIPT.replace("\ndef main(", code).replace("[accuracy, brevity]", f"[{reward}, accuracy]")
    )
    first, second = load(str(path), {}).reward.weights
    assert OwnReward(first)(says("four"), Task("", ""), RewardContext())[0].reward == 8.0
    assert second.endswith(":accuracy") and "reward_funcs" not in told


def test_a_model_that_is_loaded_by_name_is_known(imported):
    _, path, _ = imported(SCRIPT.replace("model=MODEL", "model=AutoModelForCausalLM.from_pretrained(MODEL)"))
    assert load(str(path), {}).actor.model_name_or_path == "Qwen/Qwen2.5-0.5B-Instruct"


def test_a_file_of_rows_beside_the_script_is_found_wherever_the_recipe_lies(imported, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "1+1?", "solution": "2"}\n' * 8)
    made = 'load_dataset("json", data_files="mine.jsonl", split="train")'
    _, path, _ = imported(SCRIPT.replace("Dataset.from_list(rows)", made).replace("max_steps=3", "num_train_epochs=1"))
    cfg = load(str(path), {})
    assert cfg.data.prompt_dataset == str(tmp_path / "mine.jsonl") and cfg.train.max_steps == 2


def test_updates_are_counted_where_the_rows_are_known(imported):
    _, path, told = imported(SCRIPT.replace("max_steps=3", "num_train_epochs=6"))
    assert load(str(path), {}).train.max_steps == 3 and "max_steps" not in told  # 2 rows, 6 times, 4 prompts a batch


HEAD = """
import argparse, os
from trl import GRPOConfig, GRPOTrainer


def right(completions, **kwargs):
    return [1.0 for _ in completions]


def short(completions, **kwargs):
    return [-len(c) for c in completions]


"""


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (
            "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=5e-6)\n"
            "p.add_argument('--no-kl', action='store_true')\na = p.parse_args()\n"
            "GRPOTrainer('m', right, GRPOConfig(learning_rate=a.lr, beta=0.0 if a.no_kl else 0.04), 'rows')",
            ["--no-kl"],
            {"actor.learning_rate": 5e-6, "algo.kl.init_coef": 0.0},
        ),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=5e-6)\na = p.parse_args()\n"
            "GRPOTrainer('m', right, GRPOConfig(learning_rate=a.lr), 'rows')",
            ["--lr", "2e-6"],
            {"actor.learning_rate": 2e-6},
        ),
        (
            "class Mine(GRPOTrainer):\n    def compute_loss(self, *a):\n        return 0\n\n\n"
            "class Config(GRPOConfig):\n    pass\n\n\n"
            "Mine(model='m', reward_funcs=right, args=Config(learning_rate=3e-6), train_dataset='rows')",
            [],
            {"actor.learning_rate": 3e-6},
        ),
        (
            "R = {'right': right, 'short': short}\nnames = ['short']\n"
            "GRPOTrainer('m', [R[n] for n in names], GRPOConfig(), 'rows')",
            [],
            {"reward.name": "r_functions.py:short"},
        ),
        (
            "model, tokenizer = FastLanguageModel.from_pretrained(model_name='org/m', load_in_4bit=True)\n"
            "model = FastLanguageModel.get_peft_model(\n    model, r=32, lora_alpha=64, target_modules=['q_proj'])\n"
            "GRPOTrainer(model=model, reward_funcs=right, args=GRPOConfig(), train_dataset='rows')",
            [],
            {"actor.model_name_or_path": "org/m", "ds.lora.rank": 32, "ds.lora.alpha": 64},
        ),
        (
            "table = dict(model='m', reward_funcs=[right], args=GRPOConfig(max_steps=int('7')), train_dataset='rows')\n"
            "GRPOTrainer(**table)",
            [],
            {"train.max_steps": 7},
        ),
        (
            "GRPOTrainer(os.environ.get('NO_SUCH_NAME') or 'm', right, GRPOConfig(), 'rows')",
            [],
            {"actor.model_name_or_path": "m"},
        ),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--high', type=float, default=None)\n"
            "p.add_argument('--weights', nargs='+')\np.add_argument('--n', type=int)\na = p.parse_args()\n"
            "c = GRPOConfig(epsilon_high=a.high, reward_weights=a.weights, num_generations=a.n, epsilon=0.1)\n"
            "GRPOTrainer('m', right, c, 'rows')",
            [],
            {"actor.eps_clip_low_high": [0.1, 0.1], "rollout.n_samples_per_prompt": 8},
        ),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.add_argument('--n', type=int)\n"
            "args = p.parse_args()\nif args.lr is None:\n    args.lr = 2e-5\nif args.n is None:\n    args.n = 2\n"
            "GRPOTrainer('m', right, GRPOConfig(learning_rate=args.lr, num_generations=args.n), 'rows')",
            ["--n", "4"],
            {"actor.learning_rate": 2e-5, "rollout.n_samples_per_prompt": 4},
        ),
        (
            "C = {'lr': 3e-6, 'names': {'model': 'm'}}\nmodel = Auto.from_pretrained(C['names']['model']).to('cuda')\n"
            "GRPOTrainer(model, right, GRPOConfig(learning_rate=C['lr'], seed=C['nothing']), 'rows')",
            [],
            {"actor.model_name_or_path": "m", "actor.learning_rate": 3e-6, "train.seed": 42},
        ),
        (
            "def build(rate, beta=0.1, **others):\n    values = dict(learning_rate=rate, **others)\n"
            "    values['beta'] = beta\n    return GRPOConfig(**values)\n\n\n"
            "GRPOTrainer('m', right, build(2e-6, temperature=0.8, max_steps=3), 'rows')",
            [],
            {
                "actor.learning_rate": 2e-6,
                "rollout.temperature": 0.8,
                "algo.kl.init_coef": 0.1,
                "train.max_steps": 3,
            },
        ),
        (
            "rate = 3e-6\n\n\ndef train(rate, rewards, steps=5):\n    rate = rate or 4e-6\n"
            "    GRPOTrainer('m', rewards, GRPOConfig(learning_rate=rate, max_steps=steps), 'rows')\n\n\n"
            "train(rate, [right, short])",
            [],
            {
                "actor.learning_rate": 3e-6,
                "train.max_steps": 5,
                "reward.weights": {"r_functions.py:right": 1.0, "r_functions.py:short": 1.0},
            },
        ),
        (
            "from extra import GRPOTrainerCallback\n"
            "GRPOTrainer('m', right, GRPOConfig(learning_rate=2e-6), 'rows').add_callback(GRPOTrainerCallback(5))\n"
            "print(GRPOTrainerCallback('other'))",
            [],
            {"actor.model_name_or_path": "m", "actor.learning_rate": 2e-6, "reward.name": "r_functions.py:right"},
        ),
        (
            "from extra import GRPOTrainer_v2\n"
            "GRPOTrainer_v2(model='m', reward_funcs=right, args=GRPOConfig(), train_dataset='rows')",
            [],
            {"actor.model_name_or_path": "m", "reward.name": "r_functions.py:right"},
        ),
        (
            "def of(environments, **kwargs):\n    return [1.0 for _ in environments]\n\n\n"
            "GRPOTrainer('m', [right, of], GRPOConfig(reward_weights=[0.5, 1.0]), 'rows')",
            [],
            {"reward.weights": {"r_functions.py:right": 0.5}},
        ),
        (
            "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\na = p.parse_args()\n"
            "GRPOTrainer('m', right, GRPOConfig(learning_rate=a.lr), 'rows')",
            ["--", "--lr", "2e-6"],
            {"actor.learning_rate": 2e-6},
        ),
        (
            "GRPOTrainer('m', right, GRPOConfig(), 'rows')",
            ["--reward_weights", "0.5"],
            {"reward.weights": {"r_functions.py:right": 0.5}},
        ),
    ],
    ids=[
        "flag",
        "value",
        "subclass",
        "comprehension",
        "unsloth",
        "table",
        "environment",
        "none",
        "later",
        "items",
        "function of a config",
        "function that trains",
        "callback",
        "class from elsewhere",
        "weight of one reward",
        "dashes",
        "one weight",
    ],
)
def test_what_scripts_of_others_say_is_read(imported, text, words, expected):
    code, path, said = imported(HEAD + text, *words)
    assert code == 0, said
    recipe = tomllib.loads(path.read_text())
    for name, value in expected.items():
        found = recipe
        for part in name.split("."):
            found = found.get(part, {})
        assert found == value or (not value and not found), name


def test_what_a_table_gets_from_what_only_a_run_knows_is_said(imported):
    text = (
        "values = {'learning_rate': 2e-6}\nvalues.update(ask())\nif ask():\n    values['top_p'] = 0.9\n"
        "GRPOTrainer('m', right, GRPOConfig(**values), 'rows')"
    )
    _, path, told = imported(HEAD + text)
    cfg = load(str(path), {})
    assert (cfg.actor.learning_rate, cfg.rollout.top_p) == (2e-6, 0.9)
    assert "values.update(ask())" in told and "values['top_p'] = 0.9" in told


def test_what_a_table_gets_before_it_is_made_anew_or_after_its_use_does_not_count(imported):
    text = (
        "kw = {}\nkw['beta'] = 0.1\nkw = {'learning_rate': 2e-6}\n"
        "GRPOTrainer('m', right, GRPOConfig(**kw), 'rows')\nkw['top_p'] = 0.9"
    )
    _, path, _ = imported(HEAD + text)
    cfg = load(str(path), {})
    assert (cfg.actor.learning_rate, cfg.algo.kl.init_coef, cfg.rollout.top_p) == (2e-6, 0.0, 1.0)


def test_a_function_may_fill_a_table_that_it_is_given_further_below(imported):
    text = (
        "def main(config):\n    config['beta'] = 0.1\n    config['max_steps'] = 3\n"
        "    GRPOTrainer('m', right, GRPOConfig(**config), 'rows')\n\n\n"
        "main({'beta': 0.04, 'learning_rate': 2e-6})"
    )
    _, path, _ = imported(HEAD + text)
    cfg = load(str(path), {})
    assert (cfg.algo.kl.init_coef, cfg.train.max_steps, cfg.actor.learning_rate) == (0.1, 3, 2e-6)


TRAINS = (
    "def train(rate, steps=5, *, beta=0.1, **more):\n    if False:\n        rate = 9e-6\n{}"
    "    GRPOTrainer('m', right, GRPOConfig(learning_rate=rate, max_steps=steps, beta=beta, **more), 'rows')\n\n\n"
)


def test_parameters_hold_what_the_one_call_of_their_function_gives_them(imported):
    _, path, told = imported(f"{HEAD}{TRAINS.format('')}train(3e-6, top_p=0.9)")
    cfg = load(str(path), {})
    assert (cfg.actor.learning_rate, cfg.train.max_steps) == (3e-6, 5)
    assert (cfg.algo.kl.init_coef, cfg.rollout.top_p) == (0.1, 0.9)
    assert "learning_rate" not in told and "max_steps" not in told


@pytest.mark.parametrize(
    ("inside", "calls"),
    [
        ("", "train(3e-6, 6)\ntrain(4e-6, 7)"),
        ("", "train(*[3e-6, 6])"),
        ("", "train(**{'rate': 3e-6})"),
        ("    train(3e-6, 6)\n", ""),
    ],
    ids=["two calls", "list", "table", "recursion"],
)
def test_parameters_of_any_other_function_are_left_at_trls_defaults_and_said(imported, inside, calls):
    _, path, told = imported(f"{HEAD}{TRAINS.format(inside)}{calls}")
    assert load(str(path), {}).actor.learning_rate == 1e-6
    assert "learning_rate: " in told and "max_steps: " in told


def test_what_a_table_gets_is_read(imported):
    change = "kw['beta'] = 0.1"
    text = f"kw = {{'beta': 0.04}}\n{change}\nGRPOTrainer('m', right, GRPOConfig(**kw), 'rows')"
    _, path, told = imported(HEAD + text)
    assert load(str(path), {}).algo.kl.init_coef == 0.1 and change not in told


@pytest.mark.parametrize(
    "change",
    [
        "kw.setdefault('beta', 0.1)",
        "kw |= {'beta': 0.1}",
        "kw.update({'beta': 0.1})",
        "rate = kw.pop('learning_rate')",
        "del kw['learning_rate']",
        "kw['model_init_kwargs']['dtype'] = 'float32'",
        "kw['model_init_kwargs'].update(dtype='float32')",
        "kw['learning_rate'] *= 2",
        "kw['beta'], seed = (0.1, 2)",
    ],
)
def test_every_change_of_a_table_that_is_not_read_is_said(imported, change):
    table = "kw = {'learning_rate': 2e-6, 'model_init_kwargs': {}}"
    end = "GRPOTrainer('m', right, GRPOConfig(**kw), 'rows')"
    _, _, plain = imported(f"{HEAD}{table}\n{end}")
    _, _, told = imported(f"{HEAD}{table}\n{change}\n{end}")
    assert change in told and change not in plain
    _, _, told = imported(f"{HEAD}{table}\nif False:\n    {change}\n{end}")
    assert change not in told


def test_weights_of_another_number_than_the_rewards_are_said(imported):
    _, path, told = imported(HEAD + "GRPOTrainer('m', right, GRPOConfig(reward_weights=[0.5, 1.0]), 'rows')")
    assert load(str(path), {}).reward.name.endswith(":right") and "differs: reward_weights" in told


def test_rows_in_columns_and_functions_of_a_file_beside_the_script_are_taken_over(imported, tmp_path):
    (tmp_path / "helpers.py").write_text("BEST = 20\n\n\ndef near(completions, **kwargs):\n    return [BEST]\n")
    text = (
        "from datasets import Dataset\nfrom trl import GRPOConfig, GRPOTrainer\nimport helpers\n"
        "from helpers import near\n"
        "rows = Dataset.from_dict({'prompt': ['1+1?', '2+2?'], 'answer': ['2', '4']})\n"
        "GRPOTrainer('m', [near, helpers.near], GRPOConfig(), rows)"
    )
    code, path, said = imported(text)
    assert code == 0, said
    assert [json.loads(line)["answer"] for line in (path.parent / "r_rows.jsonl").read_text().splitlines()] == [
        "2",
        "4",
    ]
    weights = tomllib.loads(path.read_text())["reward"]["weights"]
    assert sorted(weights) == sorted(["r_functions.py:near", f"{tmp_path / 'helpers.py'}:near"])
    namespace: dict = {}
    exec((path.parent / "r_functions.py").read_text(), namespace)
    assert namespace["near"]([""]) == [20]


OF_A_FUNCTION = """
import argparse
from functools import partial
from trl import GRPOConfig, GRPOTrainer
{imports}

def right(completions, **kwargs):
    return [1.0 for c in completions]


def length(completions, target=20, **kwargs):
    return [float(target) for c in completions]


def make(weight):
    def weighted(completions, **kwargs):
        return [weight for c in completions]
    return weighted


def rewards_of(args):
    registry = {{"right": right, "length": partial(length, target=args.target)}}
    found = [registry[name] for name in args.rewards]
    if args.target > 50:
        found.append(make(2.0))
    if args.target > 1000:
        found.append(right)
    if input():
        found += [right]
    return found


parser = argparse.ArgumentParser()
parser.add_argument("--target", type=int, default=40)
parser.add_argument("--rewards", nargs="+", default=["right", "length"])
args = parser.parse_args()
{between}
GRPOTrainer(model="m", reward_funcs={rewards}, args=GRPOConfig(), train_dataset=load_dataset("x")).train()
"""


@pytest.mark.parametrize(
    ("imports", "between", "rewards"),
    [
        ("", "", "rewards_of(args)"),
        ("", "funcs = rewards_of(args)", "funcs"),
        ("from mine import rewards_of", "", "rewards_of(args)"),
    ],
)
def test_rewards_that_a_function_puts_together_are_taken_over_with_the_values_of_arguments(
    imported, tmp_path, imports, between, rewards
):
    text = OF_A_FUNCTION.format(imports=imports, between=between, rewards=rewards)
    if imports:  # the functions are in a module beside the script
        start, end = text.index("def right"), text.index("parser =")
        (tmp_path / "mine.py").write_text("from functools import partial\n\n\n" + text[start:end])
        text = text[:start] + text[end:]
    _, path, told = imported(text, "--target", "60")
    cfg = load(str(path), {})
    values = [load_plugin(REWARD, name)([0, 0]) for name in cfg.reward.weights]
    assert values == [[1.0, 1.0], [60.0, 60.0], [2.0, 2.0]], "right once, as a setting names a function once"
    assert "found += [right]" in told, "what only a run can tell is said"
    assert "weighted" not in path.with_name("r_functions.py").read_text().partition("def make")[0]


OF_A_CLASS = """
import os
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def right(completions, **kwargs):
    return [1.0 for c in completions]


class Job:
    def __init__(self):
        self.table = {{"learning_rate": 3e-6, "num_generations": 4, "output_dir": "o"}}
        self.rewards = [right, lambda completions, **kwargs: [3.0 for c in completions]] if {test} else [right]

    def train(self):
        GRPOTrainer("m", reward_funcs=self.rewards, args=GRPOConfig(**{table}), train_dataset=load_dataset("x")).train()


if __name__ == "__main__":
    doubled = lambda completions, **kwargs: [2.0 for c in completions]
    Job().train()
"""


def test_attributes_and_conditions_are_read(imported):
    code, path, told = imported(OF_A_CLASS.format(test="2 < 1", table="self.table"))
    cfg = load(str(path), {})
    assert code == 0 and (cfg.actor.learning_rate, cfg.rollout.n_samples_per_prompt) == (3e-6, 4)
    assert load_plugin(REWARD, cfg.reward.name)([0]) == [1.0]
    assert "only a run" not in told


def test_a_list_that_is_made_of_itself_is_read(imported):
    text = OF_A_CLASS.format(test="False", table="{{}}").replace("{{}}", "{}")
    text = text.replace("    def train(self):\n", "    def train(self):\n        self.rewards = list(self.rewards)\n")
    code, path, _ = imported(text)
    assert code == 0 and load(str(path), {}).actor.model_name_or_path == "m"


def test_texts_of_a_yaml_file_that_look_like_numbers_stay_texts():
    assert with_numbers(["1e-6", "3E5", "2024", "001", "nan", "inf", 7]) == [
        1e-6,
        3e5,
        "2024",
        "001",
        "nan",
        "inf",
        7,
    ]


def test_a_table_of_arguments_that_only_a_run_knows_is_said(imported):
    _, path, told = imported(OF_A_CLASS.format(test="False", table="self.ask_somebody()"))
    assert load(str(path), {}).actor.learning_rate == 1e-6
    assert "GRPOConfig(**self.ask_somebody())" in told


def test_a_table_of_the_trainer_s_arguments_is_said(imported):
    text = SCRIPT.replace("tools=[add],", "**more,").replace("def main():", "more = {'tools': [add]}\n\n\ndef main():")
    assert text.count("more") == 2
    assert "GRPOTrainer(**more)" in imported(text)[2]


def test_a_lambda_anywhere_in_the_script_is_a_reward(imported):
    text = OF_A_CLASS.replace("reward_funcs=self.rewards", "reward_funcs=[doubled]")
    _, path, _ = imported(text.format(test="False", table="{{}}").replace("{{}}", "{}"))
    assert load_plugin(REWARD, load(str(path), {}).reward.name)([0, 0]) == [2.0, 2.0]


def test_no_row_is_lost_from_columns_of_unequal_length(imported):
    """Dataset.from_dict refuses them: then the rows are not known, and none is written."""
    text = (
        "from datasets import Dataset\nrows = Dataset.from_dict({'prompt': ['1+1?', '2+2?'], 'answer': ['2']})\n"
        "GRPOTrainer('m', right, GRPOConfig(), rows)"
    )
    _, path, _ = imported(HEAD + text)
    assert not (path.parent / "r_rows.jsonl").exists()


@pytest.mark.parametrize(
    ("bash", "gpus", "rate"),
    [
        ("accelerate launch --num_processes 4 train.py --learning_rate 2e-6\n", 4, 2e-6),
        ('N=2\nsrun bash -c "accelerate launch --num_processes=$N train.py --learning_rate 3e-6"\n', 2, 3e-6),
        ("python train.py\n", 1, 1e-6),
        (
            "trl grpo --model_name_or_path m --dataset_name d --reward_funcs think_format_reward --learning_rate 4e-6",
            1,
            4e-6,
        ),
    ],
)
def test_a_bash_script_leads_to_the_script_that_it_starts_and_its_processes(tmp_path, bash, gpus, rate):
    (tmp_path / "train.py").write_text(HEAD + "GRPOTrainer('m', right, GRPOConfig(), 'rows')")
    (tmp_path / "launch.sh").write_text(bash)
    assert main(["import-trl", "--out", str(tmp_path / "r.toml"), str(tmp_path / "launch.sh")]) == 0
    actor = tomllib.loads((tmp_path / "r.toml").read_text())["actor"]
    assert (actor["num_gpus_per_node"], actor["learning_rate"]) == (gpus, rate)


def test_a_trainer_without_a_counterpart_is_named(tmp_path, capsys):
    (tmp_path / "s.py").write_text("from trl import DPOTrainer\nDPOTrainer(model='m').train()\n")
    assert main(["import-trl", str(tmp_path / "s.py")]) == 2
    assert "DPOTrainer" in capsys.readouterr().err
    (tmp_path / "s.sh").write_text("echo nothing\n")
    assert main(["import-trl", str(tmp_path / "s.sh")]) == 2


def test_a_name_that_other_trainers_use_is_answered_with_ours():
    with pytest.raises(ConfigError, match=r"reward\.name"):
        load(None, {"reward.function": "f.py:g"})


OF_SWITCHES = """
import argparse
import os
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def right(completions, **kwargs):
    return [1.0 for c in completions]


def add(a: int, b: int) -> int:
    \"\"\"Add two integers.

    Args:
        a: The first.
        b: The second.
    \"\"\"
    return a + b


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--big", action="store_true")
    parser.add_argument("--sft", action="store_true")
    args = parser.parse_args()
    lr = 1e-6
    if args.big:
        lr = 3e-6
    try:
        model = os.environ["A_MODEL_OF_NOBODYS"]
    except KeyError:
        model = "m"
    {lora}
    if args.big:
        config = GRPOConfig(num_generations=16, beta=0.5, learning_rate=lr)
    else:
        config = GRPOConfig(num_generations=4, learning_rate=lr)
    if args.big:
        config.temperature = 0.5
    if args.sft:
        SFTTrainer(model="m", args=SFTConfig(learning_rate=1e-3), train_dataset=load_dataset("x")).train()
    tools = [add] if args.tools else None
    GRPOTrainer(
        model=model, reward_funcs=right, args=config, train_dataset=load_dataset("x"), tools=tools, peft_config={peft}
    ).train()
"""
LORA = "LoraConfig(r=8, lora_alpha=64)"


@pytest.mark.parametrize(
    ("lora", "peft"),
    [
        ("", f"{LORA} if args.lora else None"),
        (f"peft = {LORA} if args.lora else None", "peft"),
        (f"peft = None\n    if args.lora:\n        peft = {LORA}", "peft"),
        (f"if args.lora:\n        peft = {LORA}\n    else:\n        peft = None", "peft"),
    ],
)
def test_what_a_switch_leaves_out_is_not_in_the_recipe(imported, lora, peft):
    script = OF_SWITCHES.format(lora=lora, peft=peft)
    _, path, told = imported(script)
    cfg = load(str(path), {})
    assert cfg.ds.lora.rank == 0 and cfg.env.name == "echo" and cfg.actor.model_name_or_path == "m"
    assert (cfg.rollout.n_samples_per_prompt, cfg.algo.kl.init_coef, cfg.actor.learning_rate) == (4, 0.0, 1e-6)
    assert cfg.rollout.temperature == 1.0 and "SFTTrainer" not in told and "learning_rate" not in told

    _, path, told = imported(script, "--lora", "--tools", "--big", "--sft")
    cfg = load(str(path), {})
    assert (cfg.ds.lora.rank, cfg.ds.lora.alpha) == (8, 64) and cfg.env.name == "tools"
    assert (cfg.rollout.n_samples_per_prompt, cfg.algo.kl.init_coef, cfg.actor.learning_rate) == (16, 0.5, 3e-6)
    assert cfg.rollout.temperature == 0.5 and re.search(r" SFTTrainer .* \d+", told)


OF_CONFIGS = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer


def right(completions, **kwargs):
    return [1.0 for c in completions]


lora = LoraConfig(r=16, lora_alpha=64)
bits = BitsAndBytesConfig(load_in_4bit=True)
config = GRPOConfig(learning_rate=2e-6, temperature=0.7)
model = AutoModelForCausalLM.from_pretrained("m")
judge = AutoModelForSequenceClassification.from_pretrained("rm")
{more}
trainer = GRPOTrainer(model, right, train_dataset="rows"{given})
"""


@pytest.mark.parametrize(
    ("more", "given", "rank"),
    [
        ("", "", 0),
        ("", ", peft_config=None", 0),
        ("judge = get_peft_model(judge, lora)", "", 0),
        ("judge.add_adapter(lora)", "", 0),
        ("", ", peft_config=get_peft_config(arguments)", 0),
        ("", ", peft_config=lora", 16),
        ("model = get_peft_model(model, lora)", "", 16),
        ("get_peft_model(model, peft_config=lora)", "", 16),
        ("get_peft_model(model, LoraConfig())", "", 8),
        ("model.add_adapter(lora)", "", 16),
        ("table = {'peft_config': lora}", ", **table", 16),
        ("table = tables(lora)", ", **table", 16),
        ("table = tables()", ", **table", 0),
        ("unused = LoraConfig(r=4)\ntrained = unsloth(lora)", ", peft_config=trained", 16),
    ],
)
def test_adapters_that_reach_neither_trainer_nor_model_are_not_trained(imported, more, given, rank):
    _, path, told = imported(OF_CONFIGS.format(more=more, given=f", args=config{given}"))
    assert load(str(path), {}).ds.lora.rank == rank
    assert bool(re.search(r"line \d+: \w*LoraConfig\(\.\.\.\) ", told)) == (rank != 16 or "unused" in more)


GIVEN = """
import torch
from trl import GRPOConfig, GRPOTrainer


def right(completions, **kwargs):
    return [1.0 for c in completions]


GRPOTrainer("m", right, GRPOConfig({}), "rows")
"""


@pytest.mark.parametrize(
    ("harmless", "differing"),
    [
        ("optim='adamw_torch_fused'", "optim='adafactor'"),
        ("optim='adamw_torch'", "optim='adamw_8bit'"),
        ("fp16=False", "fp16=True"),
        ("bf16=True", "bf16=False"),
        ("bf16=None", "bf16=torch.cuda.is_bf16_supported()"),
        ("dtype='bfloat16'", "dtype='float16'"),
        ("model_init_kwargs={'torch_dtype': torch.bfloat16}", "model_init_kwargs={'torch_dtype': torch.float16}"),
        ("model_init_kwargs={'device_map': None}", "model_init_kwargs={'revision': 'v2'}"),
        ("vllm_model_impl='vllm'", "vllm_structured_outputs_regex='[0-9]+'"),
        ("vllm_server_host='h'", "vllm_something_new=1"),
        ("trust_remote_code=False", "trust_remote_code=True"),
        ("router_aux_loss_coef=0.0", "router_aux_loss_coef=0.01"),
        ("repetition_penalty=1.0", "repetition_penalty=1.1"),
        ("top_entropy_quantile=1.0", "top_entropy_quantile=0.2"),
        ("sync_ref_model=False", "sync_ref_model=True"),
        ("deepspeed={'zero_optimization': {'stage': 3}}", "deepspeed='nowhere.json'"),
        ("deepspeed={'fp16': {'enabled': 'auto'}}", "deepspeed={'fp16': {'enabled': True}}"),
        (
            "deepspeed={'optimizer': {'type': 'AdamW', 'params': {'lr': 'auto'}}}",
            "deepspeed={'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-5}}}",
        ),
        ("save_strategy='steps'", "save_strategy='epoch'"),
    ],
)
def test_an_argument_that_needs_nothing_for_some_values_is_told_of_for_the_others(imported, harmless, differing):
    name = differing.partition("=")[0]
    assert f"differs: {name}" not in imported(GIVEN.format(harmless))[2]
    assert f"differs: {name}" in imported(GIVEN.format(differing))[2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("save_strategy='no'", {"ckpt.save_steps": -1}),
        ("save_steps=30", {"ckpt.save_steps": 30}),
        ("shuffle_dataset=False", {"data.shuffle": False}),
        ("use_vllm=False", {"algo.advantage.is_correction_level": "off", "actor.pi_old": None}),
        ("use_vllm=True, vllm_importance_sampling_correction=False", {"actor.pi_old": "learner"}),
        (
            "use_vllm=True",
            {"algo.advantage.is_correction_level": "seq", "algo.advantage.is_correction_threshold": (3.0,)},
        ),
        (
            "use_vllm=True, vllm_importance_sampling_mode='token_truncate', vllm_importance_sampling_cap=2.0",
            {
                "algo.advantage.is_correction_level": "token",
                "algo.advantage.is_correction_mode": "clip",
                "algo.advantage.is_correction_threshold": (2.0,),
            },
        ),
        (
            "use_vllm=True, vllm_importance_sampling_mode='token_mask'",
            {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "mask"},
        ),
        (
            "use_vllm=True, importance_sampling_level='sequence'",
            {"algo.advantage.is_correction_level": "off", "actor.policy_loss_type": "gspo"},
        ),
    ],
)
def test_an_argument_that_trains_otherwise_becomes_a_setting(imported, given, expected):
    _, path, told = imported(GIVEN.format(given))
    cfg = load(str(path), {})
    for name, value in expected.items():
        held = cfg
        for part in name.split("."):
            held = getattr(held, part)
        assert held == value, name
    assert ("differs: vllm_importance_sampling_mode" in told) == (given.endswith(("use_vllm=True", "'sequence'")))


def test_dropout_of_adapters_is_off_where_the_script_disables_dropout(imported):
    script = SCRIPT.replace("LoraConfig(r=16", "LoraConfig(lora_dropout=0.1, r=16")
    _, path, _ = imported(script)
    assert load(str(path), {}).ds.lora.dropout == 0.1
    _, path, _ = imported(script.replace("bf16=True", "disable_dropout=True"))
    assert load(str(path), {}).ds.lora.dropout == 0.0


def test_a_checkpoint_of_each_epoch_is_saved_where_the_rows_are_known(imported):
    _, path, _ = imported(SCRIPT.replace("bf16=True", "save_strategy='epoch'").replace("2 * N", "N"))
    assert load(str(path), {}).ckpt.save_steps == 1  # 2 rows, batches of 2


@pytest.mark.parametrize(("loss", "is_said"), [("grpo", False), ("dr_grpo", True), ("dapo", True), ("luspo", True)])
def test_what_the_ratio_of_a_response_leaves_of_the_loss_is_said(imported, loss, is_said):
    _, path, told = imported(GIVEN.format(f"loss_type='{loss}', importance_sampling_level='sequence'"))
    assert load(str(path), {}).actor.policy_loss_type == "gspo" and (f"loss_type='{loss}'" in told) == is_said
    assert "loss_agg_mode" not in path.read_text()


@pytest.mark.parametrize(("epsilon", "is_said"), [("epsilon=0.2, epsilon_high=0.28", True), ("epsilon=3e-4", False)])
def test_a_clip_range_for_tokens_is_said_of_the_ratio_of_a_response_and_kept(imported, epsilon, is_said):
    _, path, told = imported(GIVEN.format(f"loss_type='grpo', importance_sampling_level='sequence', {epsilon}"))
    kept = load(str(path), {}).actor.eps_clip_low_high
    assert kept == ((0.2, 0.28) if is_said else (3e-4, 3e-4))
    assert ("actor.eps_clip_low_high" in told) == is_said
    _, _, told = imported(GIVEN.format(epsilon))
    assert "actor.eps_clip_low_high" not in told


def test_adapters_of_the_command_s_flags_need_a_trainer_that_is_given_them(imported):
    _, path, told = imported(OF_CONFIGS.format(more="", given=", args=config"), "--use_peft", "--lora_r", "4")
    assert load(str(path), {}).ds.lora.rank == 0 and "--use_peft" in told


@pytest.mark.parametrize(
    ("more", "given", "rate", "temperature"),
    [
        ("config.temperature = 0.5", ", args=config", 2e-6, 0.5),
        ("config.temperature = 0.5", "", 1e-6, 1.0),
        ("config.temperature = 0.5", ", args=None", 1e-6, 1.0),
        ("other = GRPOConfig(temperature=0.9)\nconfig.temperature = 0.5", ", args=other", 1e-6, 0.9),
        ("unused = GRPOConfig(temperature=0.9)\nc = made(config)", ", args=c", 2e-6, 0.7),
    ],
)
def test_a_config_that_the_trainer_is_not_given_is_not_read(imported, more, given, rate, temperature):
    _, path, told = imported(OF_CONFIGS.format(more=more, given=given))
    cfg = load(str(path), {})
    assert (cfg.actor.learning_rate, cfg.rollout.temperature) == (rate, temperature)
    assert bool(re.search(r"line \d+: GRPOConfig\(\.\.\.\) ", told)) == (given != ", args=config")


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", False),
        ('judge = AutoModel.from_pretrained("rm", quantization_config=bits)', False),
        ('judge = AutoModel.from_pretrained("rm", load_in_4bit=True)', False),
        ('model = AutoModelForCausalLM.from_pretrained("m", quantization_config=bits)', True),
        ('model = AutoModelForCausalLM.from_pretrained("m", load_in_8bit=True)', True),
        ("config.model_init_kwargs = {'quantization_config': bits}", True),
    ],
)
def test_only_the_trainer_s_model_counts_as_quantised(imported, more, is_said):
    _, _, told = imported(OF_CONFIGS.format(more=more, given=", args=config"))
    assert ("(ds.param_dtype)" in told) == is_said


def test_a_switch_that_only_a_run_knows_is_said(imported):
    _, path, told = imported(OF_SWITCHES.format(lora="", peft=f"{LORA} if os.path.exists('adapter') else None"))
    assert load(str(path), {}).ds.lora.rank == 8 and "os.path.exists" in told


@pytest.mark.parametrize(
    ("arguments", "ratio", "told_of_it"),
    [
        ("max_steps=40, warmup_steps=10", 0.25, False),
        ("warmup_steps=1, num_train_epochs=2", 0.5, False),
        ("warmup_steps=0.1", 0.1, False),
        ("warmup_ratio=0.2", 0.2, False),
    ],
)
def test_a_warm_up_in_steps_becomes_a_share_of_the_updates(imported, arguments, ratio, told_of_it):
    """Two rows of four responses for each of two prompts a batch: one update a pass."""
    text = SCRIPT.replace("max_steps=3,", "").replace("warmup_ratio=0.1,", f"{arguments},")
    text = text.replace("per_device_train_batch_size=2 * N", "per_device_train_batch_size=N")
    _, path, told = imported(text)
    assert load(str(path), {}).actor.lr_warmup_ratio == pytest.approx(ratio)
    assert ("differs: warmup_steps" in told) == told_of_it


def test_a_warm_up_of_unknown_length_has_a_sentence(imported):
    text = SCRIPT.replace("max_steps=3,", "").replace("warmup_ratio=0.1,", "warmup_steps=10,")
    text = text.replace("Dataset.from_list(rows)", "load_dataset('x')")
    _, path, told = imported(text)
    assert load(str(path), {}).actor.lr_warmup_ratio == 0.0 and "differs: warmup_steps=10" in told


@pytest.mark.parametrize(
    ("report_to", "tensorboard", "sentences"),
    [
        ('"none"', None, []),
        ('"wandb"', "tensorboard", ["wandb"]),
        ('["tensorboard", "trackio"]', "tensorboard", ["trackio"]),
    ],
)
def test_trackers_are_set_or_have_a_sentence(imported, report_to, tensorboard, sentences):
    _, path, told = imported(SCRIPT.replace('report_to="none"', f"report_to={report_to}"))
    assert load(str(path), {}).logger.tensorboard_dir == tensorboard
    assert [line.split()[3].rstrip(":") for line in told.splitlines() if "differs: report_to" in line] == sentences


def test_what_is_trained_is_said_in_the_words_of_a_run(imported):
    _, path, told = imported()
    assert f"import: {method_summary(load(str(path), {}))}." in told.splitlines()


@pytest.mark.parametrize(
    "rewards",
    [
        "[accuracy] + ([brevity] if N > 2 else [])",
        "[accuracy, *others]",
        "list((accuracy, *others))",
        "REWARDS",
        "COPY",
        "funcs",
        "more",
    ],
)
def test_lists_of_rewards_that_are_joined_are_read(imported, rewards):
    text = SCRIPT.replace("[accuracy, brevity]", rewards).replace('output_dir="out"', 'output_dir="out" + "/" + MODEL')
    lists = "others = [brevity]\nREWARDS = [accuracy] + others\nCOPY = list([accuracy])\nCOPY.append(brevity)\n"
    lists += "def built():\n    funcs = [accuracy]\n    funcs.append(brevity)\n    return funcs\n\n\nfuncs = built()\n"
    lists += "more = []\nmore.append(accuracy)\nmore = more + [brevity]"
    text = text.replace("\n\ndef main():", f"\n\n{lists}\n\n\ndef main():")
    _, path, told = imported(text)
    names = [name.rpartition(":")[2] for name in load(str(path), {}).reward.weights]
    assert names == ["accuracy", "brevity"] and "reward_funcs" not in told and "reward_weights" not in told
    assert " output_dir=out/Qwen" in told


def test_a_list_that_is_joined_to_itself_is_read(imported):
    text = SCRIPT.replace(
        "def main():\n", "def main(others=ask()):\n    others = others + [brevity]\n    others = [accuracy] + others\n"
    )
    _, path, told = imported(text.replace("[accuracy, brevity]", "others").replace("reward_weights=[1.0, 0.5],", ""))
    names = [name.rpartition(":")[2] for name in load(str(path), {}).reward.weights]
    assert names == ["accuracy", "brevity"] and "differs: reward_funcs=" in told, "what the caller gives is said"


def test_a_rehearsal_trains_responses_that_are_cut(imported, tmp_path, capsys):
    """An untrained model ends none: with mask_truncated_completions every group would be dropped."""
    text = SCRIPT.replace("bf16=True", "mask_truncated_completions=True")
    _, path, _ = imported(text)
    assert load(str(path), {}).filter.sample == "over_length"
    out = tmp_path / "rehearsed.toml"
    assert main(["import-trl", "--rehearse", str(tmp_path / "train.py"), "--out", str(out)]) == 0
    assert load(str(out), {}).filter.sample is None


RLOO = """
from trl import RLOOConfig, RLOOTrainer


def right(completions, **kwargs):
    return [1.0 for _ in completions]


RLOOTrainer('m', right, RLOOConfig({arguments}), 'rows')
"""


def test_rloo_has_its_own_defaults_its_kl_in_the_reward_and_responses_as_actions(imported):
    _, path, told = imported(RLOO.format(arguments="reward_clip_range=(-5, 5), epsilon=0.3"))
    cfg = load(str(path), {})
    assert (cfg.algo.advantage.estimator, cfg.rollout.n_samples_per_prompt) == ("rloo", 2)
    assert (cfg.algo.kl.init_coef, cfg.algo.kl.use_loss, cfg.algo.kl.estimator) == (0.05, False, "k1")
    assert (cfg.actor.loss_agg_mode, cfg.actor.loss_agg_constant) == ("seq-mean-token-sum-norm", 1.0)
    assert cfg.reward.clip_range == (-5.0, 5.0) and cfg.actor.eps_clip_low_high == (0.3, 0.3)
    assert "normalize_advantages" not in told and " beta=0.05" in told
    _, path, told = imported(RLOO.format(arguments="beta=0.0, normalize_advantages=True, num_generations=4"))
    cfg = load(str(path), {})
    assert (cfg.algo.kl.init_coef, cfg.rollout.n_samples_per_prompt) == (0.0, 4)
    assert "normalize_advantages" in told and " beta" not in told


MESSAGES = [{"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize(
    ("prompts", "rendered"),
    [(["1+1?"], False), ([MESSAGES], True), (["1+1?", MESSAGES], True)],
)
def test_prompts_that_are_texts_are_not_rendered_by_the_chat_template(imported, tmp_path, prompts, rendered):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    data = "load_dataset('json', data_files='rows.jsonl')"
    _, path, _ = imported(HEAD + f"GRPOTrainer('m', right, GRPOConfig(), {data})")
    assert load(str(path), {}).data.apply_chat_template is rendered


@pytest.mark.parametrize(
    ("trainer", "arguments", "code"),
    [
        ("Own_GRPOTrainer", "model='m', reward_funcs=right, args=config, train_dataset='rows'", 0),
        ("GRPOTrainer", "model='m', reward_funcs=right, args=config, train_dataset='rows'", 0),
        ("FlowGRPOTrainer", "config=config, workers=3", 2),
    ],
)
def test_a_trainer_from_another_module_is_read_as_trls_with_a_sentence(imported, trainer, arguments, code):
    text = HEAD.replace(
        "from trl import GRPOConfig, GRPOTrainer", f"from mine.trainers import {trainer}, OwnGRPOConfig"
    )
    text += f"config = OwnGRPOConfig(learning_rate=7e-6)\n{trainer}({arguments})"
    found, path, told = imported(text)
    assert found == code
    if code == 0:
        assert load(str(path), {}).actor.learning_rate == 7e-6 and f"{trainer} (of mine.trainers)" in told


def test_arguments_of_the_trainer_that_are_not_known_are_said(imported):
    _, _, told = imported(HEAD + "GRPOTrainer(model='m', reward_funcs=right, args=GRPOConfig(), env=make())")
    assert "GRPOTrainer(env=...)" in told and "train_dataset= " not in told


OF_A_PACKAGE = {
    "pack/configs.py": """
from dataclasses import dataclass, field
import trl


@dataclass
class Arguments(trl.ScriptArguments):
    reward_funcs: list[str] = field(default_factory=lambda: ["right", "short"])
    most: int = field(default=10)
""",
    "pack/rewards.py": """
class Short:
    __name__ = "short"

    def __init__(self, most):
        self.most = most

    def __call__(self, completions, **kwargs):
        return [-len(c) / self.most for c in completions]


def right(completions, **kwargs):
    return [1.0 for _ in completions]


def get_reward_funcs(script_args):
    registry = {"right": right, "short": Short(most=script_args.most)}
    return [registry[name] for name in script_args.reward_funcs]
""",
    "pack/train.py": """
from trl import GRPOConfig, GRPOTrainer, TrlParser
from pack.configs import Arguments
from pack.rewards import Short, get_reward_funcs

if __name__ == "__main__":
    script_args, training_args = TrlParser((Arguments, GRPOConfig)).parse_args_and_config()
    far = Short(most=7)
    GRPOTrainer("m", {rewards}, training_args, "rows")
""",
}


@pytest.mark.parametrize(
    ("rewards", "words", "values"),
    [
        ("get_reward_funcs(script_args)", ["--most", "20"], [-0.1, 1.0]),
        ("get_reward_funcs(script_args)", ["--reward_funcs", "short"], [-0.2]),
        ("[far]", [], [-2 / 7]),
    ],
)
def test_rewards_of_the_script_s_package_are_written_with_the_values_of_its_arguments(
    tmp_path, rewards, words, values, capsys
):
    for name, text in OF_A_PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("{rewards}", rewards))
    out = tmp_path / "run/r.toml"
    assert main(["import-trl", str(tmp_path / "pack/train.py"), "--out", str(out), *words]) == 0
    reward = load(str(out), {}).reward
    functions = [load_plugin(REWARD, name) for name in reward.weights or [reward.name]]
    assert sorted(function(["ab"])[0] for function in functions) == values


OF_ENVIRONMENTS = """
from trl import GRPOConfig, GRPOTrainer


class Counter:
    def reset(self, **kwargs):
        self.total = 2.0
        self.done = None

    def add(self, n: int) -> int:
        \"\"\"Add.

        Args:
            n: A number.
        \"\"\"
        self.total += n
        return self.total


def total(environments, **kwargs):
    return [e.total for e in environments]


def done(completions, environments, **kwargs):
    return [e.done for e in environments]


def both(completions, environments, **kwargs):
    return [e.total * len(c) for e, c in zip(environments, completions)]


async def later(environments, **kwargs):
    return [e.total for e in environments]


def plain(completions, **kwargs):
    return [0.0 for _ in completions]


GRPOTrainer('m', {rewards}, GRPOConfig(reward_weights={weights}), 'rows', environment_factory={factory})
"""


@pytest.mark.parametrize(
    ("rewards", "weights", "value", "expected"),
    [
        ("total", None, 2.0, {}),
        ("[total, done, plain]", [0.5, 3.0, 0.25], 1.0, {"env": 1.0, "r_functions.py:plain": 0.25}),
        ("[done]", [2.0], 0.0, {}),
    ],
)
def test_rewards_of_trls_environments_are_asked_by_the_environment(imported, rewards, weights, value, expected):
    _, path, _ = imported(OF_ENVIRONMENTS.format(rewards=rewards, weights=weights, factory="Counter"))
    cfg = load(str(path), {})
    assert dict(cfg.reward.weights or {}) == {
        name.replace("r_functions.py", str(path.parent / "r_functions.py")): weight for name, weight in expected.items()
    }
    assert expected or cfg.reward.name == "env"
    counter = load_plugin(ENVIRONMENT, f"{path.parent / 'r_functions.py'}:Counter")().environment()
    counter.reset()
    assert counter.get_reward() == value


def test_the_prompts_of_an_environment_are_messages_whatever_its_rows_hold(imported, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1?"}) + "\n")
    text = OF_ENVIRONMENTS.format(rewards="total", weights=None, factory="Counter")
    for rows in ("'rows'", "load_dataset('json', data_files='rows.jsonl')"):
        _, path, told = imported(f"from datasets import load_dataset\n{text.replace(repr('rows'), rows)}")
        assert load(str(path), {}).data.apply_chat_template and "apply_chat_template" not in told


def test_an_argument_that_is_none_is_as_if_it_were_not_given(imported):
    _, path, told = imported(
        HEAD + "GRPOTrainer('m', right, GRPOConfig(num_generations=None, odd=None, even=2), 'rows')"
    )
    assert load(str(path), {}).rollout.n_samples_per_prompt == 8 and "even" in told and "odd" not in told


def test_a_get_reward_that_reward_functions_call_is_left_as_it_is(imported):
    own = "\n    def get_reward(self):\n        return self.total\n\n\ndef total"
    text = OF_ENVIRONMENTS.replace("\n\ndef total", own).replace("[e.total for", "[e.get_reward() for")
    _, path, told = imported(text.format(rewards="total", weights=None, factory="Counter"))
    assert "get_reward" in told and "reward" not in tomllib.loads(path.read_text())
    counter = load_plugin(ENVIRONMENT, f"{path.parent / 'r_functions.py'}:Counter")().environment()
    counter.reset()
    assert counter.get_reward() == 2.0


@pytest.mark.parametrize(
    ("rewards", "factory"), [("both", "Counter"), ("later", "Counter"), ("total", "lambda: Counter()")]
)
def test_what_an_environment_cannot_be_asked_has_a_sentence(imported, rewards, factory):
    _, path, told = imported(OF_ENVIRONMENTS.format(rewards=rewards, weights=None, factory=factory))
    assert "get_reward" in told and "reward" not in tomllib.loads(path.read_text())


@pytest.mark.parametrize(("names", "value"), [(NUMBERS, "abc"), (NUMBERS, "nan"), (WHOLE, "1.5"), (FROM_ONE_ON, "0")])
@pytest.mark.parametrize("trainer", ["GRPO", "SFT"])
def test_values_that_trl_could_not_use_are_said_and_left_at_its_defaults(imported, trainer, names, value):
    words = [word for name in sorted(names) for word in (f"--{name}", value)]
    text = f"from trl import {trainer}Config, {trainer}Trainer\n{trainer}Trainer(model='m', args={trainer}Config())\n"
    _, path, told = imported(text, *words)
    assert all(f"{name}=" in told for name in names)
    _, defaults, _ = imported(text)
    assert path.read_text().partition("\nrun_dir")[2] == defaults.read_text().partition("\nrun_dir")[2]


def test_texts_that_are_numbers_are_read_as_trl_reads_them(imported):
    _, path, told = imported(SCRIPT.replace("learning_rate=5e-6", 'learning_rate="5e-6"'))
    assert tomllib.loads(path.read_text())["actor"]["learning_rate"] == 5e-6 and "learning_rate" not in told


@pytest.mark.parametrize(
    ("lora", "rank", "is_said"),
    [("r=int(os.environ['NO_SUCH'])", 8, True), ("r='x'", 8, True), ("r=0", 8, True), ("r=4", 4, False)],
)
def test_a_rank_that_is_not_known_is_said(imported, lora, rank, is_said):
    _, path, told = imported(SCRIPT.replace("r=16", lora))
    assert tomllib.loads(path.read_text())["ds"]["lora"]["rank"] == rank
    assert ("LoRA's r" in told) == is_said


def test_a_share_of_the_run_between_checkpoints_is_counted_in_updates(imported):
    _, path, _ = imported(SCRIPT, "--save_steps", "0.25", "--max_steps", "30")
    assert tomllib.loads(path.read_text())["ckpt"]["save_steps"] == 8
    sft = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='m', args=SFTConfig(save_steps=0.25))\n"
    assert "save_steps=0.25" in imported(sft)[2]


def test_flags_that_switch_off_and_tables_of_json_are_read_as_by_the_parser(imported):
    words = ("--no_gradient_checkpointing", "--chat_template_kwargs", '{"enable_thinking": false}')
    _, path, told = imported(SCRIPT, *words)
    recipe = tomllib.loads(path.read_text())
    assert recipe["actor"]["gradient_checkpointing_enable"] is False and "no_gradient" not in told
    assert recipe["data"]["chat_template_options"] == {"enable_thinking": False}
    declared = SCRIPT.replace("    trainer.train()", "    parser.add_argument('--no_train', action='store_true')")
    assert "train=False" not in imported(declared, "--no_train")[2]


@pytest.mark.parametrize(
    ("launcher", "nodes", "per_node", "is_said"),
    [
        ("accelerate launch --config_file acc.yaml", 1, 4, False),
        ("accelerate launch --config_file acc.yaml --num_processes 2", 1, 2, False),
        ("accelerate launch --config_file nowhere.yaml", 1, 1, True),
        ("accelerate launch", 1, 1, True),
        ("accelerate launch --num_machines 2 --num-processes 16", 2, 8, False),
        ("torchrun --nnodes 2 --nproc_per_node 8", 2, 8, False),
        ("torchrun --nnodes=1:4 --nproc_per_node 8", 1, 1, True),
        ("torchrun --nproc_per_node=gpu", 1, 1, True),
        ("deepspeed --include a:0,1@b:0,1", 2, 2, False),
        ("deepspeed --num_nodes 3 --num_gpus 2", 3, 2, False),
        ("python -u", 1, 1, False),
    ],
)
def test_a_batch_is_of_all_devices_that_the_launcher_was_told_of(tmp_path, capsys, launcher, nodes, per_node, is_said):
    (tmp_path / "train.py").write_text(HEAD + "GRPOTrainer('m', right, GRPOConfig(), 'rows')")
    (tmp_path / "acc.yaml").write_text("num_machines: 1\nnum_processes: 4\n")
    (tmp_path / "launch.sh").write_text(f"{launcher} train.py --per_device_train_batch_size 8\n")
    assert main(["import-trl", "--out", str(tmp_path / "r.toml"), str(tmp_path / "launch.sh")]) == 0
    recipe = tomllib.loads((tmp_path / "r.toml").read_text())
    assert (recipe["actor"].get("num_nodes", 1), recipe["actor"]["num_gpus_per_node"]) == (nodes, per_node)
    assert recipe["rollout"]["batch_size"] == nodes * per_node
    assert ("--gpus N" in capsys.readouterr().err) == is_said


@pytest.mark.parametrize("started", ["python train.py", "trl sft --dataset_name d --model_name_or_path m"])
def test_every_training_command_of_a_bash_script_can_be_chosen(tmp_path, capsys, started):
    (tmp_path / "train.py").write_text(HEAD + "GRPOTrainer('m', right, GRPOConfig(), 'rows')")
    (tmp_path / "other.py").write_text("print(1)\n")
    (tmp_path / "sweep.sh").write_text(
        f"python other.py\nfor lr in 1e-6 2e-6 2e-6; do\n  {started} --learning_rate $lr\ndone\n"
    )
    words = ["import-trl", "--force", "--out", str(tmp_path / "r.toml"), str(tmp_path / "sweep.sh")]
    for number, rate in ((1, 1e-6), (2, 2e-6)):
        assert main([*words, "--number", str(number)]) == 0
        recipe = tomllib.loads((tmp_path / "r.toml").read_text())
        assert recipe["sft" if "sft" in started else "actor"]["learning_rate"] == rate
        assert f"--number {3 - number}" in capsys.readouterr().err
    assert main([*words, "--number", "3"]) == 2
    assert main(["import-trl", str(tmp_path / "train.py"), "--number", "2"]) == 2


def test_a_value_of_a_bash_script_that_only_a_run_can_tell_is_said(tmp_path, capsys):
    (tmp_path / "train.py").write_text(HEAD + "GRPOTrainer('m', right, GRPOConfig(learning_rate=3e-6), 'rows')")
    (tmp_path / "s.sh").write_text("python train.py --learning_rate $(python rate.py) --max_steps 7\n")
    assert main(["import-trl", "--out", str(tmp_path / "r.toml"), str(tmp_path / "s.sh")]) == 0
    recipe = tomllib.loads((tmp_path / "r.toml").read_text())
    assert recipe["train"]["max_steps"] == 7
    assert recipe["actor"]["learning_rate"] == 1e-6  # TRL's default
    assert " learning_rate: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "bash",
    [
        "cat > gen/train.py <<'EOF'\n"
        + HEAD
        + "GRPOTrainer('m', right, GRPOConfig(), 'rows')\nEOF\npython gen/train.py",
        "accelerate launch --num_processes 1 trl/scripts/grpo.py --model_name_or_path m --dataset_name rows",
        "accelerate launch --num_processes 1 -m trl.scripts.grpo --model_name_or_path m --dataset_name rows",
    ],
)
def test_a_script_that_is_written_on_the_way_and_those_of_trl_are_read(tmp_path, bash):
    (tmp_path / "s.sh").write_text(f"{bash} --beta 0.04\n")
    assert main(["import-trl", "--out", str(tmp_path / "r.toml"), str(tmp_path / "s.sh")]) == 0
    recipe = tomllib.loads((tmp_path / "r.toml").read_text())
    assert recipe["algo"]["kl"]["init_coef"] == 0.04 and recipe["actor"]["model_name_or_path"] == "m"


@pytest.mark.parametrize(
    ("more", "flags"), [("", "--accelerate_config acc.yaml"), ("num_processes: 3\n", ""), ("", "--num_processes 3")]
)
def test_files_of_arguments_that_a_bash_script_writes_itself_are_read(tmp_path, capsys, more, flags):
    (tmp_path / "s.sh").write_text(
        f"cat > args.yaml <<EOF\nmodel_name_or_path: m\ndataset_name: rows\nlearning_rate: 2e-6\n{more}EOF\n"
        "cat > acc.yaml <<EOF\nnum_processes: 3\nEOF\n"
        f"trl grpo --config args.yaml {flags} --bogus 3\n"
    )
    assert main(["import-trl", "--out", str(tmp_path / "r.toml"), str(tmp_path / "s.sh")]) == 0
    actor = tomllib.loads((tmp_path / "r.toml").read_text())["actor"]
    assert (actor["model_name_or_path"], actor["learning_rate"], actor["num_gpus_per_node"]) == ("m", 2e-6, 3)
    told = capsys.readouterr().err
    assert "bogus=3" in told and "accelerate_config=" not in told and "num_processes=" not in told
