"""`swe` on the real stack: the run starts the server, repositories are mended or not, and the hidden tests' verdicts
are what is trained."""

from __future__ import annotations

import json

import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics
from tests.contract.swe_hostile import CODE, MEND, task

from .test_guess_game import command

MENDER = f'''
"""mender.py: the first digit that the model writes picks what is done with the repository; 1 to 3 mend it."""
import json
from openrlhf_tir.rollout.protocols import Call, End

MEND, SPOIL = {MEND!r}, "echo >> {CODE}; echo x > notes.txt"


class Mender:
    def __init__(self, *, max_calls, budget_message=False):
        self.left = max_calls

    @property
    def stops(self):
        return tuple("0123456789") if self.left else ()

    def advance(self, completion):
        if completion.stop_reason not in self.stops:
            return End()
        self.left -= 1
        command = MEND if completion.stop_reason in "123" else SPOIL
        calls = ("execute_bash", {{"command": command}}), ("finish", {{}})
        return Call(json.dumps([{{"name": name, "arguments": arguments}} for name, arguments in calls]))

    def insertion(self, observation):
        return " " + observation[:20] + "\\n"

    def too_long(self):
        return None

    def after_insertion(self):
        return ""
'''
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
n_samples_per_prompt = 8
max_new_tokens = 64

[env]
name = "swe"
protocol = "mender.py:Mender"
max_calls = 1
step_timeout_s = 120.0
workers = 2

[reward]
name = "env"

[filter]
names = []

[train]
max_steps = 3
num_episodes = 100

[pipeline]
mode = "sync"

[data]
prompt_dataset = "rows.jsonl"
max_len = 160

[logger]
trajectories = 1.0
tensorboard_dir = "unset"
"""


@pytest.mark.long
def test_hidden_tests_decide_what_is_trained(tmp_path):
    (tmp_path / "mender.py").write_text(MENDER)
    (tmp_path / "swe.toml").write_text(RECIPE)
    row = {"prompt": "Mend it.\n", "label": "-", "env": "swe", "meta": task()}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(8)))
    save_model(tmp_path / "model", seed=0)
    done = command("train", "--recipe", "swe.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = metrics.read(tmp_path / "run")
    assert columns["step"] == [1, 2, 3] and any(0 < share < 1 for share in columns["reward_mean"])
    kept = [
        json.loads(line)
        for path in (tmp_path / "run/trajectories").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    verdicts = {(c["signals"]["evaluation"], c["reward"]) for t in kept for c in t["calls"]}
    assert verdicts == {("resolved", 1.0), ("tests_failed", 0.0)}
