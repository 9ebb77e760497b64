"""Small parts of the emulated cluster: what a run is told, endless prompts, lengths instead of text, verdicts only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf_tir.config import Config
from openrlhf_tir.simulation import parts
from openrlhf_tir.simulation.workload import PROMPT_TOKENS, Acceptance, Workload
from openrlhf_tir.types import Group, RewardParts, Task, Trajectory, Verdict

from .config import ENV, workload_config

SYNC_ROLLOUT = "sync_rollout"
"""The baseline, which is no mode of the pipeline."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of one mode. `staleness`, `depth` None: the mode's own. Times in emulated seconds."""

    mode: str
    learner_s: float
    scale: float
    steps: int
    warmup: int
    acceptance: Acceptance
    staleness: int | None = None
    depth: int | str | None = None
    fast_lane: int | str = "off"
    early: str = "off"
    kv: str = "recompute"

    @property
    def name(self) -> str:
        return (
            self.mode
            + (f" S={self.staleness}" if self.staleness is not None else "")
            + (f" depth={self.depth}" if self.depth is not None else "")
            + (" lane" if self.fast_lane != "off" else "")
            + (" early" if self.early != "off" else "")
            + (" KV kept" if self.kv != "recompute" else "")
        )

    def config(self, w: Workload, run_dir: str) -> Config:
        """What the pipeline is told. The last step is never reached: the run is cut after `steps`, with the engines at
        work as in mid-training."""
        sections: dict[str, dict[str, Any]] = {
            "vllm": {"num_engines": w.engine.count},
            "pipeline": {
                "mode": "sync" if self.mode == SYNC_ROLLOUT else self.mode,
                "max_staleness": self.staleness,
                "depth": self.depth,
                "fast_lane": self.fast_lane,
                "early_accumulation": self.early,
                "kv_after_push": self.kv,
            },
            "train": {"max_steps": 1_000_000},
            "ckpt": {"save_steps": -1},
        }
        return workload_config(w, run_dir, **sections)


class CharCodec:
    """One character, one token: a length is a length."""

    def encode(self, text: str) -> list[int]:
        return [1] * len(text)

    encode_prompt = encode

    def decode(self, token_ids: Sequence[int]) -> str:
        return "x" * len(token_ids)


class NoReward:
    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        return RewardParts(float(trajectory.index % 2), bool(trajectory.index % 2), {})


def judge_of(w: Workload, acceptance: Acceptance, version: Callable[[], int]) -> Callable[[Group], Verdict]:
    """The filters: a group is kept or not as the workload draws it, at the share of that moment, as simulated."""

    def judge(group: Group) -> Verdict:
        kept = w.accepted(group.key, acceptance.at(version()))
        return Verdict(kept, "" if kept else "accuracy")

    return judge


class EndlessPrompts(parts.EndlessPrompts):
    """With a text as long as the workload's prompts, for the emulated environment."""

    def task(self, prompt: int) -> Task:
        return Task("p" * PROMPT_TOKENS, "", ENV)
