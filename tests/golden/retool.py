"""Rows of retool.jsonl: the recipe's reward and code rewriting, the official evaluation's executor text and answer."""

from __future__ import annotations

import subprocess
import sys
import time

from env_servers.python_tir import conventions
from env_servers.python_tir.sandbox import Execution
from openrlhf_tir.rewards import retool
from openrlhf_tir.rollout.protocols.calls import printed
from openrlhf_tir.rollout.protocols.retool import unexecuted

from ._compare import mismatches

RUN_S = 3.0


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _reward(row: dict) -> list[str]:
    strict = retool.recipe_score(row["solution_str"], row["ground_truth"], row["num_turns"])
    bad = mismatches(strict._asdict(), row["expected"])
    if "expected_math_dapo_non_strict" in row:
        lenient = retool.answer_line_score(row["solution_str"], row["ground_truth"])
        bad += mismatches(lenient._asdict(), row["expected_math_dapo_non_strict"])
    return bad


def _code(row: dict) -> list[str] | None:
    code = row["parameters"].get("code")
    if not isinstance(code, str):
        return None  # what a tool call lacks is found before its code is looked at
    sent = printed.official(code)
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


def _run(code: str) -> str | None:
    """Return what the model reads; None for code that prints nothing, of which the reference makes a TypeError.

    A process stands for the sandbox; what is read of it is the environment's text (conventions.retool).
    """
    if (answer := unexecuted(code)) is not None:
        return answer
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        stdout, stderr = process.communicate(timeout=RUN_S)
        killed, error = None, None if process.returncode == 0 else "runtime_error"
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        killed, error = "time", "time_limit"
    code_of = None if killed else process.returncode
    execution = Execution(stdout, stderr, code_of, time.monotonic() - start, killed=killed)
    if error is None and not stdout:
        return None
    return conventions.retool(execution, error).text


def _extract(row: dict) -> list[str]:
    return mismatches({"answer": retool.evaluation_answer(row["input"])}, {"answer": row["expected"]})


KINDS = {
    "verl_recipe_reward": _reward,
    "verl_recipe_code": _code,
    "official_eval_exec": _exec,
    "official_eval_extract": _extract,
}
