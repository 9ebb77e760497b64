"""`export`: the model of a checkpoint, put together from files of two ranks, written by hand as DeepSpeed cuts them.

It is held against the weights that hf_weights gives for a policy with the same numbers: what an export of the run has.
"""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.cli.exit_codes import code_of
from openrlhf_tir.cluster.jobs.export import checkpoint_of
from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import to_toml
from openrlhf_tir.errors import CheckpointDamaged, ConfigError
from openrlhf_tir.pipeline.checkpoints import manifest
from openrlhf_tir.pipeline.checkpoints.lineage import checkpoints_of
from tests.e2e.support.tiny_model import save_tiny

from .test_shards import parts_of

pytestmark = pytest.mark.slow  # importing torch and deepspeed

KINDS: dict[str, dict] = {
    "bf16": {"ds": {"param_dtype": "bf16"}},
    "fp32 and an average": {"ds": {"param_dtype": "fp32"}, "train": {"ema_beta": 0.9}},
    "lora and an average": {"ds": {"param_dtype": "bf16", "lora": {"rank": 4, "alpha": 8}}, "train": {"ema_beta": 0.9}},
    "zero 2": {"ds": {"param_dtype": "bf16", "zero_stage": 2}},
}
RANKS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved policy") / "base")


@pytest.fixture(autouse=True)
def no_process_group():
    """The command makes its own."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def config(model, run_dir, **sections) -> Config:
    return Config.model_validate(
        {"run_dir": str(run_dir), "actor": {"model_name_or_path": str(model), "num_gpus_per_node": RANKS}, **sections}
    )


def policy(cfg):
    """The policy as it trains: parameters in the dtype of ds.param_dtype."""
    import torch.distributed as dist

    from openrlhf_tir.learner.openrlhf_adapter import PolicyModel
    from openrlhf_tir.learner.saved.policy import DTYPES, PLAIN

    from .plain_strategy import PlainStrategy

    plain = cfg.model_copy(update={"ds": cfg.ds.model_copy(update=PLAIN)})
    strategy = PlainStrategy(plain)
    strategy.setup_distributed(0, 1, "", 0)
    module = PolicyModel(plain, strategy).model
    dist.destroy_process_group()
    for parameter in module.parameters():
        parameter.data = parameter.data.to(DTYPES[cfg.ds.param_dtype])
    return module


def drawn(module, seed: int) -> dict:
    """New numbers for every trained parameter."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) for name, p in module.named_parameters() if p.requires_grad}


def parts(tensor) -> list:
    return [part.to(tensor.dtype) for part in parts_of(tensor.flatten().tolist(), RANKS)]


def exported_by_the_run(module, numbers) -> dict:
    from openrlhf_tir.learner.lora import hf_weights

    for name, parameter in module.named_parameters():
        if name in numbers:
            parameter.data = numbers[name].to(parameter.dtype)
    return {weight.name: weight.value().clone() for weight in hf_weights(module)}


def flat_groups(numbers, rank: int) -> list:
    """Two sub groups: matrices and the rest."""
    import torch

    return [torch.cat([parts(numbers[name])[rank] for name in names]) for names in names_of_groups(numbers)]


def names_of_groups(numbers) -> list[list[str]]:
    groups = [
        [name for name, tensor in numbers.items() if (tensor.dim() > 1) == matrices] for matrices in (True, False)
    ]
    return [group for group in groups if group]


def save(cfg, step: str, seed: int) -> dict:
    """Write a checkpoint, and return what the run would export: {"model": tensors, "model_ema": tensors}."""
    import torch

    directory = cfg.run_dir / cfg.ckpt.path / step
    zero = directory / "learner" / "zero"
    zero.mkdir(parents=True)
    module = policy(cfg)
    masters, average = drawn(module, seed), drawn(module, seed + 100)
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    expected = {"model": exported_by_the_run(module, masters)}
    if cfg.ds.zero_stage == 2:
        torch.save({"module": module.state_dict()}, zero / "mp_rank_00_model_states.pt")
    for rank in range(RANKS if cfg.ds.zero_stage == 3 else 0):
        optimizer = {"fp32_flat_groups": flat_groups(masters, rank), "optimizer_state_dict": {"state": {}}}
        torch.save({"optimizer_state_dict": optimizer}, zero / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        states = {
            "param_shapes": [{name: tuple(masters[name].shape) for name in g} for g in names_of_groups(masters)],
            "frozen_param_shapes": {name: tuple(p.shape) for name, p in frozen.items()},
            "frozen_param_fragments": {name: parts(p.data)[rank] for name, p in frozen.items()},
            "buffer_names": [],
        }
        torch.save(states, zero / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        if cfg.train.ema_beta:
            torch.save(flat_groups(average, rank), zero.parent / f"ema_rank{rank}.pt")
    if cfg.train.ema_beta:
        expected["model_ema"] = exported_by_the_run(module, average)
    (zero.parent / "learner.json").write_text(json.dumps({"version": int(step[5:11]), "world_size": RANKS}))
    manifest.write(directory, step, {}, {})
    (cfg.run_dir / cfg.ckpt.path / "latest").write_text(step)
    (cfg.run_dir / "config.toml").write_text(to_toml(cfg))
    return expected


def command(*words) -> int:
    from openrlhf_tir.cli import main

    return main(["export", *map(str, words)])


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_has_the_bits_of_the_runs_own(model, tmp_path, kind):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cfg = config(model, tmp_path / "run", **KINDS[kind])
    expected = save(cfg, "step_000040", seed=1)
    save(cfg, "step_000060", seed=2)
    assert command(cfg.run_dir, "--step", 40, "--out", tmp_path / "out" / "model") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(expected)
    for name, tensors in expected.items():
        directory = tmp_path / "out" / name
        written = load_file(directory / "model.safetensors")
        assert written.keys() == tensors.keys()
        assert all(t.dtype == tensors[key].dtype and torch.equal(t, tensors[key]) for key, t in written.items())
        assert (directory / "adapter" / "adapter_config.json").exists() == bool(cfg.ds.lora.rank)
        assert AutoTokenizer.from_pretrained(directory).eos_token == "<eos>"
        assert AutoModelForCausalLM.from_pretrained(directory).config.use_cache


def test_the_last_step_is_the_default_and_best_is_what_the_run_noted(model, tmp_path):
    cfg = config(model, tmp_path)
    names = ("step_000020", "step_000040", "step_000040a", "step_000060")
    for name in names:
        (tmp_path / "ckpt" / name).mkdir(parents=True)
        manifest.write(tmp_path / "ckpt" / name, name, {}, {})
    (tmp_path / "ckpt" / "latest").write_text("step_000060")
    (tmp_path / "ckpt" / "best.json").write_text(json.dumps({"checkpoint": "step_000020", "score": 0.5}))
    checkpoints = checkpoints_of(cfg)
    chosen = [checkpoint_of(checkpoints, step).name for step in ("last", "best", 40, 20)]
    assert chosen == ["step_000060", "step_000020", "step_000040a", "step_000020"]
    with pytest.raises(ConfigError) as refused:
        checkpoint_of(checkpoints, 50)
    assert refused.value.code == "no_checkpoint" and all(name in str(refused.value) for name in names)
    (tmp_path / "ckpt" / "step_000020" / manifest.FILE).unlink()
    with pytest.raises(CheckpointDamaged):
        checkpoint_of(checkpoints, "best")


def test_nothing_is_written_where_the_command_refuses(model, tmp_path, capsys):
    cfg = config(model, tmp_path / "run")
    save(cfg, "step_000040", seed=1)
    assert command(cfg.run_dir, "--step", 50, "--out", tmp_path / "model") == code_of(ConfigError(""))
    assert "step_000040" in capsys.readouterr().err and not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    assert command(cfg.run_dir, "--out", tmp_path / "model") == code_of(ConfigError(""))
    assert not any((tmp_path / "model").iterdir())


def test_a_model_that_is_not_the_runs_is_refused(model, tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.e2e.support.tiny_model import make_tokenizer

    cfg = config(model, tmp_path / "run")
    save(cfg, "step_000040", seed=1)
    other = tmp_path / "other"
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=99, num_hidden_layers=3, **sizes)).save_pretrained(other)
    make_tokenizer().save_pretrained(other)
    (cfg.run_dir / "config.toml").write_text(to_toml(config(other, cfg.run_dir)))
    assert command(cfg.run_dir, "--out", tmp_path / "model") == code_of(ConfigError(""))
    assert not (tmp_path / "model").exists()
