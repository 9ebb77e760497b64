"""Fuzz of everything that a user writes: recipes, flags, data rows, control files. Each ends in a result or in one of
our errors.

Every case has a seed of its own, printed when it fails: `cases.replay(recipe, SEED, path)` repeats it. The ordinary
suite tries about 1,500, `run.sh long` 10^5.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.preflight import Machine, check
from openrlhf_tir.cluster.jobs.control import read as read_control
from openrlhf_tir.config import Data
from openrlhf_tir.config.catalog import known_keys
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import RECIPES, attempt, load, to_toml
from openrlhf_tir.data import load_prompts
from tests.model_files import weights

from .bytes_and_text import NASTY, mutated, words
from .cases import ends, table, tried

RECIPE_TEXTS = [p.read_bytes() for p in sorted(RECIPES.glob("*.toml"))] + [
    b'extends = "r.toml"\n[actor]\nl2 = 0.1\n',
    b'extends = "~"\nrun_dir = "~/x"\n[reward.options]\n"a b" = 1.5\n[pipeline]\ndepth = "auto"\n',
    b"[train]\nseed = 0x7fff\n[algo.advantage]\nis_correction_threshold = [0.5, 5.0]\nis_correction_level = 'token'\n",
]
ROWS = [
    {"prompt": "1+1?", "label": "2"},
    {"prompt": "é ∑", "label": 2, "meta": {"kind": "sum", "n": [1, 2.5, None]}, "env": "echo"},
    {"prompt": [{"role": "user", "content": "q"}], "label": ["a", "b"], "datasource": "d"},
    {"prompt": "z", "label": json.dumps({"gold_ans": "1", "env_func": "math_tir", "k": [1]})},
]
CONTROL = b'rollout_actors = 3\n[env_urls]\npython_tir = ["http://10.0.0.5:8100", "http://10.0.0.6:8100"]\n'


def recipe(rng: random.Random, tmp: Path) -> None:
    """A damaged recipe: load says what is wrong, or gives a Config that survives being shown and read again."""
    path = tmp / "r.toml"
    path.write_bytes(mutated(rng, rng.choice(RECIPE_TEXTS)))
    cfg = load(str(path), {"run_dir": "runs/x"})
    again = tmp / "again.toml"
    for only_changes in (False, True):
        again.write_text(to_toml(cfg, only_changes=only_changes), encoding="utf-8")
        assert load(str(again)) == cfg


def values(rng: random.Random, tmp: Path) -> None:
    """Well-formed TOML or overrides whose values have any type."""
    odd = [
        True, -1, 0, 2**63, 10**5000, 1e308, float("inf"), float("nan"), None, [], {}, [[]], {"a": {"b": 1}}, *NASTY,
        Path("x"), b"x", (1, 2), [1, "a"],
    ]  # fmt: skip
    load(
        rng.choice([None, "zerotir_7b", "quickstart_cpu"]),
        {rng.choice(known_keys(["one", "two"])): rng.choice(odd) for _ in range(rng.randint(1, 4))},
    )


def flags(rng: random.Random, tmp: Path) -> None:
    """A command line of known, unknown and mistyped flags with any values, through show-config and train's checks."""
    names = [
        f"--{k}"
        for k in (
            *known_keys(), "recipe", "critic.adam.lr", "train.async_enable", "pretrain", "run-dir", "seed",
            "algo.dynamic_filtering_range",
        )
    ]  # fmt: skip
    command = rng.choice(["show-config"] * 9 + ["train"])
    argv = [command] + (["--check-only"] if command == "train" else [])
    for _ in range(rng.randint(1, 5)):
        argv.append(words(rng, names))
        argv += [
            words(rng, ["1", "0.5", "true", "auto", "quickstart_cpu", "0.1", "file", "-3", "-1e-3"])
            for _ in range(rng.choice((0, 1, 1, 1, 2)))
        ]
    argv = [a for a in argv if a not in ("-h", "--help", "--")]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    assert code in (0, 2), (argv, err.getvalue())
    assert (code == 0) == (not err.getvalue()), (argv, err.getvalue())


def rows(rng: random.Random, tmp: Path) -> None:
    """A damaged data file, as JSONL, an array, or parquet by name; what is loaded can be sent as JSON in UTF-8."""
    path = tmp / rng.choice(("d.jsonl", "d.jsonl", "d.json", "d.parquet"))
    chosen = [rng.choice(ROWS) for _ in range(rng.randint(1, 4))]
    ascii_only = rng.random() < 0.5
    text = (
        "\n".join(json.dumps(r, ensure_ascii=ascii_only) for r in chosen)
        if rng.random() < 0.7
        else json.dumps(chosen, ensure_ascii=ascii_only)
    )
    path.write_bytes(mutated(rng, text.encode()))
    template = rng.choice([None, "user_assistant", "Q {}"])
    for task in load_prompts(Data(prompt_dataset=str(path), input_template=template)).tasks:
        json.dumps([task.prompt, task.label, task.env, dict(task.meta)], allow_nan=False, ensure_ascii=False).encode(
            "utf-8"
        )


def cells(rng: random.Random, tmp: Path) -> None:
    """Well-formed rows with any value in any column."""
    odd = [
        None, True, 0, -1.5, 10**4000, float("nan"), float("inf"), [], {}, [[1]], {"role": "user"},
        [{"role": "user", "content": None}], *NASTY,
    ]  # fmt: skip
    deep: object = "x"
    for _ in range(200):
        deep = {"a": deep}
    written = []
    for _ in range(rng.randint(1, 3)):
        row = dict(rng.choice(ROWS))
        for _ in range(rng.randint(1, 3)):
            row[rng.choice(("prompt", "label", "env", "meta", "datasource", "other"))] = rng.choice(
                [*odd, deep, {"k": rng.choice(odd)}]
            )
        written.append(json.dumps(row))
    path = tmp / "d.jsonl"
    path.write_text("\n".join(written))
    for task in load_prompts(Data(prompt_dataset=str(path), input_template=rng.choice([None, "Q {}"]))).tasks:
        json.dumps([task.prompt, task.label, task.env, dict(task.meta)], allow_nan=False, ensure_ascii=False).encode(
            "utf-8"
        )


def control(rng: random.Random, tmp: Path) -> None:
    """A damaged control file of a running run."""
    path = tmp / "control.toml"
    path.write_bytes(mutated(rng, CONTROL))
    read_control(path)


MACHINE = Machine(gpus=0, cpus=2, shm_free=1 << 30, has_module=lambda name: True, isolation_fault=lambda: None)


def checked(rng: random.Random, tmp: Path) -> None:
    """The checks of train on a run of which one thing or two are damaged: a setting, the model's files, the data."""
    model = tmp / "model"
    model.mkdir(exist_ok=True)
    files = {
        model / "config.json": b'{"hidden_size": 128, "num_attention_heads": 4}',
        model / "tokenizer_config.json": b'{"chat_template": "x"}',
        model / "tokenizer.json": b"{}",
        model / "model.safetensors": weights(),
        tmp / "d.jsonl": b'{"prompt": "1+1?", "label": "2"}\n' * 3,
    }
    damaged = rng.choice([*files, None])
    for path, raw in files.items():
        path.write_bytes(mutated(rng, raw) if path == damaged else raw)
    over = {
        "ds.attn_implementation": "sdpa",
        "actor.num_gpus_per_node": 1,
        "rollout.batch_size": 2,
        "rollout.n_samples_per_prompt": 2,
    }
    over |= {
        "actor.model_name_or_path": str(model),
        "data.prompt_dataset": str(tmp / "d.jsonl"),
        "run_dir": str(tmp / "run"),
    }
    if rng.random() < 0.5:
        ends_in = (
            "path", "name", "dir", "template", "_key", "url", "port", "backend", "estimator", "protocol", "split",
        )  # fmt: skip
        key = rng.choice([k for k in known_keys() if k.endswith(ends_in)])
        over[key] = rng.choice([*NASTY, ":", ":x", "..:x", "./", "/dev/null", "/dev/null/x", str(tmp), "a.b:c", 3])
    problems = Problems()
    check(attempt(None, over, problems), machine=MACHINE, problems=problems)


KINDS = table(recipe, values, flags, rows, cells, control, checked)
SHARES = {"recipe": 300, "values": 300, "flags": 150, "rows": 300, "cells": 300, "control": 100, "checked": 150}
"""Cases in the ordinary suite: 1,600. Command lines are the slowest."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_ends_in_a_traceback(kind, tmp_path):
    tried(KINDS[kind], 0, SHARES[kind], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_inputs_end_in_no_traceback(kind, tmp_path):
    """64 times as many, with other seeds: 102,400."""
    tried(KINDS[kind], 10**6, 64 * SHARES[kind], tmp_path)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"flags"}))
def test_the_fuzz_reaches_both_ends(kind, tmp_path):
    """`flags` ends in exit codes instead of errors, which it checks itself."""
    assert ends(KINDS[kind], tmp_path) == {"accepted", "refused"}
