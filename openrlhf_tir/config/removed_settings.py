"""Settings that earlier versions had: each is refused with what to do instead."""

from __future__ import annotations

ROLE_RANKS = "Leave it out: the reference and the critic live on the policy's ranks. Size these with actor.{}."

REMOVED: dict[str, str] = {
    "ref.num_nodes": ROLE_RANKS.format("num_nodes"),
    "ref.num_gpus_per_node": ROLE_RANKS.format("num_gpus_per_node"),
    "critic.num_nodes": ROLE_RANKS.format("num_nodes"),
    "critic.num_gpus_per_node": ROLE_RANKS.format("num_gpus_per_node"),
    "pipeline.staleness_unit": (
        "pipeline.max_staleness counts updates. For S batches ahead of k updates each, set it to (S + 1) * k - 1."
    ),
    "pipeline.overadmit_risk": "Leave it out: it is 0.01. For no surplus at all, set pipeline.depth to a number.",
    "rollout.oversample": (
        "Leave it out: what faults leave of a group is trained, from rollout.min_valid samples on. For larger groups"
        " raise rollout.n_samples_per_prompt."
    ),
    "rollout.straggler_s": "Set rollout.group_deadline_s: it closes a group without its slowest samples as well.",
    "env.hedge_after_s": "Leave it out: a call is sent once, and again after a broken exchange (env.max_retries).",
    "data.curriculum_explore": "Leave it out: a quarter of the draws takes the prompt that was drawn longest ago.",
    "data.curriculum_half_life": "Leave it out: an outcome counts half after 8 batches.",
    "rollout.max_queue": "Leave it out: 4096 requests wait at an actor, then its endpoint answers 429.",
    "rollout.max_running": "Leave it out: it follows from vllm.max_num_seqs. Lower that one.",
    "train.max_backoff_s": "Leave it out: pauses double from 1 s up to 60 s.",
}
"""Name -> remedy. Settings of [env] are also removed from [envs.NAME]."""


def remedy(name: str) -> str | None:
    """Return what to do instead of a setting that was removed; None for any other name."""
    parts = name.split(".")
    if parts[0] == "envs" and len(parts) > 2:
        name = ".".join(["env", *parts[2:]])
    return REMOVED.get(name)
