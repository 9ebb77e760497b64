"""`functions` and `search` on the real stack: the run starts their server, an untrained toy model's digits pick what is
called, and what comes of it is trained for two updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miniatures.toy.model import save_model
from openrlhf_tir.telemetry import metrics
from tests.contract.docs.docs_blocks import block

from ..test_guess_game import command

pytestmark = pytest.mark.long
STEPS = 2
OWN = """
# Behind the page's Digits: 1 to 3 are what the row wants.
import json

from openrlhf_tir.types import RewardParts


def order(side):
    return json.dumps([{"name": "place_order", "arguments": {"symbol": "ACME", "side": side, "quantity": 2}}])


class Orders(Digits):
    def advance(self, completion):
        said = super().advance(completion)
        return Call(order("buy" if said.action in "123" else "sell")) if isinstance(said, Call) else said


class Reads(Digits):
    searched = False

    def advance(self, completion):
        said = super().advance(completion)
        if not isinstance(said, Call):
            return said
        if not self.searched:
            self.searched = True
            return Call("gold of Hill")
        return Call(json.dumps({"open": f"1 page {3 if said.action in '123' else 1}"}))


def found(trajectory, task, context):
    right = task.label in trajectory.text
    return RewardParts(float(right), correct=right, parts={})
"""
GOLD = [{"name": "place_order", "arguments": {"symbol": "ACME", "side": "buy", "quantity": 2}}]
PAGES = (
    "An old mine in the north, with a tower.",
    "It was closed when the river came in.",
    "Its gold weighed 4711 kg.",
)


def trained(tmp_path: Path, row: dict[str, Any], *changes: tuple[str, str]) -> list[dict[str, Any]]:
    """The trajectories of a run of the page's recipe with these changes, in which the reward was not constant."""
    (tmp_path / "own.py").write_text(block("protocols.md", "python", "class Digits") + OWN)
    (tmp_path / "guess.jsonl").write_text((json.dumps({"label": "-", **row}) + "\n") * 8)
    save_model(tmp_path / "model", seed=0)
    recipe = block("protocols.md", "toml", "digits.py:Digits")
    for ours, theirs in changes:
        assert ours in recipe, ours
        recipe = recipe.replace(ours, theirs)
    (tmp_path / "recipe.toml").write_text(recipe)
    done = command("train", "--recipe", "recipe.toml", "--train.max_steps", str(STEPS), cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    columns = metrics.read(tmp_path / "run")
    assert columns["step"] == [*range(1, STEPS + 1)] and all(n > 0 for n in columns["trained_tokens"])
    assert all(calls > 0 for calls in columns["calls_mean"]), "the environment was called"
    kept = [
        json.loads(line)
        for path in (tmp_path / "run/trajectories").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert not any(t["failed"] for t in kept) and len({t["reward"] for t in kept}) > 1, "all have one reward"
    return kept


def test_function_calls_train_by_the_state_that_they_leave(tmp_path):
    kept = trained(
        tmp_path,
        {"prompt": "Buy 2 ACME.\n", "meta": {"domains": ["trading"], "seed": 0, "gold": [GOLD]}},
        ('name = "guess"\nfile = "guess.py:GuessEnv"', 'name = "functions"\nworkers = 1'),
        ("digits.py:Digits", "own.py:Orders"),
        ("max_calls = 2", "max_calls = 1"),
        ('name = "env" ', 'name = "artist"\noptions = { functions = true }'),
    )
    called = [t for t in kept if t["calls"]]
    right = {t["calls"][0]["signals"]["functions_matched"]: t["reward"] for t in called}
    assert right.keys() == {0, 1} and right[1] == 1.0 > right[0], right
    assert {(c["outcome"], c["signals"]["functions_total"]) for t in called for c in t["calls"]} == {("ok", 1)}


def test_searches_and_pages_train_by_what_was_read(tmp_path):
    """The fact is on the third page of the document that the search finds; its passage shows the first words only."""
    corpus = [
        *({"id": str(i), "contents": f'"Hill"\n{text}'} for i, text in enumerate(PAGES)),
        *({"id": str(i), "contents": f'"Place {i}"\nNothing of note is at place {i}.'} for i in range(3, 9)),
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in corpus))
    options = (
        f'server_options = {{ corpus = "{tmp_path / "corpus.jsonl"}", topk = 1, snippet_chars = 8, page_chars = 42 }}'
    )
    kept = trained(
        tmp_path,
        {"prompt": "How much gold had Hill?\n", "label": "4711"},
        ('name = "guess"\nfile = "guess.py:GuessEnv"', f'name = "search"\nworkers = 1\n{options}'),
        ("digits.py:Digits", "own.py:Reads"),
        ("max_new_tokens = 96", "max_new_tokens = 144"),
        ("max_len = 160", "max_len = 208"),
        ('name = "env" ', 'name = "own.py:found" '),
    )
    searches = [t["calls"][0] for t in kept if t["calls"]]
    assert searches and all(c["signals"]["num_results"] == 1 for c in searches)
    read = {(t["calls"][1]["signals"]["page"], t["reward"]) for t in kept if len(t["calls"]) > 1}
    assert read == {(1, 0.0), (3, 1.0)}, read
