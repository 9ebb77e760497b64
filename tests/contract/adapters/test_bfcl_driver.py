"""The package's own evaluator, `bfcl evaluate` in a virtual environment of its own, on texts that our grader judges
too: item by item they agree.

TIR_BFCL_VENV names an environment with the whole package (python -m venv DIR && DIR/bin/pip install
bfcl-eval==2026.3.23 soundfile)."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from openrlhf_tir.config import Reward
from openrlhf_tir.evaluation.suites import V4, find, rows_of
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.types import Task
from tests.unit.evaluation.test_store import sample

from .bfcl_outputs import KINDS, text_of

VENV = os.environ.get("TIR_BFCL_VENV")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        VENV is None,
        reason="TIR_BFCL_VENV is not set: it names a virtual environment with bfcl-eval and all that it needs",
    ),
]
CATEGORIES = (
    *("simple", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance"),
)
MODEL = "Qwen/Qwen3-8B"
"""A name that the package knows, of a model that is prompted: its answers are read as Python. It is not loaded."""


def package_data() -> Path:
    words = [f"{VENV}/bin/python", "-c", "import bfcl_eval; print(bfcl_eval.__path__[0])"]
    return Path(subprocess.run(words, capture_output=True, text=True, check=True, timeout=600).stdout.strip()) / "data"


def bfcl(project: Path, *words: str) -> None:
    done = subprocess.run(
        [f"{VENV}/bin/bfcl", *words],
        env=os.environ | {"BFCL_PROJECT_ROOT": str(project), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def write_results(project: Path, category: str, texts: dict[str, str]) -> None:
    """As `bfcl generate` leaves them."""
    path = (
        project
        / "result"
        / MODEL.replace("/", "_")
        / ("live" if "live" in category else "non_live")
        / f"BFCL_v4_{category}_result.json"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            json.dumps({"id": name, "result": text, "input_token_count": 1, "output_token_count": 1, "latency": 0.1})
            + "\n"
            for name, text in texts.items()
        )
    )


def failed(project: Path, category: str) -> dict[str, str]:
    """id -> error type, of the items that the package calls wrong. The score file begins with its figures."""
    (path,) = (project / "score").rglob(f"BFCL_v4_{category}_score.json")
    head, *rest = map(json.loads, path.read_text().splitlines())
    assert head["total_count"] - head["correct_count"] == len(rest)
    return {row["id"]: str(row.get("error_type")) for row in rest}


def ours(row: dict, text: str) -> bool:
    return load("bfcl")(
        sample(0, text, 0.0), Task("", row["label"]), RewardContext(Reward(name="bfcl"), options={})
    ).correct


@pytest.mark.parametrize("seed", range(3))
def test_the_packages_evaluator_and_our_grader_agree_on_every_item(tmp_path, seed):
    data = package_data()
    items_by_category: dict[str, dict[str, tuple[dict, str, str]]] = {}
    for category in CATEGORIES:
        found = find(f"bfcl_{category}", data)
        ids = [json.loads(line)["id"] for line in found.path.read_text().splitlines()]
        items = items_by_category.setdefault(V4.get(category, category), {})
        for name, row in zip(ids, rows_of(found), strict=True):
            rng, label = random.Random(f"{seed} {name}"), json.loads(row["label"])
            kind = rng.choice(KINDS)
            items[name] = (row, kind, text_of(label["possible_answer"], label["function"], kind, rng))
        write_results(tmp_path, V4.get(category, category), {name: text for name, (_, _, text) in items.items()})
    bfcl(tmp_path, "evaluate", "--model", MODEL, "--test-category", ",".join(items_by_category))
    judged: Counter[bool] = Counter()
    differ = []
    for category, items in items_by_category.items():
        wrong = failed(tmp_path, category)
        for name, (row, kind, text) in items.items():
            verdict = ours(row, text)
            judged[verdict] += 1
            if verdict == (name in wrong):
                differ.append((name, kind, text, wrong.get(name)))
    print(f"{judged.total()} items, {judged[True]} right, {len(differ)} judged otherwise")
    assert not differ, differ[:10]
    assert min(judged.values()) > 500
