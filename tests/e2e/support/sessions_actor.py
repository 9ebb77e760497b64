"""A rollout actor without its process, for agents: the real engine behind its HTTP endpoints."""

from __future__ import annotations

from openrlhf_tir.config import Config
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.engines.sessions import Sessions
from openrlhf_tir.rollout.agent_broker import AgentBroker
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.types import KEEP, RewardParts

from ..conftest import tiny_config
from .tiny_model import make_tokenizer

TOKEN = "s3cret"


class NoEnvs:
    """External agents bring their own tools."""

    def stats(self):
        return {}


class LengthReward:
    async def score(self, trajectory, task):
        return RewardParts(float(trajectory.model_tokens), True, {})


class Actor:
    def __init__(self, engine, cfg: Config | None = None, tokenizer=None) -> None:
        self.name, self.engine, self.envs = "rollout-0", engine, NoEnvs()
        self.cfg = cfg or tiny_config()
        self.cfg.rollout = self.cfg.rollout.model_copy(update={"n_samples_per_prompt": 4, "agent": "external"})
        codec = HfCodec(tokenizer or make_tokenizer())
        self.request_queue = RequestQueue(engine)
        self.agents = AgentBroker(Sessions(idle_s=300), codec, engine.proof.passed)
        self.runner = GroupRunner(
            self.cfg, self.request_queue, codec, self.envs, LengthReward(), lambda group: KEEP, self.name, self.agents
        )
