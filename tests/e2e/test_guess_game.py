"""The documentation's own environment, turn protocol and recipe, from the pages to learner steps on the real stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics
from tests.contract import outside_method
from tests.contract.docs.docs_blocks import block

ROOT = Path(__file__).parents[2]


def lay_out(directory: Path, prompts: int = 8) -> None:
    """What the pages tell the reader to have in one directory."""
    (directory / "guess.py").write_text(block("environments.md", "python", "class GuessEnv"))
    (directory / "digits.py").write_text(block("protocols.md", "python", "class Digits"))
    (directory / "asks.py").write_text(block("protocols.md", "python", "class Asks"))
    (directory / "guess.toml").write_text(block("protocols.md", "toml", "digits.py:Digits"))
    (directory / "asks.toml").write_text(block("protocols.md", "toml", "asks.py:Asks"))
    row = {"prompt": "Guess.\n", "label": "-", "meta": {"high": 3}}
    (directory / "guess.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(prompts)))
    save_model(directory / "model", seed=0)


def command(*args: str, cwd: Path, timeout: float = 900) -> subprocess.CompletedProcess:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "openrlhf_tir.cli", *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.long
def test_the_game_of_the_documentation_trains_and_its_trajectories_can_be_looked_at(tmp_path):
    lay_out(tmp_path)
    done = command("train", "--recipe", "guess.toml", "--train.max_steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = metrics.read(tmp_path / "run")
    assert columns["step"] == [1, 2] and all(0 < share < 1 for share in columns["reward_mean"])
    assert columns["reward/env_done"] == pytest.approx(columns["reward_mean"]), (
        "whoever guessed right ended the game and has reward 1"
    )
    shown = command("play", "run", "--step", "2", "--limit", "64", cwd=tmp_path)
    assert shown.returncode == 0 and "Correct." in shown.stdout and "reward 1.0, done" in shown.stdout, (
        shown.stdout[-2000:] + shown.stderr[-2000:]
    )
    copies = [path.name.partition("-")[0] for path in (tmp_path / "run/own").glob("*.py")]
    assert sorted(copies) == ["digits", "guess"], "the run holds the code that it was made with"


@pytest.mark.long
def test_the_game_as_a_chat_trains_what_the_model_said_and_nothing_of_what_its_template_wrote(tmp_path):
    lay_out(tmp_path)
    done = command("train", "--recipe", "asks.toml", "--train.max_steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert metrics.read(tmp_path / "run")["step"] == [1, 2]
    kept = [
        json.loads(line)
        for path in (tmp_path / "run/trajectories").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    runs = [[(r["source"], r["text"]) for r in t["runs"]] for t in kept]
    opening = "\nI think of a number between 1 and 3.\nAssistant:"
    assert len(kept) >= 64 and {r[0] for r in runs} == {("env", opening)}, (
        "the game's first words stand in the user's message"
    )
    replies = {text for r in runs for source, text in r[1:] if source == "env"}
    assert replies <= {
        f"\n```output\n{said} Try again.\n\n```\n\n\n" for said in ("higher", "lower", "Correct.", "That is no number.")
    }
    assert any("Correct." in text for text in replies) and not any(
        "output" in text for r in runs for source, text in r if source == "model"
    )


@pytest.mark.long
def test_a_method_from_outside_trains_on_the_real_stack(tmp_path):
    """Reward, group reward, filter, sample filter, protocol, estimator, loss and environment: one file, a recipe."""
    outside_method.lay_out(tmp_path)
    save_model(tmp_path / "model", seed=0)
    done = command("train", "--recipe", "method.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = metrics.read(tmp_path / "run")
    assert (
        columns["step"] == [1, 2]
        and all(np.isfinite(columns["loss"]))
        and all(n > 0 for n in columns["trained_tokens"])
    )
    assert all(words > 0 for words in columns["reward/words"]), "a part of the own reward"
    assert [path.stem.partition("-")[0] for path in (tmp_path / "run/own").glob("*.py")] == ["method"]
