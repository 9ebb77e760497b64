"""Resuming on another number of learner ranks than the checkpoint was saved by. Possible with ZeRO-3
(learner/saved/reshard.py).
"""

from __future__ import annotations

from typing import Any

from ...config import Config

SETTINGS = "actor.num_nodes * actor.num_gpus_per_node"


def refusal(state: dict[str, Any], cfg: Config) -> str | None:
    """Return why this run's ranks cannot read the checkpoint; None if they can.

    Args:
        state: The checkpoint's controller.json.
        cfg: The configuration of this run.
    """
    before, now = state["world_size"], cfg.actor.world_size
    if before == now:
        return None
    changed = f"learner ranks ({SETTINGS}) = {before}, this run has {now}"
    if cfg.ds.zero_stage != 3:
        return f"{changed} (another number of ranks can read checkpoints of ds.zero_stage = 3 alone)"
    if "muon" in (cfg.actor.optim, cfg.critic.optim):
        return f"{changed} (another number of ranks can read Adam's moments, not Muon's)"
    return None


def resume_messages(state: dict[str, Any], cfg: Config) -> list[str]:
    """Return sentences for the start of the run, if `refusal` returned None. Arguments as in `refusal`."""
    before, now = state["world_size"], cfg.actor.world_size
    if before == now:
        return []
    return [
        f"the checkpoint is of learner ranks ({SETTINGS}) = {before}, this run has {now}: each reads its share of"
        " their files, nothing is converted or written. Weights and optimizer are the saved ones; sums over the ranks"
        " round differently, so the results differ in the last bits"
    ]
