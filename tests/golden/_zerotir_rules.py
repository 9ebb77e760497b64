"""Rules of ZeroTIR's code, most of which nothing in the product uses. The rows hold their values beside ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from env_servers.python_tir.env import judge
from env_servers.python_tir.fusion_backend import execution_of
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.observation import clean_traceback
from env_servers.python_tir.run_code import RunCodeReply
from env_servers.python_tir.sandbox import SandboxError
from openrlhf_tir.rewards.checking.code_text import PYTHON_BLOCK

_RUN = re.compile(r"```python.*?```output", re.DOTALL)
MAX_REPEATNESS = 0.05


def observation_of_reply(reply: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the observation and the error flag of a SandboxFusion `/run_code` reply.

    They are the environment's, except for a server that could not run the code. Here that fails the sample; the
    reference shows the model what there is, None if the reply has no result, and counts no error where the status is
    "SandboxError" beside a finished run.
    """
    try:
        step = judge(execution_of(RunCodeReply.model_validate({"message": ""} | dict(reply)), Limits(), "the server"))
    except (SandboxError, ValidationError):
        run = reply.get("run_result") or {}
        finished = run.get("status") == "Finished"
        return clean_traceback(run.get("stderr") or "") if finished else run.get("status"), int(not finished)
    return step.observation, int(step.outcome != "ok")


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
