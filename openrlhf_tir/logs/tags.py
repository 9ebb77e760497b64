"""Tags: the name of a metric in metrics.jsonl -> its tag in TensorBoard and wandb, which group charts by what stands
before the first slash. A dozen groups, each a question that somebody has about a run."""

from __future__ import annotations

import re

GROUPS: dict[str, str] = {
    "eval": r"eval/.*",
    "env": r"env/.*",
    "reward": r"reward/.*|reward_mean",
    "groups": r"(drops|failed|requeued|masked|trajectories_failed)/.*",
    "selection": r"(selection|selection_bias|curriculum)/.*",
    "rollout": (
        r"accuracy|code_.*|calls_.*|n_calls/.*|tool_productivity|response_tokens_.*|truncated|group_seconds_mean"
        r"|(oversample|agent)/.*"
    ),
    "critic": r"critic_.*|value_.*|return_.*|explained_variance",
    "off_policy": r"staleness_.*|kl_rollout|ess|log_ratio_abs_max|is_filtered|mismatch_.*|lag_.*",
    "weights": r"(canary|push|pushes)_(?!s$).*",
    "engines": (
        r"rolling|buffered|acceptance|depth_cap|lane_.*|actors|open|running|waiting|placed|aside|width|preemptions"
        r"|tokens_per_s|gpu_.*|mfu"
    ),
    "time": r".*_s",
    "learner": r".*",
}
"""Group -> the metrics in it, a regular expression of the whole name; the first group that fits has it. What a learner
of one's own reports is the learner's."""


def tag(name: str) -> str:
    """`drops/too_long` -> `groups/drops/too_long`; a name that begins with its group stays."""
    group = next(group for group, names in GROUPS.items() if re.fullmatch(names, name))
    return name if name.startswith(f"{group}/") else f"{group}/{name}"
