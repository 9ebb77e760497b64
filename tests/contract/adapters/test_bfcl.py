"""BFCL's multi-turn tasks on the package bfcl-eval: its rows played over HTTP, and our verdicts are its checker's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from env_servers.adapters.bfcl.make_tasks import CATEGORIES, package_file
from env_servers.adapters.bfcl.make_tasks import rows as task_rows
from env_servers.adapters.bfcl.package import functions
from env_servers.adapters.bfcl.play import play
from env_servers.adapters.bfcl.task import Call
from env_servers.adapters.bfcl.world import Scene
from openrlhf_tir.config.servers import SERVERS
from openrlhf_tir.data.bfcl.functions import offered
from openrlhf_tir.evaluation.suites import SUITES, find, rows_of
from openrlhf_tir.rollout.environment_client.check import Options, check_server

from ..env_process import Http, env_server
from .bfcl_trajectories import KINDS, Row, Turns, as_text, rows, trajectory

pytestmark = pytest.mark.extended

checker = pytest.importorskip(
    "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker",
    reason="the package bfcl-eval is not installed: pip install --no-deps bfcl-eval==2026.3.23",
)
MODULE = "env_servers.adapters.bfcl"
EVERY = 8
"""The ordinary run takes one row of so many."""


def theirs(row: Row, turns: Turns, name: str) -> str | None:
    """Why the package fails it; None where it passes. `name` keeps its instances, never let go, from another's."""
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.posting_api import TwitterAPI

    # the package's own calls add to them, and every later tweet of the process begins with that
    TwitterAPI.post_tweet.__defaults__ = ([], [])
    found = checker.multi_turn_checker(
        [[[as_text(c) for c in step] for step in turn] for turn in turns], row.gold, row.entry, "", name
    )
    for instance in [k for k in vars(multi_turn_utils) if k.startswith(f"{name}_")]:
        delattr(multi_turn_utils, instance)
    return None if found["valid"] else found["error_type"].removeprefix("multi_turn:")


def ours(row: Row, turns: Turns) -> str | None:
    scene = Scene(
        row.entry["involved_classes"], row.entry["initial_config"], "long_context" in row.entry["id"], row.calls
    )
    return next((f for f in play(scene, turns, len(turns)).failed if f), None)


def compared(category: str, every: int) -> Counter[str | None]:
    """The verdicts on one row of `every`, all kinds of trajectories. Fails at the first that differs."""
    seen: Counter[str | None] = Counter()
    for i, row in enumerate(rows(category)):
        for kind in KINDS if i % every == 0 else ():
            turns = trajectory(row.calls, kind, random.Random(f"{i} {kind}"))
            verdict = theirs(row, turns, f"m{i}_{kind.replace(' ', '_')}")
            assert ours(row, turns) == verdict, (row.entry["id"], kind)
            assert kind != "gold" or verdict is None
            seen[verdict] += 1
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES[:3])
def test_our_verdict_equals_the_packages_on_true_and_perturbed_trajectories(category):
    seen = compared(category, EVERY)
    assert seen.total() == 200 // EVERY * len(KINDS)
    assert set(seen) == {None, "empty_turn_model_response", "instance_state_mismatch", "execution_response_mismatch"}


@pytest.mark.long
@pytest.mark.parametrize("category", CATEGORIES)
def test_our_verdict_equals_the_packages_on_every_row(category):
    assert compared(category, 1).total() == 200 * len(KINDS)


def by_name(call: Call, schemas: list[dict]) -> dict:
    """As a model sends it: true calls may have arguments without a name."""
    names = next(list(f["parameters"]["properties"]) for f in schemas if f["name"] == call.name)
    return {"name": call.name, "arguments": {**dict(zip(names, call.values, strict=False)), **call.arguments}}


@pytest.mark.slow
async def test_rows_played_by_their_gold_answers_are_rewarded_over_http(tmp_path):
    with env_server(MODULE, tmp_path, log=tmp_path / "log") as (url, _):
        async with Http(url) as http:
            for category in CATEGORIES[:3]:
                for row, source in list(zip(task_rows([package_file(category)], "tool"), rows(category), strict=True))[
                    ::40
                ]:
                    schemas = offered(functions(), source.entry["involved_classes"])
                    session, step = await http.open({**row["meta"], "label": json.dumps(row["label"])}), 0
                    for turn in source.calls:
                        for call in turn:
                            _, reply, _ = await http.step(session, step, json.dumps([by_name(call, schemas)]))
                            assert not reply["done"] and "Error during execution" not in reply["observation"], (
                                row["meta"]["id"],
                                call,
                                reply,
                            )
                            step += 1
                        _, reply, _ = await http.step(session, step, json.dumps({"message": "Done."}))
                        step += 1
                    signals = reply["signals"]
                    assert (reply["done"], reply["reward"], signals["failed"]) == (True, 1.0, None), (
                        row["meta"]["id"],
                        signals,
                    )
                    assert (
                        signals["state_match"] == signals["state_total"]
                        and signals["functions_matched"] == signals["functions_total"]
                    )


@pytest.mark.slow
async def test_an_endless_call_uses_up_its_own_cpu_and_delays_no_other_step(tmp_path):
    task = {"id": "mine_0", "functions_told": True, "involved_classes": ["MathAPI"], "label": [["add(a=1, b=2)"]]}
    endless = {"name": "power", "arguments": {"base": 9, "exponent": 10**9}}
    add = {"name": "add", "arguments": {"a": 1, "b": 2}}
    with env_server(MODULE, tmp_path, "--step-cpu", "1", log=tmp_path / "log") as (url, _):
        async with Http(url) as http:
            session = await http.open(task)
            _, wrong, _ = await http.step(session, 0, json.dumps([endless]), 60.0)
            assert (wrong["outcome"], wrong["signals"]["error_type"]) == ("model_error", "cpu"), wrong
            _, right, _ = await http.step(session, 1, json.dumps([add]), 60.0)
            assert (right["outcome"], right["observation"]) == ("ok", '{"result": 3}')
            _, end, _ = await http.step(session, 2, json.dumps({"message": "3"}))
            assert end["reward"] == 1.0


@pytest.mark.slow
async def test_check_env_passes(tmp_path):
    with env_server(MODULE, tmp_path, log=tmp_path / "log") as (url, _):
        options = Options(steps=60, concurrency=8, flood=16, timeout_s=20.0)
        results = await check_server(url, SERVERS["bfcl"].actions, options)
    kept = {f.check: (f.verdict, f.fact) for f in results if f.verdict != "pass"}
    assert set(kept) == {"401 without the token", "deadline", "capacity"} and {v for v, _ in kept.values()} == {
        "skip"
    }, kept


@pytest.mark.slow
def test_the_papers_split_trains_on_a_hundred_first_turns_and_holds_out_the_others(tmp_path):
    words = [
        sys.executable, "-m", f"{MODULE}.make_tasks", "--turns", "1", "--count", "100", "--rest", "rest.jsonl",
        "--out", "train.jsonl",
    ]  # fmt: skip
    done = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    train, rest = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "rest")
    )
    ids = {row["meta"]["id"] for row in train + rest}
    assert (len(train), len(rest), len(ids)) == (100, 100, 200)
    assert all(
        len(row["label"]) == 1 and row["label"][0] and row["meta"]["turns"] == [] and row["env"] == "bfcl"
        for row in train + rest
    )


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_packages_files_can_be_evaluated_unchanged(category):
    found = find(f"bfcl_{category}", package_file(category).parent)
    made = list(rows_of(found))
    assert len(made) == SUITES[f"bfcl_{category}"].rows == 200
    assert all(
        row["prompt"][0]["role"] == "system" and len(json.loads(row["label"])) == 1 + len(row["meta"]["turns"])
        for row in made
    )
