"""Fine-tuning on the real stack: Ray, two ZeRO-3 ranks, the toy model. Learned, stopped, resumed, exported; and a run's
own responses distilled."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from miniatures.toy.model import save_model
from miniatures.toy.task import draw, write_data
from miniatures.toy.traces import prompt_of
from openrlhf_tir.cli.exit_codes import STOPPED
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.weights.digest import digest_file

from .test_guess_game import ROOT, command

pytestmark = pytest.mark.long
STEPS = 60


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Rows of the toy's problems solved with code, and the model that has learned nothing."""
    directory = tmp_path_factory.mktemp("sft")
    save_model(directory / "init", seed=0)
    rng = random.Random(0)
    for name, n in (("rows", 320), ("held_out", 32)):
        lines = [json.dumps(row(draw(rng, "train"))) + "\n" for _ in range(n)]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    return directory


def row(problem) -> dict:
    """As an episode of the quickstart goes: what the sandbox printed is the environment's."""
    told = {"source": "env", "text": ZeroTir(max_calls=1).insertion(f"{problem.answer}\n")}
    said = [f"```python\n{problem.code}\n```", f"<answer>\\boxed{{{problem.answer}}}</answer>"]
    code, answer = ({"source": "model", "text": text, "end": ""} for text in said)
    return {"prompt": prompt_of(problem.question), "segments": [code, told, answer]}


def argv(run_dir: str, *more: str) -> list[str]:
    given = (
        "sft --recipe sft_cpu --sft.dataset rows.jsonl --sft.eval_dataset held_out.jsonl --actor.model_name_or_path"
        " init --sft.learning_rate 2e-3"
    )
    return [*given.split(), "--sft.max_epochs", "3", "--ckpt.save_steps", "10", "--run-dir", run_dir, *more]


@pytest.fixture(scope="module")
def whole(work):
    done = command(*argv("whole"), cwd=work)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return work / "whole"


def weights(run_dir: Path) -> str:
    return digest_file(run_dir / "model" / "model.safetensors")


def test_the_held_out_loss_falls_and_the_export_loads(whole):
    columns = metrics.read(whole)
    measured = [
        (step, loss) for step, loss in zip(columns["step"], columns["eval/loss"], strict=True) if loss is not None
    ]
    assert [step for step, _ in measured] == [0, STEPS] and measured[1][1] < 0.6 * measured[0][1]
    assert columns["step"] == list(range(STEPS + 1)) and columns["lr"][-1] < max(lr for lr in columns["lr"] if lr)
    summary = json.loads((whole / "sft.json").read_text())
    assert summary["steps"] == STEPS and summary["eval_loss"] == pytest.approx(measured[1][1])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert (
        AutoTokenizer.from_pretrained(whole / "model").eos_token
        and AutoModelForCausalLM.from_pretrained(whole / "model").num_parameters() > 100_000
    )


def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_weights(work, whole):
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "DS_ACCELERATOR": "cpu",
        "COLUMNS": "160",
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "openrlhf_tir.cli", *argv("cut")], cwd=work, env=env, stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if f" 6/{STEPS}" in line:
            process.send_signal(signal.SIGTERM)
            break
    process.stdout.read()
    assert process.wait(timeout=300) == STOPPED
    refused = command(*argv("cut", "--resume", "--seed", "1"), cwd=work)
    assert refused.returncode == 2 and re.search(r"train\.seed = 42\D* 1\b", refused.stderr)
    done = command(*argv("cut", "--resume"), cwd=work)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert metrics.read(work / "cut")["step"] == list(range(STEPS + 1))
    assert weights(work / "cut") == weights(whole) != digest_file(work / "init" / "model.safetensors")


def test_a_runs_own_responses_are_learned(work, whole):
    """RL on one update from the fine-tuned model keeps what it samples; what it finished becomes rows to fine-tune."""
    write_data(work / "data", 0, n_train=64)
    model, data = ("--actor.model_name_or_path", "whole/model"), ("--data.prompt_dataset", "data/train.jsonl")
    kept = command(
        "train", "--recipe", "quickstart_cpu", *model, *data, "--train.max_steps", "1", "--logger.trajectories", "1",
        "--run-dir", "rl", cwd=work,
    )  # fmt: skip
    assert kept.returncode == 0, kept.stdout[-2000:] + kept.stderr[-2000:]
    # Sixty updates teach the form of a response and few answers: responses are taken by their reward, whatever it is.
    made = command("distill", "rl", "--out", "own.jsonl", "--wrong-too", "--min-reward", "-10", cwd=work)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    rows = [json.loads(line) for line in (work / "own.jsonl").read_text().splitlines()]
    lasts = [r["segments"][-1] for r in rows]
    assert all(s["text"].endswith("</answer>") or s["end"] for s in lasts), (
        "what was finished ends where an episode ends, or by the end token"
    )
    assert any(s["text"].endswith("</answer>") for s in lasts)
    assert {s["source"] for r in rows for s in r["segments"]} == {"model", "env"}, "some of them called the interpreter"
    done = command(*argv("own", "--sft.dataset", "own.jsonl", "--sft.max_steps", "2"), cwd=work)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert metrics.read(work / "own")["step"] == [0, 1, 2]
