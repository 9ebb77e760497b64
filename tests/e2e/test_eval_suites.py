"""`openrlhf-tir eval --suite` on the real stack: a set from a file, one row per problem, a second run that goes on, a
sweep of calls with its plot."""

from __future__ import annotations

import json
import re

import pytest

from miniatures.toy.model import save_model

from .test_guess_game import command

RECIPE = """
run_dir = "run"

[actor]
model_name_or_path = "model"
num_gpus_per_node = 1

[ds]
param_dtype = "fp32"
attn_implementation = "eager"

[rollout]
engine = "torch"
max_new_tokens = 24

[env]
workers = 1

[data]
input_template = "user_assistant"
max_len = 96

[eval]
n_samples_per_prompt = 3
top_p = 0.9

[logger]
tensorboard_dir = "unset"
"""


@pytest.mark.long
def test_a_set_is_sampled_resumed_and_swept(tmp_path):
    (tmp_path / "r.toml").write_text(RECIPE)
    (tmp_path / "aime.jsonl").write_text(
        "".join(json.dumps({"problem": f"{i}+1=", "answer": i + 1}) + "\n" for i in range(30))
    )
    save_model(tmp_path / "model", seed=0)
    words = ("eval", "--recipe", "r.toml", "--suite", "aime24=aime.jsonl", "--out", "out.json")

    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    directory = tmp_path / "run/eval/aime24"
    lines = (directory / "items.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert sorted(row["index"] for row in rows) == list(range(30)) and all(
        len(row["correct"]) == len(row["texts"]) == 3 for row in rows
    )
    found = json.loads((tmp_path / "out.json").read_text())["suites"]["aime24"]
    assert (found["problems"], found["samples"], found["failed"], found["published"]) == (30, 90, 0, 30)
    assert found["avg@3"][0] == pytest.approx(sum(sum(row["correct"]) for row in rows) / 90)

    # as a kill leaves it
    (directory / "items.jsonl").write_text("".join(f"{line}\n" for line in lines[:20]) + lines[20][:40])
    again = command(*words, cwd=tmp_path)
    assert again.returncode == 0 and re.search(r"\b20 \w+ 30\b", again.stderr), (
        again.stdout[-3000:] + again.stderr[-3000:]
    )
    after = (directory / "items.jsonl").read_text().splitlines()
    assert after[:20] == lines[:20] and sorted(json.loads(line)["index"] for line in after) == list(range(30))

    other = command(*words, "--eval.temperature", "0.5", cwd=tmp_path)
    assert other.returncode == 2 and re.search(r"temperature: 1\.0 .*\b0\.5\b", other.stderr)

    swept = command(
        "eval", "--recipe", "r.toml", "--suite", "aime24=aime.jsonl", "--items", "sweep",
        "--sweep", "env.max_calls=0,2", cwd=tmp_path,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stdout[-3000:] + swept.stderr[-3000:]
    without = [
        json.loads(line) for line in (tmp_path / "sweep/aime24/max_calls=0/items.jsonl").read_text().splitlines()
    ]
    assert len(without) == 30 and all(call == 0 for row in without for call in row["calls"])
    assert (tmp_path / "sweep/aime24/sweep_max_calls.png").read_bytes().startswith(b"\x89PNG")

    chosen = command(
        "data", "select", "run/eval/aime24/problems.jsonl", "--samples", "run/eval/aime24/items.jsonl",
        "--pass-rate", "0", "1", "--out", "s.jsonl", cwd=tmp_path,
    )  # fmt: skip
    assert chosen.returncode == 0 and re.search(r"\b30 \w+ 30\b", chosen.stdout), chosen.stdout + chosen.stderr
