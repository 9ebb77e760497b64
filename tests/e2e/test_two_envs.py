"""Two environments in one run on the real stack: two servers that the run starts, two protocols, two rewards, shares,
an evaluation of both."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.observability.report import summary
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics

from .test_guess_game import command

RECIPE = """
run_dir = "run"

[actor]
model_name_or_path = "model"
num_gpus_per_node = 1
learning_rate = 1e-3

[ds]
param_dtype = "fp32"
attn_implementation = "eager"

[rollout]
engine = "torch"
batch_size = 4
n_samples_per_prompt = 4
max_new_tokens = 24

[envs.sums]
server = "python_tir"
share = 0.75
workers = 1
input_template = "user_assistant"
[envs.sums.filter]
names = []

[envs.guess]
file = "env_servers.guess:GuessEnv"
share = 0.25
protocol = "miniatures.toy.guess:Digits"
[envs.guess.reward]
name = "env"
[envs.guess.filter]
names = []

[train]
max_steps = 2
num_episodes = 100

[pipeline]
mode = "sync"

[data]
prompt_dataset = ["sums.jsonl", "games.jsonl", "more.jsonl"]
prompt_probs = [1, 1, 3]
max_len = 96

[eval]
dataset = "held_out.jsonl"
n_samples_per_prompt = 2

[logger]
tensorboard_dir = "unset"
"""


def rows(env: str, n: int) -> str:
    return "".join(
        json.dumps({"prompt": f"{i}+1=", "label": str(i + 1), "env": env, "meta": {"high": 3}}) + "\n" for i in range(n)
    )


@pytest.mark.long
def test_two_environments_with_servers_protocols_and_rewards_of_their_own_train_in_one_run(tmp_path):
    for name, text in {
        "sums": rows("sums", 6),
        "games": rows("guess", 4),
        "more": rows("sums", 9),
        "held_out": rows("sums", 2) + rows("guess", 2),
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "two.toml").write_text(RECIPE)
    save_model(tmp_path / "model", seed=0)
    done = command("train", "--recipe", "two.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run = tmp_path / "run"
    trained = Counter("guess" if 6 <= prompt < 10 else "sums" for _, prompt in audit(run / "ledger.jsonl").trained)
    assert trained == {"sums": 6, "guess": 2}, "three and one in each of two batches"
    columns = metrics.read(run)
    at = [i for i, step in enumerate(columns["step"]) if step > 0]
    assert [columns["env/guess/groups"][i] for i in at] == [1, 1] and [columns["env/sums/groups"][i] for i in at] == [
        3,
        3,
    ]
    assert all(0 <= columns["env/guess/reward_mean"][i] <= 1 for i in at)
    ends = summary.read(run)
    assert ends.base.envs.keys() == ends.trained.envs.keys() == {"sums", "guess"}
    page = (run / "report.html").read_text()
    assert "<h2>Environments</h2>" in page and "guess: accuracy" in page
    assert {path.name for path in run.glob("env_server*.log")} == {"env_server_sums.log", "env_server_guess.log"}
