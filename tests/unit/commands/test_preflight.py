"""Preflight: each thing that cannot work is refused before Ray or a model is loaded."""

from __future__ import annotations

import asyncio
import http.server
import json
import socket
import threading
from dataclasses import asdict, replace

import pytest

from openrlhf_tir.commands.checks import host as host_checks
from openrlhf_tir.commands.preflight import Machine, check
from openrlhf_tir.config.settings import load
from openrlhf_tir.envs.probe import probe_env
from openrlhf_tir.errors import CheckpointDamaged, ConfigError, DataError, Unavailable
from openrlhf_tir.pipeline.checkpoints.lineage import LEDGER, checkpoints_of
from openrlhf_tir.replay.ledger import Ledger
from openrlhf_tir.types import Task

CPU = Machine(gpus=0, cpus=2, shm_free=1 << 30, has_module=lambda name: True, isolation_fault=lambda: None)
GPUS = Machine(gpus=4, cpus=32, shm_free=1 << 30, has_module=lambda name: True, isolation_fault=lambda: None)
ON_CPU = {
    "ds.attn_implementation": "sdpa",
    "vllm.sync_backend": "file",
    "actor.num_gpus_per_node": 1,
    "rollout.batch_size": 2,
    "rollout.n_samples_per_prompt": 2,
}


@pytest.fixture
def ready(tmp_path):
    """Overrides of a run that passes: a model directory and two problems."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 128, "num_attention_heads": 4}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * 1000)
    data = tmp_path / "d.jsonl"
    data.write_text('{"prompt": "1+1?", "label": "2"}\n' * 2)
    return {**ON_CPU, "actor.model_name_or_path": str(model), "data.prompt_dataset": str(data)}


def refused(ready, machine=CPU, error=ConfigError, **overrides) -> str:
    with pytest.raises(error) as e:
        check(load(None, {**ready, **{k.replace("__", "."): v for k, v in overrides.items()}}), machine=machine)
    return str(e.value)


class FakeEnv(http.server.BaseHTTPRequestHandler):
    """/health and /schema of an environment; wants the token when the server has one."""

    def do_GET(self):
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.send_error(401)
        body = self.server.bodies[self.path]
        if isinstance(body, int):
            return self.send_error(body)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def env_server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeEnv)
    server.token = None
    server.bodies = {
        "/health": {"status": "ok", "env": "python_tir", "isolation": "bwrap"},
        "/schema": {"env": "python_tir", "action": "python source code", "capacity": 3},
    }
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_run_that_can_work_gives_facts(ready):
    facts = check(load(None, ready), machine=CPU)
    assert "0 GPUs, 2 CPUs" in facts
    assert any(f.startswith("2 problems in") for f in facts)
    assert any("at most 1 of train.max_steps = 400" in f for f in facts)


def test_several_updates_per_batch_are_told_with_the_staleness_that_follows(ready):
    """A batch is 2 prompts * 2 samples."""
    facts = check(load(None, {**ready, "train.batch_size": 1, "train.max_epochs": 2, "pipeline.max_staleness": 20}), machine=CPU)
    assert any("8 updates (4 mini-batches, 2 epochs): S = 20 updates, so rollouts are at most 1 batches ahead" in f for f in facts)
    assert any("at most 8 of train.max_steps = 400 updates" in f for f in facts)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"env__name": "pyton_tir"}, "Unknown env 'pyton_tir'. Known: "),
        ({"env__protocol": "zeroti"}, "Unknown turn protocol 'zeroti'. Known:"),
        ({"reward__name": "maths"}, "Unknown reward 'maths'. Known:"),
        ({"algo__advantage__estimator": "grpo"}, "Unknown advantage estimator 'grpo'. Known: "),
        ({"actor__model_name_or_path": ""}, "actor.model_name_or_path is not set"),
        ({"actor__model_name_or_path": "/nowhere/model"}, "Model directory '/nowhere/model' does not exist"),
        ({"data__prompt_dataset": ""}, "data.prompt_dataset is not set"),
        ({"data__prompt_dataset": "/nowhere.jsonl"}, "does not exist"),
        ({"data__label_key": "answer"}, "data.label_key = 'answer' is no column"),
        ({"data__input_template": "none here"}, "has no {} where the problem goes"),
        ({"rollout__batch_size": 3}, "has 2 problems, a batch needs rollout.batch_size = 3"),
        ({"env__url": "127.0.0.1:8000"}, "has no scheme"),
        ({"ds__attn_implementation": "flash_attention_2"}, "This is a GPU recipe on a CPU machine: ds.attn_implementation = 'flash_attention_2' needs a GPU"),
        ({"vllm__sync_backend": "nccl"}, "vllm.sync_backend = 'nccl' is not wired"),
        ({"ds__packing_samples": True}, "ds.packing_samples needs flash attention"),
        ({"eval__dataset": "/nowhere.jsonl"}, "does not exist"),
        ({"eval__steps": 5}, "eval.steps is set, but eval.dataset is not"),
        ({"rollout__agent": "external", "rollout__top_p": 0.9}, "programs that talk to the model sample from all tokens"),
    ],
)
def test_what_cannot_work_is_refused(ready, overrides, expected):
    assert expected in refused(ready, **overrides)


def test_a_hub_name_is_allowed_with_a_remark(ready):
    assert any("taken from the hub" in f for f in check(load(None, {**ready, "actor.model_name_or_path": "Qwen/Qwen2.5-7B"}), machine=CPU))


def test_a_directory_without_config_or_tokenizer_is_no_model(ready, tmp_path):
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "has no tokenizer" in refused(ready)
    (tmp_path / "model" / "config.json").unlink()
    assert "has no config.json" in refused(ready)


def test_a_head_size_that_vllm_cannot_serve_on_cpu_is_refused(ready, tmp_path):
    (tmp_path / "model" / "config.json").write_text(json.dumps({"hidden_size": 96, "num_attention_heads": 4}))
    assert "head_dim is 24" in refused(ready)
    check(load(None, ready), machine=GPUS)


def test_a_row_without_label_stops_the_run_at_the_start(ready, tmp_path):
    with (tmp_path / "d.jsonl").open("a") as f:
        f.write('{"prompt": "2+2?"}\n')
    assert "d.jsonl line 3 has no label" in refused(ready, error=DataError)


def test_more_gpus_than_there_are_is_refused(ready, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "need 6 GPUs, this machine has 4" in refused(ready, GPUS, actor__num_gpus_per_node=4, vllm__num_engines=2)


def test_flash_attention_without_its_package_is_refused(ready):
    bare = Machine(gpus=4, cpus=4, shm_free=1 << 30, has_module=lambda name: name != "flash_attn", isolation_fault=lambda: None)
    assert "package flash-attn" in refused(ready, bare, ds__attn_implementation="flash_attention_2")


def test_a_head_without_gpus_drives_models_that_only_the_clusters_gpus_can_run(ready, tmp_path, monkeypatch):
    (tmp_path / "model/config.json").write_text(json.dumps({"hidden_size": 96, "num_attention_heads": 4}))
    assert "head_dim is 24" in refused(ready)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    check(load(None, ready), machine=CPU)


def test_of_a_model_on_the_hub_that_cannot_be_read_it_is_said_that_its_size_is_not_known(ready):
    facts = check(load(None, {**ready, "actor.model_name_or_path": "org/no-such-model"}), machine=CPU)
    assert any("how much they need is not known, as neither files nor config.json of org/no-such-model can be read" in fact for fact in facts)


def test_a_small_dev_shm_is_told_because_pushes_then_go_through_the_run_directory(ready):
    small, enough = (Machine(gpus=0, cpus=2, shm_free=n, has_module=lambda name: True, isolation_fault=lambda: None) for n in (1999, 2000))
    assert any("weight pushes go through" in fact for fact in check(load(None, ready), machine=small))
    assert not any("weight pushes go through" in fact for fact in check(load(None, ready), machine=enough))


class NoLearner:
    """A learner whose share of a checkpoint is one file."""

    async def save(self, directory):
        (directory / "rank0.pt").write_bytes(b"weights")

    async def written(self):
        return {}


def checkpointed(overrides, tmp_path) -> dict:
    """Overrides of a run that resumes from its own checkpoint."""
    run = {**overrides, "run_dir": str(tmp_path / "run")}
    cfg = load(None, run)
    checkpoints = checkpoints_of(cfg, [Task("1+1?", "2")] * 2)
    ledger = Ledger(cfg.run_dir / LEDGER)
    state = {"max_staleness": cfg.pipeline.S, "batch_size": 2, "world_size": 1, "ledger": asdict(ledger.mark())}

    async def save():
        await checkpoints.take(2, NoLearner())
        await checkpoints.commit(2, state, [], NoLearner())

    asyncio.run(save())
    return {**run, "train.resume": "true"}


def test_a_resume_with_another_staleness_bound_is_refused(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    assert "resuming from step_000002" in check(load(None, run), machine=CPU)
    assert "pipeline.max_staleness = 4, this run has 1" in refused({**run, "pipeline.max_staleness": "1"})
    assert "Go on with --resume" in refused({**run, "train.resume": "false"})


def test_all_that_does_not_fit_is_refused_at_once_and_what_changed_besides_is_listed(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    said = refused(run, train__seed="7", rollout__batch_size="1", ds__param_dtype="fp32", actor__learning_rate="0.1")
    for part in ("train.seed = 42, this run has 7 (the order", "rollout.batch_size = 2, this run has 1", "ds.param_dtype = bf16, this run has fp32"):
        assert part in said
    other = {"actor.learning_rate": "0.5", "rollout.n_samples_per_prompt": "8", "vllm.num_engines": "2", "ckpt.max_num": "5"}
    facts = check(load(None, {**run, **other}), machine=CPU)
    changed = [fact for fact in facts if fact.startswith("changed since the checkpoint: ")]
    assert [fact.split(": ")[1] for fact in changed] == ["actor.learning_rate 1e-06 -> 0.5", "rollout.n_samples_per_prompt 2 -> 8"]


def test_a_resume_with_another_model_or_tokenizer_is_refused_before_anything_loads(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    (tmp_path / "model/config.json").write_text(json.dumps({"hidden_size": 256, "num_attention_heads": 4}))
    (tmp_path / "model/tokenizer.json").write_text('{"other": 1}')
    said = refused(run)
    assert "the model's hidden_size = 128, this run has 256" in said and "another tokenizer" in said


def test_a_damaged_checkpoint_is_named_before_anything_loads(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    (tmp_path / "run/ckpt/step_000002/learner/rank0.pt").write_bytes(b"wEights")
    assert "learner/rank0.pt was changed since it was written" in refused(run, error=CheckpointDamaged)


def test_resume_without_a_checkpoint_is_refused_unless_it_may_start_anew(ready, tmp_path):
    run = {**ready, "run_dir": str(tmp_path / "empty"), "train.resume": "true"}
    assert "There is no checkpoint in" in refused(run) and "leave --resume out to start anew" in refused(run)
    facts = check(load(None, {**run, "train.resume_or_start": "true"}), machine=CPU)
    assert any("the run starts anew" in fact for fact in facts)


def test_a_new_run_does_not_delete_checkpoints_whose_pointer_is_lost(ready, tmp_path):
    run = {**checkpointed(ready, tmp_path), "train.resume": "false"}
    (tmp_path / "run/ckpt/latest").unlink()
    assert "holds a run with checkpoints (step_000002)" in refused(run)


def test_a_disk_that_cannot_hold_the_checkpoints_is_told_at_start(ready, tmp_path):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [10**6, 10**6], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert any("checkpoints take about 11175.87 GiB each" in fact for fact in check(load(None, ready), machine=CPU))


def test_wandb_without_its_package_is_refused(ready):
    bare = Machine(gpus=0, cpus=2, shm_free=1 << 30, has_module=lambda name: name != "wandb", isolation_fault=lambda: None)
    assert "wandb is not installed" in refused(ready, bare, logger__wandb__key="env")


def test_rows_of_another_environment_are_refused(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "x", "label": "1", "env": "echo"}\n' * 2)
    said = refused(ready, error=DataError)
    assert "d.jsonl line 1: env = 'echo' is no environment of this run. Known: python_tir. Add [envs.echo], or correct the column." in said


def test_a_running_server_is_asked_who_it_is(ready, env_server):
    facts = check(load(None, {**ready, "env.url": env_server.url}), machine=CPU)
    assert f"environment python_tir at {env_server.url}: isolation bwrap, capacity 3" in facts


def test_a_server_of_another_environment_is_refused(ready, env_server):
    env_server.bodies["/schema"]["env"] = "search"
    assert "is env 'search', the tasks use 'python_tir'" in refused(ready, env__url=env_server.url)


def test_every_server_of_a_list_is_asked(ready, env_server):
    assert "127.0.0.1:9/health does not answer" in refused(ready, error=Unavailable, env__url=f"{env_server.url}, http://127.0.0.1:9")


def test_a_person_is_told_at_once_of_a_server_that_does_not_answer_and_what_to_do(ready):
    said = refused(ready, error=Unavailable, env__url="http://127.0.0.1:9")
    assert "http://127.0.0.1:9/health does not answer" in said and "Start the server, or unset env.url to have one started" in said


def test_nobody_waits_for_a_server_of_a_run_that_has_a_mistake_and_both_are_told(ready):
    """With a wait of an hour."""
    said = refused(ready, env__url="http://127.0.0.1:9", reward__name="maths", train__start_wait_s=3600)
    assert "Unknown reward 'maths'" in said and "http://127.0.0.1:9/health does not answer" in said


def test_a_server_that_says_503_may_be_back_in_a_minute(env_server):
    env_server.bodies["/health"] = 503
    with pytest.raises(Unavailable, match="503"):
        probe_env(env_server.url)


def test_something_else_that_answers_is_refused(env_server):
    env_server.bodies["/schema"] = {"hello": 1}
    with pytest.raises(ConfigError, match="not as an environment server: env"):
        probe_env(env_server.url)
    env_server.bodies["/health"] = b"<html>"
    with pytest.raises(ConfigError, match="not with JSON"):
        probe_env(env_server.url)


def test_a_missing_token_is_named(env_server):
    env_server.token = "secret"
    with pytest.raises(ConfigError, match=r"401.*env\.token_env"):
        probe_env(env_server.url)
    assert probe_env(env_server.url, token="secret")[1].capacity == 3


def test_everything_that_cannot_work_is_told_at_once(ready, tmp_path):
    (tmp_path / "file").write_text("")
    wrong = {"run_dir": str(tmp_path / "file" / "run"), "env__name": "pyton_tir", "ds__attn_implementation": "flash_attention_2", "eval__steps": 5}
    wrong |= {"actor__model_name_or_path": "/nowhere", "reward__name": "maths", "vllm__sync_backend": "nccl", "rollout__port": 65535, "vllm__num_engines": 2}
    lines = refused(ready, **wrong).splitlines()
    for fact in ("file is not a directory", "'pyton_tir'", "GPU recipe", "eval.steps is set", "'/nowhere'", "'maths'", "'nccl'", "ends at port 65536"):
        assert sum(fact in line for line in lines) == 1, fact
    assert len(lines) == 8


def test_a_mistake_of_the_data_alone_is_a_data_error_and_beside_others_a_config_error(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text("")
    assert "d.jsonl has no rows" in refused(ready, error=DataError)
    assert len(refused(ready, reward__name="maths").splitlines()) == 2


@pytest.mark.parametrize("setting", ["run_dir", "ckpt__path", "ckpt__output_dir"])
def test_a_directory_below_a_file_is_refused(ready, tmp_path, setting):
    (tmp_path / "file").write_text("")
    assert f"{setting.replace('__', '.')} = {tmp_path}/file/x/y cannot be made: {tmp_path}/file is not a directory" in refused(
        ready, **{setting: str(tmp_path / "file/x/y")}
    )


def test_a_directory_that_takes_no_files_or_has_too_long_a_name_is_refused(ready):
    assert "run_dir = /proc/run cannot be written: /proc takes no new files" in refused(ready, run_dir="/proc/run")
    assert "has a name of more than 255 bytes" in refused(ready, run_dir="/tmp/" + "n" * 256)


def test_an_occupied_port_is_refused_and_so_is_the_one_of_a_later_actor(ready):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"rollout.port = {port} cannot be used: Address already in use" in refused(ready, error=Unavailable, rollout__port=port)
        second = refused(ready, error=Unavailable, rollout__port=port - 1, vllm__num_engines=2)
        assert f"rollout.port = {port - 1} (actor 1 takes port {port}) cannot be used" in second or f"rollout.port = {port - 1} cannot be used" in second
    check(load(None, {**ready, "rollout.port": port}), machine=CPU)


def test_a_machine_that_cannot_confine_code_is_refused_unless_the_server_is_elsewhere(ready, env_server):
    open_machine = replace(CPU, isolation_fault=lambda: "bubblewrap is not installed")
    assert "cannot confine model-written code here: bubblewrap is not installed. Install bubblewrap" in refused(ready, open_machine)
    assert "The swe server that the run would start cannot confine" in refused(ready, open_machine, env__name="swe")
    check(load(None, {**ready, "env.url": env_server.url}), machine=open_machine)
    check(load(None, {**ready, "env.name": "echo"}), machine=open_machine)


def test_bubblewrap_that_is_missing_or_fails_is_a_fault_where_landlock_is_too_old(monkeypatch, tmp_path):
    monkeypatch.setattr(host_checks, "LANDLOCK_ABI", 10**6)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_checks.isolation_fault().startswith("bubblewrap is not installed, and this kernel's Landlock is too old")
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert "bubblewrap does not work (No permissions to create new namespace)" in host_checks.isolation_fault()
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 0\n")
    assert host_checks.isolation_fault() is None


def test_a_missing_chat_template_is_refused_where_one_is_used(ready, tmp_path):
    run = {**ready, "data.apply_chat_template": "true"}
    assert "has no chat template (chat_template.jinja, or a key of tokenizer_config.json)" in refused(run)
    assert any("/v1/chat/completions will refuse" in f for f in check(load(None, {**ready, "rollout.agent": "external"}), machine=CPU))
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check(load(None, run), machine=CPU)
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    check(load(None, run), machine=CPU)


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (b"", "config.json is not readable JSON"),
        (b"\xff", "config.json is not readable JSON"),
        (b"{" * 5000, "config.json is not readable JSON"),
        (b"[1]", "config.json holds a list, not an object"),
        (b'{"head_dim": "y"}', "head_dim is y"),
    ],
)
def test_a_damaged_model_config_is_told_in_one_line(ready, tmp_path, raw, fact):
    (tmp_path / "model" / "config.json").write_bytes(raw)
    message = refused(ready)
    assert fact in message
    assert len(message.splitlines()) == 1


def test_a_model_config_without_usable_sizes_is_left_to_the_engine(ready, tmp_path):
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 0, "hidden_size": "x"}')
    assert check(load(None, ready), machine=CPU)


def test_wandb_without_its_key_is_refused(ready, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert "WANDB_API_KEY is not set" in refused(ready, logger__wandb__key="env")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    check(load(None, {**ready, "logger.wandb.key": "env"}), machine=CPU)


def test_a_chat_without_a_user_message_is_refused_before_the_model_is_loaded(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": [{"role": "system", "content": "x"}], "label": "1"}\n' * 2)
    assert "d.jsonl line 1 has a list as its input" in refused(ready, error=DataError, data__input_template="Q {}")


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999999", "http://h:x", "http://\udcff"])
def test_what_is_no_url_is_told(url):
    with pytest.raises(ConfigError, match="is no URL"):
        probe_env(url)


def test_a_reward_of_ones_own_that_cannot_be_imported_names_its_line(ready, tmp_path, monkeypatch):
    (tmp_path / "my_reward_that_fails.py").write_text("x = 1\nraise RuntimeError('no key')\n")
    (tmp_path / "my_reward_that_is_no_python.py").write_text("x = 1\n\ndef f(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "RuntimeError: no key" in (said := refused(ready, reward__name="my_reward_that_fails:f"))
    assert "my_reward_that_fails.py:2:" in said
    assert "my_reward_that_is_no_python.py:3:" in refused(ready, reward__name="my_reward_that_is_no_python:f")
    assert "reward.name = '..:x' cannot be loaded" in refused(ready, reward__name="..:x")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"reward.name": "mine.py:score"}, r"mine.py:1: score(trajectory, task) cannot be called"),
        ({"reward.group": "mine.py:nothing"}, r"mine.py has no 'nothing'. It defines: NoEnv, score"),
        ({"env.protocol": "mine.py:NoEnv"}, r"NoEnv has no stops, advance"),
        ({"filter.names": ["accuracy", "nowhere.py:keep"]}, r"there is no file"),
        ({"env.file": "mine.py:NoEnv"}, r"NoEnv has no `async def step`"),
        ({"reward.options": {"c": 3}, "reward.name": "zerotir"}, r"reward.options key 'c'"),
        ({"reward.options": {"d": 3}, "reward.name": "otc"}, r"reward.options key 'd'"),
        ({"filter.sample": "zerotir"}, r"filter.sample has 'zerotir', which reads what reward.name = 'zerotir' records"),
        ({"filter.names": ["reward"]}, r"needs filter.reward_range"),
    ],
)
def test_a_mistake_in_the_methods_own_code_is_told_with_file_and_line(ready, tmp_path, monkeypatch, overrides, said):
    (tmp_path / "mine.py").write_text("def score(trajectory, task):\n    return 1.0\n\n\nclass NoEnv:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as e:
        check(load(None, {**ready, **overrides}), machine=CPU)
    assert said in str(e.value)


def test_a_run_with_its_own_code_says_which_files_it_works_with(ready, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def score(trajectory, task, context):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    facts = check(load(None, {**ready, "reward.name": "mine:score"}), machine=CPU)
    assert f"own code: {tmp_path}/mine.py" in facts[0]


def several(ready, tmp_path, rows, **sections):
    """Overrides of a run with [envs.NAME] `sections`; `rows` are the env columns of the data."""
    lines = (json.dumps({"prompt": "1+1?", "label": "2"} | ({"env": env} if env else {})) for env in rows)
    (tmp_path / "d.jsonl").write_text("".join(line + "\n" for line in lines))
    return {**ready, **{f"envs.{name}.{field}": value for name, fields in sections.items() for field, value in fields.items()}}


def test_every_environment_is_checked_and_told(ready, tmp_path, env_server):
    sections = {
        "sums": {"server": "python_tir", "url": env_server.url},
        "more": {"server": "python_tir", "url": env_server.url, "protocol": "torl"},
        "echo": {"share": None},
    }
    facts = check(load(None, several(ready, tmp_path, ["sums", "echo", "echo", "more"], **sections)), machine=CPU)
    assert any(fact.endswith("(echo: 2, more: 1, sums: 1)") for fact in facts)
    assert f"environment sums at {env_server.url}: isolation bwrap, capacity 3" in facts
    assert "environment echo: a server will be started" in facts
    assert f"{env_server.url} serves sums (protocol zerotir) and more (protocol torl): it runs what each of them sends" in facts


@pytest.mark.parametrize(
    ("rows", "sections", "expected"),
    [
        (["sums", None], {}, "d.jsonl line 2 names no environment in column 'env', and the run has sums, echo. Fill it in"),
        (["sums", "wiki"], {}, "d.jsonl line 2: env = 'wiki' is no environment of this run. Known: sums, echo."),
        (["sums", "sums"], {"sums": {"share": 1}, "echo": {"share": 1}}, "envs.echo.share = 1, but no row of "),
        (
            ["sums", "echo"],
            {"echo": {"server": "ecco"}},
            "Unknown env 'ecco'. Known: echo, functions, gem, math, mcp, openenv, puzzles, python_tir, search, swe, verl_tool. Set envs.echo.server to",
        ),
        (
            ["sums", "echo"],
            {"echo": {"server": "search"}},
            "envs.echo.server_options = {}: the search server says: the following arguments are required: --corpus",
        ),
        (["sums", "echo"], {"echo": {"server_options": {"colour": "red"}}}, "the echo server says: unrecognized arguments: --colour red"),
        (
            ["sums", "echo"],
            {"echo": {"server": "search", "server_options": {"corpus": "/no/where.jsonl"}}},
            "envs.echo.server_options.corpus = '/no/where.jsonl' is no file",
        ),
        (["sums", "echo"], {"echo": {"protocol": "zeroti"}}, "Set envs.echo.protocol to one of them"),
        (["sums", "echo"], {"echo": {"reward.name": "maths"}}, "Set envs.echo.reward.name to one of them"),
        (["sums", "echo"], {"echo": {"file": "/no/guess.py:Guess"}}, "envs.echo.file = '/no/guess.py:Guess': there is no file"),
        (["sums", "echo"], {"echo": {"input_template": "no place"}}, "has no {} where the problem goes"),
    ],
)
def test_what_cannot_work_in_one_environment_of_several_is_one_line_that_names_it(ready, tmp_path, rows, sections, expected):
    over = several(
        ready, tmp_path, rows, **{"sums": {"server": "python_tir", **sections.get("sums", {})}, "echo": {"batch_wait_ms": 1.0, **sections.get("echo", {})}}
    )
    with pytest.raises((ConfigError, DataError)) as e:
        check(load(None, over), machine=CPU)
    (line,) = str(e.value).splitlines()
    assert expected in line


def test_a_server_of_another_environment_than_its_section_says_is_refused(ready, tmp_path, env_server):
    over = several(ready, tmp_path, ["sums", "sums"], sums={"url": env_server.url})
    with pytest.raises(ConfigError, match=r"is env 'python_tir', the tasks use 'sums'. Set envs.sums.server or envs.sums.url to match"):
        check(load(None, over), machine=CPU)


def test_a_messages_protocol_and_its_template_are_checked_before_the_tokenizer_is_loaded(ready, tmp_path):
    from tests.unit.episodes.chat_models import tokenizer

    run = {**ready, "env.protocol": "messages", "data.apply_chat_template": "true"}
    tokenizer("qwen3").save_pretrained(tmp_path / "model")
    assert "prompts would be raw text. Set --data.apply_chat_template" in refused({**run, "data.apply_chat_template": "false"})
    assert not [f for f in check(load(None, run), machine=CPU) if "earlier turns" in f]
    as_user = {**run, "env.options": {"role": "user"}}
    assert [f for f in check(load(None, as_user), machine=CPU) if "earlier turns otherwise than they were sampled (thinking)" in f]
    assert "env.template_rewrites = 'refuse'" in refused({**as_user, "env.template_rewrites": "refuse"})
    assert "calls = 'hermse' is no format of calls" in refused({**run, "env.options": {"calls": "hermse"}})
    tokenizer("mistral_v1").save_pretrained(tmp_path / "model")
    assert "env.options.role = 'user'" in refused(run)
    assert "env.tools and env.template_rewrites are a messages protocol's" in refused(ready, env__tools=[{"type": "function"}])
