"""Rules of ZeroTIR's code that no reward, filter or environment here uses. The rows hold their values beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from env_servers.python_tir.observation import clean_traceback
from openrlhf_tir.rewards.checking.code_text import PYTHON_BLOCK

_RUN = re.compile(r"```python.*?```output", re.DOTALL)
MAX_REPEATNESS = 0.05


def observation_of_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the observation and the error flag of a SandboxFusion `/run_code` reply, as ZeroTIR's client reads it.

    Returns:
        The observation, None if the reply has no result; and 1 if the code failed or did not finish, else 0. As in the
            reference, the status "SandboxError" beside a finished run counts as no error.
    """
    run = reply.get("run_result")
    if not run:
        return None, 1
    if run.get("status") != "Finished":
        return run.get("status"), 1
    if reply.get("status") == "Success":
        return run.get("stdout", ""), 0
    return clean_traceback(run.get("stderr") or ""), int(reply.get("status") == "Failed")


def block_pattern_score(text: str) -> float:
    """Return -0.1 if a python block is not followed by an output block, else 0. The reference has no such reward."""
    blocks = len(PYTHON_BLOCK.findall(text))
    return -0.1 if blocks and blocks != len(_RUN.findall(text)) else 0.0


def is_quality(facts: Mapping[str, float], repeatness_threshold: float = MAX_REPEATNESS, **label: object) -> bool:
    """Return True for a right sample that hardly repeats itself. ZeroTIR's code counts these for each group.

    Args:
        facts: What the reward recorded about the sample.
        repeatness_threshold: Largest share of repetition; the row's label may hold one.
        label: The other fields of the row's label, which are not used.
    """
    return facts["answer_rewards"] > 0.05 and facts["repeatness"] <= repeatness_threshold
