"""Rows of retool.jsonl: the recipe's reward and code rewriting, the official evaluation's executor text and answer."""

from __future__ import annotations

import subprocess
import sys

from openrlhf_tir.rewards import retool

from ._compare import mismatches
from .official import retool as official

TIMED_OUT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"
FORBIDDEN = ("input(", "os.system(")
RUN_S = 3.0


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _reward(row: dict) -> list[str]:
    strict = official.recipe_score(row["solution_str"], row["ground_truth"], row["num_turns"])
    bad = mismatches(strict._asdict(), row["expected"])
    if "expected_math_dapo_non_strict" in row:
        lenient = official.answer_line_score(row["solution_str"], row["ground_truth"])
        bad += mismatches(lenient._asdict(), row["expected_math_dapo_non_strict"])
    return bad


def _code(row: dict) -> list[str] | None:
    code = row["parameters"].get("code")
    if not isinstance(code, str):
        return None  # what a tool call lacks is found before its code is looked at
    sent = official.printing(code)
    try:
        compile(sent, "code", "exec")
        compiles = True
    except SyntaxError:
        compiles = False
    got = {
        "code_sent": sent,
        "compiles": compiles,
        "timeout": row["parameters"].get("timeout", 30),
        "language": row["parameters"].get("language", "python"),
    }
    return mismatches(got, row["expected"])


def _exec(row: dict) -> list[str] | None:
    code = retool.eval_code(row["segment_before_stop"])
    text = _run(code)
    if text is None:
        return None
    return mismatches({"code": code, "inserted": retool.interpreter_block(text)}, row["expected"])


RUNNER = """
import contextlib, io, sys, traceback
said = io.StringIO()
try:
    with contextlib.redirect_stdout(said):
        exec(sys.argv[1], {})
    print(said.getvalue(), end="")
except BaseException:
    print(traceback.format_exc().split("\\n")[-2])
    sys.__stdout__.flush()
    sys.exit(1)
"""
"""As the reference runs code: inside of its own process, where sys.exit is an exception as any other, and its line all
that is said."""


def _run(code: str) -> str | None:
    """None for code that prints nothing: the reference inserts a TypeError of its own there."""
    if not code:
        return "None"
    if any(word in code for word in FORBIDDEN):
        return "RuntimeError"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", RUNNER, code], capture_output=True, text=True, timeout=RUN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    if done.returncode == 0 and not done.stdout:
        return None
    return done.stdout.strip()


def _extract(row: dict) -> list[str]:
    return mismatches({"answer": official.eval_answer(row["input"])}, {"answer": row["expected"]})


KINDS = {
    "verl_recipe_reward": _reward,
    "verl_recipe_code": _code,
    "official_eval_exec": _exec,
    "official_eval_extract": _extract,
}
