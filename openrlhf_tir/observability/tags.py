"""The tag of a metric in TensorBoard and wandb, which group charts by the part before the first slash.

There are a dozen groups, one for each question that people have about a run.
"""

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
        r"|agent/.*"
    ),
    "critic": r"critic_.*|value_.*|return_.*|explained_variance",
    "off_policy": r"staleness_.*|kl_rollout|ess|log_ratio_abs_max|is_filtered|mismatch_.*|lag_.*",
    "weights": r"(canary|push|pushes)_(?!s$).*",
    "engines": (
        r"rolling|buffered|acceptance|lane_.*|actors|open|running|waiting|placed|aside|width|preemptions"
        r"|tokens_per_s|gpu_.*|mfu|engine_.*"
    ),
    "time": r".*_s",
    "learner": r".*",
}
"""Group -> a regular expression of the names of the metrics in it. The first group that fits gets the metric. Metrics
that a user's learner adds belong to the learner."""


def tag(name: str) -> str:
    """Return `groups/drops/too_long` for `drops/too_long`. A name that already begins with its group is returned as
    it is."""
    group = next(group for group, names in GROUPS.items() if re.fullmatch(names, name))
    return name if name.startswith(f"{group}/") else f"{group}/{name}"
