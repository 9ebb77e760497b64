"""python -m benchmarks.real_model.prompts --model DIR: how often the untrained model is right with each written prompt.

The prompts are those of miniatures/numbers.py; the tool is there, and the problems are held-out ones of
the trained kinds, the same for every prompt. The best prompt is `accuracy_before` of the benchmark. One evaluation of
some minutes; the last line is JSON, which is kept beside the attempts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from miniatures import numbers
from miniatures.rows import write_jsonl

from ..command import command_parser
from .attempt import REPO, cpu_name
from .summary import RESULTS

PER_KIND = 8


def rows() -> list[dict[str, Any]]:
    """Return the held-out problems under every prompt; the prompt's name stands in the place of the kind."""
    made = []
    for name, prompt in numbers.PROMPTS.items():
        for row in numbers.held_out_rows(prompt, PER_KIND):
            if row["meta"]["kind"] in numbers.TRAINED:
                made.append(row | {"meta": {"kind": name}})
    return made


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """Return accuracy by prompt from the JSON of `openrlhf-tir eval`, and the best one's."""
    sampled = {name: accuracy for name, (accuracy, _) in found["sampled"]["by_kind"].items()}
    best = max(sampled, key=lambda name: sampled[name])
    return {
        "accuracy_before": sampled[best],
        "best": best,
        "sampled": sampled,
        "code_ratio": {name: code for name, (_, code) in found["sampled"]["by_kind"].items()},
        "greedy": {name: accuracy for name, (accuracy, _) in found["greedy"]["by_kind"].items()},
        "problems": PER_KIND * len(numbers.TRAINED),
        "cpu": cpu_name(),
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="directory that `openrlhf-tir model smollm2` made")
    parser.add_argument("--out", type=Path, default=RESULTS / "prompts.json", help="[%(default)s]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tir-prompts-") as scratch:
        data, out = Path(scratch) / "rows.jsonl", Path(scratch) / "figures.json"
        write_jsonl(rows(), data)
        subprocess.run(
            [
                sys.executable, "-m", "openrlhf_tir.cli", "eval", "--recipe", "smollm2_cpu", "--model", args.model,
                "--run-dir", Path(scratch) / "run", "--eval.dataset", data, "--out", out,
            ],
            check=True,
            cwd=REPO,
            env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )  # fmt: skip
        found = figures(json.loads(out.read_text()))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
