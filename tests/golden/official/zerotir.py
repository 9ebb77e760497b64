"""ZeroTIR: its answer check and verdict, mark of good samples, its score of code blocks, its reading of the sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from env_servers.python_tir.observation import clean_traceback
from openrlhf_tir.filters.zerotir import Facts
from openrlhf_tir.rewards.checking import symbolic

_CODE = re.compile(r"```python\n.*?```", re.DOTALL)
_RUN = re.compile(r"```python.*?```output", re.DOTALL)


def is_quality(facts: Facts, repeatness_threshold: float = 0.05, **label: object) -> bool:
    """Correct and hardly repetitive; the label may carry its own threshold."""
    return facts["answer_rewards"] > 0.05 and facts["repeatness"] <= repeatness_threshold


def official_answer(text: str) -> str | None:
    r"""What follows the last "boxed": its braces' content, or the text up to "$" where no brace follows directly."""
    _, found, rest = text.rpartition("boxed")
    if not found:
        return None
    if not rest.startswith("{"):
        return rest.split("$")[0].strip()
    depth = 0
    for i, c in enumerate(rest):
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return rest[1:i]
    return rest[1:]


def official_verdict(answer: str, gold: str | Sequence[str]) -> float:
    r"""math-verify of \boxed{answer} vs \boxed{gold}, after a comparison of the strings; an answer it cannot parse is
    wrong. Of several golds one counts."""
    parsed = symbolic.parse_boxed(answer)
    if len(parsed) < 2:
        return 0.0
    golds = [gold] if isinstance(gold, str) else gold
    return float(any(parsed[1] == g or symbolic.verify(symbolic.parse_boxed(g), parsed) for g in golds))


def code_pattern_score(response: str) -> float:
    """-0.1 where the number of python blocks is not that of python blocks followed by an output block (unused)."""
    blocks = len(_CODE.findall(response))
    return -0.1 if blocks and blocks != len(_RUN.findall(response)) else 0.0


def parse_sandbox_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """(observation, error) of a SandboxFusion `/run_code` reply, as ZeroTIR's client reads it.

    error is 1 when the code failed or did not finish. A reply without a result has no observation. Status
    "SandboxError" with a finished run counts as no error in the reference.
    """
    run = reply.get("run_result")
    if not run:
        return None, 1
    if run.get("status") != "Finished":
        return run.get("status"), 1
    if reply.get("status") == "Success":
        return run.get("stdout"), 0
    return clean_traceback(run.get("stderr") or ""), int(reply.get("status") == "Failed")
