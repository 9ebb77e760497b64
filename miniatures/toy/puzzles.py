r"""The puzzles of `puzzles_cpu`: rows of reasoning-gym's `count_bits`, made by the puzzles server's own command in a
process of its own.

    User: How many 1 bits are there in the binary representation of the number 11?\nAssistant:    the prompt
    <answer>\boxed{12}                                                                          the model's first answer
     Wrong.\n                                                                                    the environment
    </answer>\boxed{3} Correct.\n                                                               the next, and the end

The base model of the quickstart has never seen one: it says any numbers, one after the other. The data set gives a part
of the reward to a last answer that holds the right digit among others: there is something to learn from the first step
on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from openrlhf_tir.errors import ConfigError

KIND = "puzzle"
"""`meta.kind` of a puzzle, beside the kinds of task.py."""
NAME, CONFIG, TRIES = "count_bits", {"min_n": 1, "max_n": 15}, 3
DIFFERENT = 60
"""Rows that are made; more are these again. There are 15 questions, and a tiny model learns them by heart."""
MAKING_S = 300.0
"""Deadline in seconds of the command, which takes some: most of them to load reasoning-gym."""


def puzzles(n: int, env: str, split: str) -> list[dict[str, Any]]:
    """Return `n` data rows for the environment `env`.

    Raises:
        ConfigError: The command failed, for example because reasoning-gym is not installed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="tir-puzzles-") as directory:
        out = Path(directory) / "rows.jsonl"
        command = [
            sys.executable, "-m", "env_servers.puzzles.make_tasks", "--puzzles", NAME, "--config", json.dumps(CONFIG),
            "--tries", str(TRIES),
        ]  # fmt: skip
        command += [
            "--count", str(min(n, DIFFERENT)), "--seed", "0" if split == "train" else "1000", "--how", "", "--env", env,
            "--out", str(out),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=MAKING_S
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"The puzzles of the toy model were not made within {MAKING_S:g} s: {' '.join(command)}"
            ) from None
        if done.returncode != 0:
            raise ConfigError(f"The puzzles of the toy model were not made: {done.stderr.strip()[-600:]}")
        rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["meta"]["kind"] = KIND
    return [rows[i % len(rows)] for i in range(n)]
