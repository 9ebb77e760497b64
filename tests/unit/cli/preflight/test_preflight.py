"""Preflight: each thing that cannot work is refused before Ray or a model is loaded."""

from __future__ import annotations

import json
import re
import socket
from contextlib import nullcontext
from dataclasses import replace

import pytest

from openrlhf_tir.cli.checks import host as host_checks
from openrlhf_tir.cli.checks import isolation
from openrlhf_tir.cli.checks import model as model_checks
from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import load
from openrlhf_tir.data.hub import OFFLINE_VARIABLES
from openrlhf_tir.errors import ConfigError, DataError, Unavailable
from openrlhf_tir.learner.attention.choice import attention_implementation
from tests.free_port import free_port

from .runs import CPU, GPUS, refused


def test_a_run_that_can_work_gives_facts(ready):
    facts = check(load(None, ready), machine=CPU)
    assert "0 GPUs, 2 CPUs" in facts
    assert any(f.startswith("2 ") and "d.jsonl" in f for f in facts)
    assert any(re.search(r" 1 .*train\.max_steps = 400\b", f) for f in facts)


def test_several_updates_per_batch_are_told_with_the_staleness_that_follows(ready):
    """A batch is 2 prompts * 2 samples."""
    facts = check(
        load(None, {**ready, "train.batch_size": 1, "train.max_epochs": 2, "pipeline.max_staleness": 20}), machine=CPU
    )
    assert any(re.search(r" 8 .*\(4 mini-batches, 2 .*: S = 20 .* 1 .* 400 .* 50 ", f) for f in facts)
    assert any(re.search(r" 8 .*train\.max_steps = 400\b", f) for f in facts)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"env__name": "pyton_tir"}, r"'pyton_tir'.* env\.name\b"),
        ({"env__protocol": "zeroti"}, r"'zeroti'.* env\.protocol\b"),
        ({"reward__name": "maths"}, r"'maths'.* reward\.name\b"),
        ({"algo__advantage__estimator": "grpo"}, r"'grpo'.* algo\.advantage\.estimator\b"),
        ({"actor__model_name_or_path": ""}, r"^actor\.model_name_or_path .*`openrlhf-tir toy-model`"),
        ({"actor__model_name_or_path": "/nowhere/model"}, r"'/nowhere/model'.* actor\.model_name_or_path\b"),
        ({"data__prompt_dataset": ""}, r"^data\.prompt_dataset "),
        ({"data__prompt_dataset": "/nowhere.jsonl"}, r"'/nowhere\.jsonl'.* data\.prompt_dataset\b"),
        ({"data__label_key": "answer"}, r"data\.label_key = 'answer'"),
        ({"data__input_template": "none here"}, r"'none here'.*{}"),
        ({"rollout__batch_size": 3}, r"d\.jsonl .*2 .*rollout\.batch_size = 3\b"),
        ({"env__url": "127.0.0.1:8000"}, r"127\.0\.0\.1:8000\b.*http://"),
        (
            {"ds__attn_implementation": "flash_attention_2"},
            r"ds\.attn_implementation = 'flash_attention_2' .*GPU",
        ),
        ({"vllm__sync_backend": "nccl"}, r"vllm\.sync_backend = 'nccl' .*GPUs.*'gloo'"),
        (
            {"ds__packing_samples": True, "ds__attn_implementation": "eager"},
            r"ds\.packing_samples .*'eager'.*ds\.attn_implementation\b",
        ),
        ({"eval__dataset": "/nowhere.jsonl"}, r"'/nowhere\.jsonl'.* eval\.dataset\b"),
        ({"eval__steps": 5}, r"^eval\.steps .*eval\.dataset\b"),
        (
            {"rollout__agent": "external", "rollout__top_p": 0.9},
            r"rollout\.top_p = 0\.9, .*rollout\.agent = 'external'",
        ),
    ],
)
def test_what_cannot_work_is_refused(ready, overrides, expected):
    message = refused(ready, **overrides)
    assert re.search(expected, message) and len(message.splitlines()) == 1


def test_a_hub_name_is_allowed_with_a_remark(ready, monkeypatch):
    for variable in OFFLINE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    facts = check(load(None, {**ready, "actor.model_name_or_path": "nobody/no-model"}), machine=CPU)
    assert any(re.match(r"\w+ nobody/no-model ", fact) for fact in facts)


@pytest.mark.parametrize("name", ["nobody/no-model", "no-model"])
def test_a_name_that_is_neither_here_nor_cached_is_refused_where_the_hub_may_not_be_asked(ready, monkeypatch, name):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = refused(ready, actor__model_name_or_path=name)
    assert f"actor.model_name_or_path = {name!r}" in said and "HF_HUB_OFFLINE" in said


def test_a_directory_without_config_or_tokenizer_is_no_model(ready, tmp_path):
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "tokenizer.json" in refused(ready)
    (tmp_path / "model" / "config.json").unlink()
    assert "config.json" in (said := refused(ready)) and "tokenizer.json" not in said


def test_a_head_size_that_vllm_cannot_serve_on_cpu_is_refused(ready, tmp_path):
    (tmp_path / "model" / "config.json").write_text(json.dumps({"hidden_size": 96, "num_attention_heads": 4}))
    assert re.search(r"head_dim .* 24\b", refused(ready))
    check(load(None, ready), machine=GPUS)


def test_a_row_without_label_stops_the_run_at_the_start(ready, tmp_path):
    with (tmp_path / "d.jsonl").open("a") as f:
        f.write('{"prompt": "2+2?"}\n')
    assert re.search(r"d\.jsonl line 3 .*'label'", refused(ready, error=DataError))


def test_more_gpus_than_there_are_is_refused(ready, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert re.search(r" 6 GPUs, .* 4\b", refused(ready, GPUS, actor__num_gpus_per_node=4, vllm__num_engines=2))
    staged = {"vllm__num_engines": 2, "vllm__engine_args": {"pipeline_parallel_size": 2}}
    assert re.search(r" 2 .* x 2 GPUs .* 5 GPUs, .* 4\b", refused(ready, GPUS, **staged))
    judged = {
        "reward__name": "model",
        "reward__model_name_or_path": "org/rm",
        "reward__model_replicas": 3,
        "vllm__num_engines": 1,
    }
    assert re.search(
        r"^1 .* 3 .* 1 .* x 1 GPUs .* 5 GPUs, .* 4\b.*reward\.model_replicas", refused(ready, GPUS, **judged)
    )


def test_a_command_without_a_learner_needs_neither_its_gpus_nor_those_of_a_push(ready, monkeypatch):
    """One GPU, one engine and one rank: `serve` and `eval` start the engine alone."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = load(None, {**ready, "vllm.num_engines": 1, "vllm.sync_backend": "nccl"})
    one = replace(GPUS, gpus=1)
    check(run, training=False, machine=one)
    check(run, training=False, machine=CPU)
    with pytest.raises(ConfigError, match=r"^1 .* 2 GPUs, .* 1\b.*actor\.num_gpus_per_node"):
        check(run, machine=one)
    two_engines = load(None, {**ready, "vllm.num_engines": 2})
    with pytest.raises(ConfigError, match=r"^2 .* 2 GPUs, .* 1\b") as refused:
        check(two_engines, training=False, machine=one)
    assert "actor." not in str(refused.value)


def test_an_empty_address_of_a_cluster_is_none(ready, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert re.search(r" 6 GPUs, .* 4\b", refused(ready, GPUS, actor__num_gpus_per_node=4, vllm__num_engines=2))


@pytest.mark.parametrize(
    ("overrides", "helps"),
    [
        ({}, True),
        ({"vllm__num_engines": 2}, False),  # one engine at most beside a rank
        ({"vllm__tensor_parallel_size": 2}, False),
        ({"actor__num_gpus_per_node": 2}, False),
    ],
)
def test_on_one_gpu_sharing_it_is_named_where_it_helps(ready, monkeypatch, overrides, helps):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    one = replace(GPUS, gpus=1)
    said = refused(ready, one, **{"vllm__num_engines": 1, **overrides})
    assert re.search(rf" {2 if helps else 3} GPUs, .* 1\b", said)
    assert [name in said for name in ("train.share_gpus", "vllm.kv_cache_mib")] == [helps] * 2
    if helps:
        shared = {"vllm.num_engines": 1, "train.share_gpus": True, "vllm.kv_cache_mib": 4096}
        assert check(load(None, {**ready, **shared}), machine=one)


@pytest.mark.parametrize(("installed", "kernel"), [(True, "flash_attention_2"), (False, "sdpa")])
def test_without_the_package_flash_attn_its_setting_means_torchs_kernels_and_that_is_told(ready, installed, kernel):
    machine = replace(GPUS, has_module=lambda name: installed or name != "flash_attn")
    cfg = load(None, {**ready, "ds.attn_implementation": "flash_attention_2"})
    told = [fact for fact in check(cfg, machine=machine) if "ds.attn_implementation" in fact]
    assert bool(told) != installed
    assert attention_implementation("flash_attention_2", machine.has_module) == kernel
    assert attention_implementation("flash_attention_3", machine.has_module) == "flash_attention_3"


def test_a_head_without_gpus_drives_models_that_only_the_clusters_gpus_can_run(ready, tmp_path, monkeypatch):
    (tmp_path / "model/config.json").write_text(json.dumps({"hidden_size": 96, "num_attention_heads": 4}))
    assert re.search(r"head_dim .* 24\b", refused(ready))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    check(load(None, ready), machine=CPU)


def test_heads_that_ranks_cannot_share_are_refused(ready, tmp_path):
    (tmp_path / "model/config.json").write_text(
        json.dumps({"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 1})
    )
    shared = {"ds__ring_attn_size": 2, "ds__packing_samples": True, "actor__num_gpus_per_node": 2}
    assert re.search(r"ds\.ring_attn_size = 2 .* 1 ", refused(ready, **shared))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "kv_heads", "workers"),
    [(9, 3, (1, 3, 9)), (28, 4, (1, 2, 4, 28)), (32, None, (1, 2, 4, 8, 16, 32))],
    ids=["SmolLM2-135M", "Qwen2.5-7B", "as many of both"],
)
def test_workers_of_an_engine_that_cannot_share_the_models_heads_are_refused(ready, tmp_path, heads, kv_heads, workers):
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 64}
    (tmp_path / "model/config.json").write_text(json.dumps(sizes))
    for size in range(1, heads + 1):
        if size in workers:
            check(load(None, {**ready, "vllm.tensor_parallel_size": size}), machine=CPU)
            continue
        message = refused(ready, vllm__tensor_parallel_size=size)
        assert f"vllm.tensor_parallel_size = {size}:" in message
        assert all(f" {value}" in message for value in (heads, kv_heads or heads, *workers))
    check(load(None, {**ready, "vllm.tensor_parallel_size": 5, "rollout.engine": "torch"}), machine=CPU)


def test_the_size_of_pushes_is_unknown_for_a_model_on_the_hub_that_cannot_be_read(ready, monkeypatch):
    monkeypatch.setattr(model_checks, "offline_by", lambda: None)
    facts = check(load(None, {**ready, "actor.model_name_or_path": "org/no-such-model"}), machine=CPU)
    assert any("org/no-such-model" in fact and str(load(None, ready).run_dir) in fact for fact in facts)


def test_a_small_dev_shm_is_told_because_pushes_then_go_through_the_run_directory(ready):
    small, enough = (replace(CPU, shm_free=free) for free in (1999, 2000))
    assert any("/dev/shm" in fact for fact in check(load(None, ready), machine=small))
    assert not any("/dev/shm" in fact for fact in check(load(None, ready), machine=enough))


@pytest.mark.parametrize(("free", "is_refused"), [(999, True), (1000, False), (0, False)])
def test_a_push_that_neither_dev_shm_nor_the_disk_can_hold_is_refused(ready, monkeypatch, free, is_refused):
    """A file of 1,000 bytes. A file system that says 0 does not tell."""
    monkeypatch.setattr(host_checks, "free_above", lambda path: free)
    cfg = load(None, ready)
    with pytest.raises(Unavailable, match=r"vllm\.sync_backend") if is_refused else nullcontext():
        host_checks.check_push_room(cfg, replace(CPU, shm_free=1999))
    host_checks.check_push_room(cfg, replace(CPU, shm_free=2000))


def test_a_command_without_a_learner_needs_no_room_for_pushes(ready, monkeypatch):
    monkeypatch.setattr(host_checks, "free_above", lambda path: 999)
    cfg = load(None, ready)
    assert not any("/dev/shm" in fact for fact in check(cfg, training=False, machine=replace(CPU, shm_free=1999)))
    with pytest.raises(Unavailable):
        check(cfg, machine=replace(CPU, shm_free=1999))


def test_wandb_without_its_package_is_refused(ready):
    bare = replace(CPU, has_module=lambda name: name != "wandb")
    said = refused(ready, bare, logger__wandb__key="env")
    assert "logger.wandb.key " in said and "WANDB_API_KEY" not in said


def test_everything_that_cannot_work_is_told_at_once(ready, tmp_path):
    (tmp_path / "file").write_text("")
    wrong = {
        "run_dir": str(tmp_path / "file" / "run"),
        "env__name": "pyton_tir",
        "ds__attn_implementation": "flash_attention_2",
        "eval__steps": 5,
    }
    wrong |= {
        "actor__model_name_or_path": "/nowhere",
        "reward__name": "maths",
        "vllm__sync_backend": "nccl",
        "rollout__port": 65535,
        "vllm__num_engines": 2,
    }
    lines = refused(ready, **wrong).splitlines()
    for fact in (
        "run_dir = ",
        "'pyton_tir'",
        "ds.attn_implementation = ",
        "eval.steps ",
        "'/nowhere'",
        "'maths'",
        "'nccl'",
        "rollout.port = 65535 ",
    ):
        assert sum(fact in line for line in lines) == 1, fact
    assert len(lines) == 8


def test_a_mistake_of_the_data_alone_is_a_data_error_and_beside_others_a_config_error(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text("")
    assert "d.jsonl" in refused(ready, error=DataError)
    assert len(refused(ready, reward__name="maths").splitlines()) == 2


@pytest.mark.parametrize("setting", ["run_dir", "ckpt__path", "ckpt__output_dir", "logger__tensorboard_dir"])
def test_a_directory_below_a_file_is_refused(ready, tmp_path, setting):
    (tmp_path / "file").write_text("")
    said = refused(ready, **{setting: str(tmp_path / "file/x/y")})
    assert f"{setting.replace('__', '.')} = {tmp_path}/file/x/y " in said and f" {tmp_path}/file " in said


def test_a_directory_that_takes_no_files_or_has_too_long_a_name_is_refused(ready):
    assert re.search(r"run_dir = /proc/run .* /proc .*\(.+\)", refused(ready, run_dir="/proc/run"))
    assert re.search(r"run_dir = /tmp/n+ .* 255 ", refused(ready, run_dir="/tmp/" + "n" * 256))


def test_an_occupied_port_is_refused_and_so_is_the_one_of_a_later_actor(ready):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port := free_port()))
        taken.listen()
        said = refused(ready, error=Unavailable, rollout__port=port)
        assert f"rollout.port = {port} " in said and "Address already in use" in said
        second = refused(ready, error=Unavailable, rollout__port=port - 1, vllm__num_engines=2)
        assert f"rollout.port = {port - 1} " in second
        assert f" {port})" in second or "(" not in second, "the first one may be taken too"
    check(load(None, {**ready, "rollout.port": port}), machine=CPU)


def test_a_machine_that_cannot_confine_code_is_refused_unless_the_server_is_elsewhere(ready, env_server):
    open_machine = replace(CPU, isolation_fault=lambda: "bubblewrap is not installed")
    for server in ("python_tir", "swe"):
        said = refused(ready, open_machine, env__name=server)
        assert f" {server} " in said and "bubblewrap is not installed" in said and "env.url" in said
    check(load(None, {**ready, "env.url": env_server.url}), machine=open_machine)
    check(load(None, {**ready, "env.name": "echo"}), machine=open_machine)


def test_bubblewrap_that_is_missing_or_fails_is_a_fault_where_landlock_is_too_old(monkeypatch, tmp_path):
    monkeypatch.setattr(isolation, "LANDLOCK_ABI", 10**6)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert " 6.12)" in isolation.isolation_fault()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert "(No permissions to create new namespace)" in isolation.isolation_fault()
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    assert isolation.isolation_fault() is None


def test_a_missing_chat_template_is_refused_where_one_is_used(ready, tmp_path):
    run = {**ready, "data.apply_chat_template": "true"}
    assert re.search(r"data\.apply_chat_template .*chat_template\.jinja", refused(run))
    assert any(
        "/v1/chat/completions" in f for f in check(load(None, {**ready, "rollout.agent": "external"}), machine=CPU)
    )
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check(load(None, run), machine=CPU)
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    check(load(None, run), machine=CPU)


def test_a_template_that_shows_no_tools_is_told_where_the_endpoint_would_parse_calls(ready, tmp_path):
    file = tmp_path / "model" / "chat_template.jinja"

    def is_told(**overrides) -> bool:
        facts = check(load(None, {**ready, **overrides}), machine=CPU)
        return any("vllm.tool_call_parser" in fact and str(file.parent) in fact for fact in facts)

    parser = {"vllm.tool_call_parser": "hermes"}
    file.write_text("{{ messages }}")
    assert is_told(**parser) and not is_told()
    file.write_text("{{ messages }}{{ tools }}")
    assert not is_told(**parser)


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (b"", r"config\.json .*JSON: .*line 1 column 1"),
        (b"\xff", r"config\.json .*JSON: .*0xff"),
        (b"{" * 5000, r"config\.json .*JSON: .*line 1 column 2"),
        (b"[1]", r"config\.json .*list"),
        (b'{"head_dim": "y"}', r"head_dim .*y; vLLM"),
    ],
)
def test_a_damaged_model_config_is_told_in_one_line(ready, tmp_path, raw, fact):
    (tmp_path / "model" / "config.json").write_bytes(raw)
    message = refused(ready)
    assert re.search(fact, message)
    assert len(message.splitlines()) == 1


def test_a_model_config_without_usable_sizes_is_left_to_the_engine(ready, tmp_path):
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 0, "hidden_size": "x"}')
    assert check(load(None, ready), machine=CPU)


def test_wandb_without_its_key_is_refused(ready, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert "WANDB_API_KEY" in refused(ready, logger__wandb__key="env")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    check(load(None, {**ready, "logger.wandb.key": "env"}), machine=CPU)


def test_a_chat_without_a_user_message_is_refused_before_the_model_is_loaded(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": [{"role": "system", "content": "x"}], "label": "1"}\n' * 2)
    assert "d.jsonl line 1 " in refused(ready, error=DataError, data__input_template="Q {}")


def test_a_reward_of_ones_own_that_cannot_be_imported_names_its_line(ready, tmp_path, monkeypatch):
    (tmp_path / "my_reward_that_fails.py").write_text("x = 1\nraise RuntimeError('no key')\n")
    (tmp_path / "my_reward_that_is_no_python.py").write_text("x = 1\n\ndef f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "RuntimeError: no key" in (said := refused(ready, reward__name="my_reward_that_fails:f"))
    assert "my_reward_that_fails.py:2:" in said
    assert "my_reward_that_is_no_python.py:3:" in refused(ready, reward__name="my_reward_that_is_no_python:f")
    assert "reward.name = '..:x'" in refused(ready, reward__name="..:x")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"reward.name": "mine.py:score"}, r"reward\.name = .*mine\.py:1: score\(trajectory, task\)"),
        ({"reward.group": "mine.py:nothing"}, r"reward\.group = .*mine\.py .*'nothing'.*: NoEnv, score\b"),
        ({"env.protocol": "mine.py:NoEnv"}, r"env\.protocol = .*mine\.py:5: NoEnv .*stops, advance\b"),
        ({"filter.names": ["accuracy", "nowhere.py:keep"]}, r"filter\.names = '.*/nowhere\.py:keep'.*/nowhere\.py\b"),
        ({"env.file": "mine.py:NoEnv"}, r"env\.file = .*mine\.py:5: NoEnv .*`async def step`"),
        ({"algo.advantage.estimator": "mine.py:NoEnv"}, r"algo\.advantage\.estimator = .*mine\.py:5: .*NoEnv"),
        ({"reward.options": {"c": 3}, "reward.name": "zerotir"}, r"reward\.options .*'c'"),
        ({"reward.options": {"d": 3}, "reward.name": "otc"}, r"reward\.options .*'d'"),
        (
            {"filter.sample": "zerotir"},
            r"filter\.sample .*'zerotir'.*reward\.name = 'zerotir'",
        ),
        ({"filter.names": ["reward"]}, r"'reward'.*filter\.reward_range"),
    ],
)
def test_a_mistake_in_the_methods_own_code_is_told_with_file_and_line(ready, tmp_path, monkeypatch, overrides, said):
    (tmp_path / "mine.py").write_text("def score(trajectory, task):\n    return 1.0\n\n\nclass NoEnv:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as e:
        check(load(None, {**ready, **overrides}), machine=CPU)
    assert re.search(said, str(e.value))


def test_a_run_with_its_own_code_says_which_files_it_works_with(ready, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def score(trajectory, task, context):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    facts = check(load(None, {**ready, "reward.name": "mine:score"}), machine=CPU)
    assert f" {tmp_path}/mine.py;" in facts[1]


def test_a_messages_protocol_and_its_template_are_checked_before_the_tokenizer_is_loaded(ready, tmp_path):
    from tests.unit.rollout.protocols.chat_models import tokenizer

    run = {**ready, "env.protocol": "messages", "data.apply_chat_template": "true"}
    tokenizer("qwen3").save_pretrained(tmp_path / "model")
    assert re.search(
        r"env\.protocol = 'messages' .*data\.apply_chat_template", refused({**run, "data.apply_chat_template": "false"})
    )
    plain = check(load(None, run), machine=CPU)
    as_user = {**run, "env.options": {"role": "user"}}
    (fact,) = set(check(load(None, as_user), machine=CPU)) - set(plain)
    assert "(thinking)" in fact
    assert "env.options.calls = 'hermse'" in refused({**run, "env.options": {"calls": "hermse"}})
    tokenizer("mistral_v1").save_pretrained(tmp_path / "model")
    assert "env.options.role = 'user'" in refused(run)
    assert "env.tools" in refused(ready, env__tools=[{"type": "function"}])


def test_held_out_data_that_are_not_there_are_told_by_their_own_setting(ready):
    said = refused(ready, eval__dataset="nowhere.jsonl")
    assert re.search(r"'nowhere\.jsonl' .*eval\.dataset\b", said) and "data.prompt_dataset" not in said


@pytest.mark.parametrize(
    "body",
    [
        "async def group(g, c):\n    return [1.0 for _ in g.valid]\n",
        "class G:\n    async def __call__(s, g, c): ...\ngroup = G()\n",
    ],
)
def test_a_group_reward_that_nobody_would_await_is_refused(ready, tmp_path, body):
    """It gave a coroutine for numbers."""
    (tmp_path / "own.py").write_text(body)
    message = refused(ready, reward__group=f"{tmp_path}/own.py:group")
    assert "reward.group" in message and f"{tmp_path}/own.py" in message and "`def`" in message


def test_a_reward_may_be_a_coroutine_function(ready, tmp_path):
    (tmp_path / "own.py").write_text("async def one(t, k, c):\n    return 1.0\n")
    assert "reward.name" not in refused(ready, reward__name=f"{tmp_path}/own.py:one", reward__group="nothere")


def test_a_cpu_that_is_slow_in_bf16_is_told(ready):
    cfg = load(None, {**ready, "ds.param_dtype": "bf16"})
    told = {
        bf16: [fact for fact in check(cfg, machine=replace(CPU, bf16=bf16)) if "ds.param_dtype" in fact]
        for bf16 in (True, False)
    }
    assert (len(told[True]), len(told[False])) == (0, 1)


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"key": {}, "unit": {}}, "required": ["key"]},
    },
}
DESCRIBED = [{"role": "system", "content": "You can call look_up(key)."}, {"role": "user", "content": "1+1?"}]
UNDESCRIBED = [{"role": "user", "content": "1+1? Do not look_up anything."}]


@pytest.mark.parametrize(
    ("template", "row", "settings", "is_refused"),
    [
        ("{{ messages }}", {}, {}, True),
        ("{{ messages }}", {}, {"env.options": {"calls": "llama3"}}, True),
        ("{{ messages }}{{ tools }}", {}, {}, False),
        ("{{ messages }}", {"prompt": DESCRIBED}, {}, False),
        ("{{ messages }}", {"prompt": UNDESCRIBED}, {}, True),
        ("{{ messages }}", {}, {"data.input_template": "Call look_up with a key. {}"}, False),
        ("{{ messages }}", {"prompt": UNDESCRIBED}, {"data.input_template": "Call look_up with a key. {}"}, True),
        ("{{ messages }}", {}, {"env.options": {"calls": "fence", "argument": "code"}}, False),
        ("{{ messages }}", {}, {"env.max_calls": 0}, False),
        ("{{ messages }}", {}, {"env.tools": [], "env.name": "echo"}, False),
        ("{{ messages }}", {}, {"env.tools": []}, True),  # python_tir declares one of its own
        ("{{ messages }}", {"meta": {"chat_tools": [TOOL]}}, {"env.tools": [], "env.protocol": "hermes"}, True),
        ("{{ messages }}", {}, {"env.tools": [], "env.protocol": "hermes"}, False),
        ("{{ messages }}", {"meta": {"chat_tools": [TOOL]}}, {"env.tools": [], "env.protocol": "zerotir"}, False),
        (
            "{{ messages }}",
            {},
            {"env.protocol": "openrlhf_tir.rollout.protocols.messages:Messages", "env.options": {"calls": "fence"}},
            False,
        ),
        ("{{ messages }}", {}, {"env.tools": [], "env.protocol": "skyrl"}, False),
    ],
)
def test_tools_that_neither_template_nor_prompt_shows_are_refused(ready, tmp_path, template, row, settings, is_refused):
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "1+1?", "label": "2", **row}) + "\n")
    run = {**ready, "rollout.batch_size": 1, "data.apply_chat_template": True, "env.protocol": "messages"}
    cfg = load(None, {**run, "env.max_calls": 2, "env.tools": [TOOL], **settings})
    if not is_refused:
        check(cfg, machine=CPU)
        return
    with pytest.raises(ConfigError) as e:
        check(cfg, machine=CPU)
    assert [problem.code for problem in e.value.problems] == ["hidden_tools"]
    assert str(tmp_path / "d.jsonl") in str(e.value) and str(tmp_path / "model") in str(e.value)


SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
CONTENTS = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "prompt", "code"),
    [
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CONTENTS, SYSTEM, "data"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", SYSTEM, "data"),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", "1+1?", None),
        (CONTENTS, SYSTEM, None),
        ("{{ messages }", "1+1?", "model"),
        ("{% if messages[0].role != 'system' %}{{ tools }}{% endif %}" + CONTENTS, SYSTEM, "hidden_tools"),
        ("{% if messages[0].role != 'system' %}{{ tools }}{% endif %}" + CONTENTS, "1+1?", None),
        ("{% if messages[0].role == 'system' %}{{ tools }}{% endif %}" + CONTENTS, SYSTEM, None),
        ("{% if messages[0].role == 'system' %}{{ tools }}{% endif %}" + CONTENTS, "1+1?", "hidden_tools"),
    ],
    ids=[
        "refuses a system message", "leaves it out", "wants a list", "shows it", "no Jinja",
        "hides tools behind a system message", "shows them without", "shows them with one", "hides them without",
    ],
)  # fmt: skip
def test_a_prompt_that_the_chat_template_cannot_show_is_refused_before_anything_starts(
    ready, tmp_path, template, prompt, code
):
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": prompt, "label": "2"}) + "\n")
    run = {**ready, "rollout.batch_size": 1, "data.apply_chat_template": True}
    if "tools" in template:
        run |= {"env.protocol": "messages", "env.max_calls": 2, "env.tools": [TOOL]}
    if code is None:
        check(load(None, run), machine=CPU)
        return
    with pytest.raises((ConfigError, DataError)) as e:
        check(load(None, run), machine=CPU)
    assert {problem.code for problem in e.value.problems} == {code}


def test_of_rows_of_one_shape_the_first_is_rendered_and_all_if_it_cannot_be_shown(ready, tmp_path):
    refuses = "{% if messages[0].content == '0' %}{{ raise_exception('no') }}{% endif %}" + CONTENTS
    for template, good in ((CONTENTS, 3), (refuses, 2)):
        (tmp_path / "model" / "chat_template.jinja").write_text(template)
        rows = [json.dumps({"prompt": [{"role": "user", "content": str(i)}], "label": "2"}) for i in range(3)]
        (tmp_path / "d.jsonl").write_text("\n".join(rows) + "\n")
        run = {**ready, "rollout.batch_size": 1, "data.apply_chat_template": True, "data.on_bad_row": "skip"}
        facts = check(load(None, run), machine=CPU)
        assert any(re.match(rf"{good} .*d\.jsonl", fact) for fact in facts)
