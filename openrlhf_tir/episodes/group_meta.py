"""Group metadata: a group's payload -> what the controller needs of it. Statistics are over valid trajectories."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ..errors import METHOD_REASONS
from ..rewards.checking.answer_text import model_text
from ..types import Group, GroupMeta, Trajectory, Verdict

CALL_SECONDS = "call_seconds"
"""The name, in a group's stats, of the seconds that the environment took for a call."""
CALL_FACTS = ("calls_correct", "calls_ok", "calls_ok_correct")
"""Names of means over a group's samples in its stats: calls of the right ones, calls that ran without an error, and
those of the right ones."""
CODE_FACTS = ("code_written", "code_run", "code_responses", "code_after_answer")
"""Names of such means, of fenced Python: programs that the model wrote, those that it stopped for so that they ran,
responses with one, and responses whose first one comes after their first answer."""
N_CALLS = {"0": 0, "1": 1, "2": 2, "3_4": 4, "5_8": 8, "9_up": None}
"""How often a response calls, in ranges: `n_calls/RANGE` in a group's stats is the share of its samples within. Only
ranges that have some are there. The values are the ranges' upper ends."""
HAVE = "have/"
PROGRAM, ANSWER = re.compile(r"```(?:python|py)\b"), re.compile(r"\\boxed\{|<answer>")
HALF = 0.5
"""Above it a trajectory is correct. Most rewards say 0 or 1; an agent file or a reward server may give a score."""


def failed_as(group: Group, min_valid: int, *, user_code: bool = True) -> str | None:
    """Return why the whole group cannot be used; None if it can be.

    Fewer than `min_valid` valid trajectories: the commonest fault. With `user_code`, as in training: one trajectory
    that user code failed. A reward that raises for wrong answers would leave a group of right ones.
    """
    if user_code and (bugs := Counter(t.failed for t in group.trajectories if t.failed in METHOD_REASONS)):
        return bugs.most_common(1)[0][0]
    if len(group.valid) >= min_valid:
        return None
    return Counter(t.failed for t in group.trajectories if t.failed).most_common(1)[0][0]


def describe(
    group: Group, *, prompt_tokens: int, verdict: Verdict, failed: str | None, actor: str, seconds: float
) -> GroupMeta:
    valid = group.valid
    versions = [v for t in valid if (v := t.oldest_version) is not None]
    return GroupMeta(
        key=group.key,
        verdict=verdict,
        index=[t.index for t in valid],
        rewards=[t.scored for t in valid],
        correct=[t.parts["correct"] > HALF for t in valid],
        used_code=[bool(t.parts.get("used_code", t.calls)) for t in valid],
        response_tokens=[t.response_tokens for t in valid],
        model_tokens=[t.model_tokens for t in valid],
        prompt_tokens=prompt_tokens,
        oldest_version=min(versions, default=None),
        failures=dict(Counter(t.failed for t in group.trajectories if t.failed)),
        why={t.failed: t.why for t in group.trajectories if t.failed and t.why},
        failed=failed,
        stats=means(valid),
        actor=actor,
        env=group.task.env,
        seconds=seconds,
        masked=[t.masked for t in valid] if any(t.masked for t in valid) else [],
        branch_tokens=[t.branch_tokens for t in valid] if any(t.branches for t in valid) else [],
        changes=group.changes + [change for t in valid for change in t.changes],
    )


def means(valid: list[Trajectory]) -> dict[str, float]:
    """Mean of every reward part over the valid trajectories that have it, and with HAVE before its name their share
    where that is not all; the mean number of calls; mean seconds of a call where there was one."""
    if not valid:
        return {}
    names = sorted({name for t in valid for name in t.parts})
    found = {}
    for name in names:
        told = [t.parts[name] for t in valid if name in t.parts]
        found[name] = float(np.mean(told))
        if len(told) < len(valid):
            found[HAVE + name] = len(told) / len(valid)
    seconds = [c.seconds for t in valid for c in t.calls]
    found |= {CALL_SECONDS: float(np.mean(seconds))} if seconds else {}
    found |= dict(zip(CALL_FACTS, np.mean([_call_facts(t) for t in valid], axis=0).tolist(), strict=True))
    found |= dict(zip(CODE_FACTS, np.mean([_code_facts(t) for t in valid], axis=0).tolist(), strict=True))
    ranges = Counter(_n_calls(len(t.calls)) for t in valid)
    found |= {f"n_calls/{name}": n / len(valid) for name, n in ranges.items()}
    return found | {
        "calls": float(np.mean([len(t.calls) for t in valid])),
        "truncated": float(np.mean([t.finish_reason == "length" for t in valid])),
    }


def _n_calls(calls: int) -> str:
    return next(name for name, most in N_CALLS.items() if most is None or calls <= most)


def _call_facts(t: Trajectory) -> tuple[int, int, int]:
    """CALL_FACTS of one sample."""
    ok, right = sum(c.outcome == "ok" for c in t.calls), t.parts.get("correct", 0.0) > HALF
    return len(t.calls) * right, ok, ok * right


def _code_facts(t: Trajectory) -> tuple[int, int, int, int]:
    """CODE_FACTS of one sample."""
    text = model_text(t)
    written = [m.start() for m in PROGRAM.finditer(text)]
    if not written:
        return 0, 0, 0, 0
    answered = ANSWER.search(text)
    return len(written), min(len(t.calls), len(written)), 1, int(answered is not None and answered.start() < written[0])
