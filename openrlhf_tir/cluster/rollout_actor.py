"""A Ray process that owns one engine, runs groups of episodes on it, and serves its HTTP endpoint.

The controller talks to it by Ray calls (EngineHandle); HTTP is for everyone else. Payloads are returned as the second
of two Ray results: the controller then owns the reference without fetching the data, and accepted groups outlive the
actor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from ..config import Config
from ..engines.busy import IdleWithGroups
from ..machine.files import replace_text
from ..machine.open_files import raise_open_files
from ..ports import RolloutEngine
from ..rewards.limits import RewardLimits
from ..rollout.group_runner import EvalMode
from ..types import Group, GroupKey, GroupMeta, Task
from ..waiting.deadlines import agent_deadline
from .collector import collect_rarely, freeze_what_is_loaded
from .lost import end_of_child, watched
from .node_room import NodeReport, node_report
from .peer_engine import MovesResponses, migration_of
from .reaper import end_children_with_us
from .shared_dir import check_models
from .tokens import Tokens

ENDPOINTS = "endpoints"


def publish_endpoint(run_dir: Path, name: str, url: str) -> Path:
    """Write an actor's URL to run_dir/endpoints/NAME, where agents and a scrape find it. Return the path."""
    path = run_dir / ENDPOINTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, url + "\n")
    return path


def _engine_class(cfg: Config) -> type[RolloutEngine]:
    if cfg.rollout.engine == "torch":
        from ..engines.torch_engine import TorchEngine

        return TorchEngine
    from ..engines.vllm_engine import VllmEngine

    return VllmEngine


class RolloutActor(MovesResponses):
    """A rollout process: an async Ray actor. Heavy imports happen in `start`, in the worker.

    Together with ports.RolloutEngine it declares everything that the controller calls (EngineHandle.call).
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"rollout-{index}"
        self.idle_with_groups = IdleWithGroups(lambda: self.engine.stats().get("idle_s", 0.0))

    async def check_node(self, mark: Path, theirs: Mapping[str, str]) -> NodeReport:
        """Compare this node with the controller's, and return what it is; see node_room.node_report."""
        return await asyncio.to_thread(node_report, self.name, mark, theirs, learner=False)

    async def start(self, cfg: Config, env_urls: Mapping[str, list[str]], tokens: Tokens) -> str:
        """Load the model and open the endpoint.

        Args:
            cfg: The run's configuration.
            env_urls: Environment -> its servers.
            tokens: Bearer tokens of the endpoint and of the environment servers.

        Returns:
            The URL of the endpoint.
        """
        check_models(self.name, ray.util.get_node_ip_address(), actor=cfg.actor.model_name_or_path)
        raise_open_files()  # `ray start` leaves it at the shell's, and each call to an environment has a connection
        end_children_with_us()
        watched(cfg, self.name)
        collect_rarely()
        from transformers import AutoTokenizer

        from ..algorithms.advantages.preview import group_advantages
        from ..engines.codec import HfCodec
        from ..engines.sessions import Sessions
        from ..rewards.pool import RewardPools
        from ..rollout.agent_broker import AgentBroker
        from ..rollout.environment_client.client import EnvClient
        from ..rollout.group_judge import GroupJudge
        from ..rollout.group_runner import GroupRunner
        from ..rollout.protocols.agent_file.agent_file import AgentFile
        from ..rollout.protocols.chat_format import chat_formats
        from ..rollout.request_queue import RequestQueue
        from ..rollout.serving.app import bound, build_app, serve
        from ..telemetry.own_log import own_log
        from ..telemetry.trajectories import SAMPLED_GROUPS, TrajectoryLog
        from .reward_models.replicas import RewardModelClient
        from .service import RolloutService

        own_log(cfg.run_dir / "logs" / f"{self.name}.log")
        self.cfg = cfg
        model = cfg.actor.model_name_or_path
        host = "127.0.0.1" if tokens.rollout is None else ray.util.get_node_ip_address()
        port = cfg.rollout.port and cfg.rollout.port + self.index
        if port:
            bound(host, port).close()  # a port in use is an error before the model is loaded
        self.engine = await _engine_class(cfg).start(model, cfg, index=self.index)
        self.request_queue = RequestQueue(
            self.engine,
            max_wait_ms=cfg.rollout.max_wait_ms,
            max_running=cfg.max_running,
        )
        self.envs = EnvClient.of(
            cfg.environments, env_urls, token=tokens.env, owner=ray.get_runtime_context().get_actor_id()
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
        codec = HfCodec(tokenizer)
        self.trajectory_log = TrajectoryLog(
            cfg.run_dir,
            self.name,
            cfg.logger.trajectories,
            codec.special,
            spelled=codec.spell_inert,
            sampled=SAMPLED_GROUPS,
            advantages=group_advantages(
                cfg.algo.advantage.estimator,
                credit=cfg.algo.advantage.credit,
                gamma=cfg.algo.advantage.gamma,
                options=cfg.algo.advantage.options,
            ),
        )
        model_scores = RewardModelClient(cfg) if cfg.reward.model_name_or_path else None
        self.rewards = RewardPools(
            cfg.environments,
            model_scores,
            decode=codec.spell,
            decode_plain=codec.decode,
            limits=RewardLimits.of(cfg),
        )
        self.rewards.workers.how_ended = partial(end_of_child, cfg, self.name)
        self.agents = AgentBroker(Sessions(idle_s=agent_deadline(cfg).seconds), codec, self.engine.proof.passed)
        self.agent_file = None
        if cfg.train.agent_func_path:
            vocab_size = self.engine.bounds.vocab_size
            self.agent_file = AgentFile(cfg, model, self.request_queue, codec, self.name, vocab_size)
            await self.agent_file.start()
        writers = self.agent_file or (self.agents if cfg.rollout.agent == "external" else None)
        chats = None if writers else chat_formats(cfg, codec, tokenizer)
        self.runner = GroupRunner(
            cfg,
            self.request_queue,
            codec,
            self.envs,
            self.rewards,
            GroupJudge(cfg, self.rewards.workers),
            self.name,
            writers,
            chats,
        )
        self.runner.migration = migration_of(cfg, self.request_queue, codec)
        app = build_app(RolloutService(self), token=tokens.rollout, vllm_app=await self.engine.openai_app(cfg))
        self._server, port = await serve(app, host, port)
        url = f"http://{host}:{port}"
        self._endpoint = publish_endpoint(cfg.run_dir, self.name, url)
        freeze_what_is_loaded()
        return url

    async def invoke(self, method: str, *args: Any) -> Any:
        """Call a method of this actor or, if the actor has none of that name, of its engine.

        Every call of the controller but `run_group` arrives here (EngineHandle.call). So what an engine can do is
        declared once, by ports.RolloutEngine, and is not forwarded method by method.
        """
        owner = self if hasattr(type(self), method) else self.engine
        return await getattr(owner, method)(*args)

    async def run_group(self, key: GroupKey, task: Task, mode: EvalMode | None = None) -> tuple[GroupMeta, Group]:
        """Run one group to its end and return its metadata, with this actor's load, and the group."""
        with self.idle_with_groups.group():
            meta, group = await self.runner.run(key, task, mode)
        if mode is None:
            await asyncio.to_thread(self.trajectory_log.write, meta, group)
        return replace(meta, load=self.load()), group

    def load(self) -> dict[str, float]:
        """Return what the engine and the queue in front of it hold, for the controller's router.

        `running` and `waiting` sequences, the most that run at once by configuration (`width`), preemptions so far. An
        engine that measures it also tells its seconds since its start by what it did.
        """
        env_wait_s = self.idle_with_groups.seconds
        stats = self.engine.stats()
        load = {
            "running": stats["running"],
            "waiting": stats["waiting"] + self.request_queue.waiting,
            "width": float(min(self.cfg.vllm.max_num_seqs, self.cfg.max_running)),
            "preemptions": stats.get("preemptions", 0.0),
        }
        if "prefill_s" in stats:  # an emulated engine has seconds with work alone
            load |= {
                "engine_busy_s": stats["busy_s"],
                "engine_prefill_s": stats["prefill_s"],
                "engine_env_wait_s": env_wait_s,
                "engine_idle_s": stats["idle_s"] - env_wait_s,
                "engine_paused_s": stats["paused_s"],
            }
        return load

    async def set_env_urls(self, urls: Mapping[str, list[str]]) -> None:
        """Use these servers for new sessions. Open sessions end where they are."""
        self.envs.set_urls(urls)

    async def heartbeat(self) -> list[str]:
        """Return the servers on which this actor may hold sessions, as a sign of life of the engine too.

        Raises:
            EngineError: The engine does not work.
        """
        await self.engine.alive()
        return self.envs.servers

    async def busy_intervals(self) -> tuple[float, dict[tuple[str, str], list[tuple[float, float]]]]:
        """Return this node's time, and what was busy since the last call.

        Returns:
            Seconds since the epoch; and (track of the timeline, name of the span) -> (start, end) in seconds since the
            epoch. "engine" is this actor's own track.
        """
        spans = {("engine", "decode"): self.engine.drain_busy_intervals(), **self.envs.stage_times.drain()}
        return time.time(), spans

    async def activity(self) -> dict[str, float]:
        """Return what this actor does right now.

        `running` and `waiting` sequences, `tokens_generated` since it started, and for each environment the calls that
        it is answering (`in_flight/ENV`).
        """
        stats = self.engine.stats()
        calls = {name: n for name, n in self.envs.stats().items() if name.startswith("in_flight/")}
        return {name: stats[name] for name in ("running", "waiting", "tokens_generated") if name in stats} | calls

    async def stats(self) -> dict[str, float]:
        """Return the figures of the engine and of the queue in front of it."""
        return self.engine.stats() | self.request_queue.stats()

    async def stop(self) -> None:
        """Close the endpoint and all sessions, and end the engine's processes."""
        self._endpoint.unlink(missing_ok=True)
        self._server.cancel()
        await self.envs.close()
        if self.agent_file:
            await self.agent_file.stop()
        await self.rewards.stop()
        self.trajectory_log.close()
        await self.engine.stop()
