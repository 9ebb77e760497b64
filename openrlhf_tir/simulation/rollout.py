"""Simulate the rollout actors in one process. A group is n scripted trajectories on one modelled engine and the
modelled environment.

    run_group ──> n x [ engine: segment ──> env: call ──> engine: segment ──> ... ] ──> (GroupMeta, tokens by version)

Everything between `run_group` and its result is callbacks on the clock. There is no coroutine for each trajectory, so
that millions of them fit into a minute. Routing, faults and metadata are like those of cluster/engine_pool.py: it is
the same router, the groups of a dead actor raise EngineGone, and a call that fails in an outage costs the whole group,
because its sessions share the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import EngineGone
from ..pipeline.router import Router
from ..types import KEEP, Group, GroupKey, GroupMeta, Task, Verdict
from .engine_model import Clock, EngineModel
from .environment import EnvModel
from .workload import PROMPT_TOKENS, Workload

REJECTED = Verdict(False, "simulated")


class UnderWay(NamedTuple):
    """One response that has begun and not ended; see UnderWay in pipeline/lane/policy.py."""

    group: GroupKey
    sample: int
    engine: str
    tokens: int
    moves: int
    trajectory: Any


class Actor:
    """A rollout actor with its engine."""

    def __init__(self, index: int, engine: EngineModel) -> None:
        self.engine = engine
        self.name = f"rollout-{index}"
        self.groups: set[_Group] = set()
        """The groups that were placed here and have not ended."""
        self.live = 0
        """Number of its trajectories that have not ended, in the engine or in a call of a tool."""

    def load(self) -> dict[str, float]:
        """Return the load report that a rollout actor sends with each group."""
        engine = self.engine
        return {
            "running": float(engine.running),
            "waiting": float(engine.waiting),
            "width": float(engine.spec.max_running),
            "preemptions": float(engine.preemptions),
        }


class _Group:
    """One group under way.

    Attributes:
        key: Its key.
        actor: The actor on which it was placed.
        unfinished: Number of its trajectories that have not ended.
        future: Its result.
        started: Virtual time at which it began, in seconds.
        tokens: Version of the weights -> number of model tokens that they wrote.
        lengths: Model tokens of each response that has ended.
        failures: Number of trajectories of which a call failed.
        trajectories: All of its trajectories.
    """

    __slots__ = ("actor", "failures", "future", "key", "lengths", "started", "tokens", "trajectories", "unfinished")

    def __init__(self, key: GroupKey, actor: Actor, n: int, future: asyncio.Future, started: float) -> None:
        self.key = key
        self.actor = actor
        self.unfinished = n
        self.future = future
        self.started = started
        self.tokens: Counter[int] = Counter()
        self.lengths: list[int] = []
        self.failures = 0
        self.trajectories: list[_Trajectory] = []


class _Trajectory:
    """One response. Its callbacks follow each other: `write` a segment, `written`, `called`, `write`, ...

    Attributes:
        script: The segments, calls and observations that it will have.
        actor: Where it is now.
        turn: Number of the current segment, from 0.
        context: Tokens before the next token that it writes.
        cached_by: Version of the weights that computed its cached prefix; -1: none of it is cached.
        sequence: Its request to the engine; None during a call.
        before: Model tokens of all earlier segments.
        elsewhere: Tokens of the current segment that were written on other engines.
        counted: Tokens of the current segment that are in the group's `tokens`.
        moves: Number of times that it was moved to another engine.
        over: True when it has ended.
    """

    __slots__ = (
        "actor", "before", "cached_by", "context", "counted", "elsewhere", "group", "moves", "over", "sample", "script",
        "sequence", "turn", "world",
    )  # fmt: skip

    def __init__(self, world: SimulatedRollout, group: _Group, sample: int, actor: Actor) -> None:
        self.world = world
        self.group = group
        self.sample = sample
        self.actor = actor
        self.script = world.workload.script(group.key, sample)
        self.turn = 0
        self.context = PROMPT_TOKENS
        self.cached_by = -1
        self.sequence: Any = None
        self.before = 0
        self.elsewhere = 0
        self.counted = 0
        self.moves = 0
        self.over = False
        actor.live += 1

    def write(self, new_context: int) -> None:
        """Submit the current segment, or what remains of it, to the engine.

        Args:
            new_context: Tokens of its context that no engine has computed yet. All others are in the prefix cache,
                unless the weights have changed since and the cache went with the old ones.
        """
        is_cached = self.cached_by == self.world.version or (self.world.keeps_kv and self.cached_by >= 0)
        cached = self.context - new_context if is_cached else 0
        remaining = self.script.segments[self.turn] - self.elsewhere
        self.sequence = self.actor.engine.submit(self.context, remaining, self.written, cached_tokens=cached)

    @property
    def tokens(self) -> int:
        """Model tokens so far."""
        if self.sequence is None:
            return self.before
        return self.before + self.elsewhere + int(self.actor.engine.written(self.sequence))

    def count(self, written: float) -> None:
        """Attribute what was written so far to the current version, which is about to change.

        Args:
            written: Tokens of the current segment that were written on the current engine.
        """
        new = self.elsewhere + int(written) - self.counted
        if new > 0:
            self.group.tokens[self.world.version] += new
            self.counted += new

    def move(self, actor: Actor) -> None:
        """Go on at another actor, at once or after the current call. The prefix is computed again there."""
        old = self.actor
        self.actor = actor
        old.live -= 1
        actor.live += 1
        self.moves += 1
        self.cached_by = -1
        if self.sequence is not None:
            written = int(old.engine.written(self.sequence))
            self.count(written)
            old.engine.cancel(self.sequence)
            self.elsewhere += written
            self.context += written
            self.write(0)

    def written(self, ok: bool) -> None:
        """Take the end of a segment and make the call that follows it. `ok` is False if the engine died."""
        group = self.group
        world = self.world
        script = self.script
        self.sequence = None
        if group.future.done():
            return
        if not ok:  # an engine that dies costs the groups of which it had a response
            group.future.set_exception(EngineGone(f"Simulated death of {self.actor.name}."))
            return
        segment = script.segments[self.turn]
        group.tokens[world.version] += segment - self.counted
        self.context += segment - self.elsewhere
        self.before += segment
        self.counted = 0
        self.elsewhere = 0
        self.cached_by = world.version
        if self.turn < len(script.latencies_s):
            world.env.call(script.latencies_s[self.turn], self.called)
        else:
            group.lengths.append(script.model_tokens)
            self.end()

    def called(self, ok: bool) -> None:
        """Take the end of a call and write the next segment. `ok` is False if the call was not served."""
        if self.group.future.done():
            return
        if not ok:
            self.group.failures += 1
            self.end()
            return
        observation = self.script.observations[self.turn]
        self.context += observation
        self.turn += 1
        self.write(observation)

    def end(self) -> None:
        """End the response and report that to its group."""
        self.over = True
        self.actor.live -= 1
        self.world.trajectory_ended(self.group)


class SimulatedRollout:
    """Implements ports.Rollout on models of engines and environments."""

    def __init__(
        self,
        workload: Workload,
        clock: Clock,
        accepts: Callable[[GroupKey], bool],
        *,
        patience_s: float = 20.0,
        keeps_kv: bool = False,
    ) -> None:
        """Create the engines of a workload.

        Args:
            workload: What is simulated.
            clock: The virtual clock.
            accepts: Returns True if the filters keep a group.
            patience_s: Deadline of a call in seconds.
            keeps_kv: True if a push leaves the KV cache, as pipeline.kv_after_push says.
        """
        self.workload = workload
        self.clock = clock
        self.accepts = accepts
        self.keeps_kv = keeps_kv
        self.actors = [Actor(i, EngineModel(workload.engine, clock)) for i in range(workload.engine.count)]
        self.alive: list[Actor] = []
        self.router: Router[Actor] = Router()
        for actor in self.actors:
            self.join(actor)
        self.env = EnvModel(workload.env_capacity, clock, patience_s=patience_s)
        self.version = 0

    # --- the fast lane (pipeline/lane/keeper.py)

    @property
    def engines(self) -> list[str]:
        """The names of the engines that are alive."""
        return [actor.name for actor in self.alive]

    def reserve(self, lanes: Collection[str], live: Mapping[str, int]) -> None:
        """Keep new groups away from the engines `lanes`; `live` is the number of sequences by engine."""
        self.router.reserve(lanes)
        self.router.record_sampling(live)

    async def under_way(self) -> list[UnderWay]:
        """Return the responses that have begun and not ended, by group and sample."""
        groups = sorted((group for actor in self.alive for group in actor.groups), key=lambda group: group.key)
        return [
            UnderWay(group.key, response.sample, response.actor.name, response.tokens, response.moves, response)
            for group in groups
            for response in group.trajectories
            if not response.over
        ]

    async def move(self, response: UnderWay, engine: str) -> bool:
        """Move a response to another engine. Return False if it has ended, or the engine is not alive."""
        target = next((actor for actor in self.alive if actor.name == engine), None)
        if target is None or response.trajectory.over:
            return False
        response.trajectory.move(target)
        return True

    # --- groups

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        """See Rollout. The payload maps versions to the number of tokens that they wrote.

        Raises:
            EngineGone: The engine died.
        """
        n = self.workload.samples_per_prompt
        async with self.router.place(str(key.prompt), n) as actor:
            group = _Group(key, actor, n, asyncio.get_running_loop().create_future(), self.clock.time())
            actor.groups.add(group)
            for sample in range(n):
                trajectory = _Trajectory(self, group, sample, actor)
                group.trajectories.append(trajectory)
                # The samples share the prompt: the first computes it, the others find it in the prefix cache.
                trajectory.cached_by = self.version if sample > 0 else -1
                trajectory.write(0)
            try:
                result = await group.future
                self.router.record_report(actor.name, actor.load())
                return result
            finally:
                actor.groups.discard(group)
                for trajectory in group.trajectories:
                    trajectory.actor.live -= not trajectory.over
                group.trajectories.clear()  # breaks a cycle, which Python's collector would have to find

    def trajectory_ended(self, group: _Group) -> None:
        """Complete the group if this was its last trajectory."""
        group.unfinished -= 1
        if group.unfinished:
            return
        valid = len(group.lengths)
        # All samples share the server that had the outage, so the group fails: rollout/sample_selection.py.
        failed = "timeout" if group.failures else None
        meta = GroupMeta(
            key=group.key,
            verdict=KEEP if failed or self.accepts(group.key) else REJECTED,
            index=list(range(valid)),
            rewards=[float(i % 2) for i in range(valid)],
            correct=[bool(i % 2) for i in range(valid)],
            used_code=[True] * valid,
            response_tokens=group.lengths,
            model_tokens=group.lengths,
            prompt_tokens=PROMPT_TOKENS,
            oldest_version=min(group.tokens, default=None),
            failures={"timeout": group.failures} if group.failures else {},
            failed=failed,
            stats={"calls": float(self.workload.tool_calls), "truncated": 0.0},
            actor=group.actor.name,
            env="simulated",
            seconds=self.clock.time() - group.started,
        )
        group.future.set_result((meta, group.tokens))

    # --- weights

    def pause(self) -> None:
        """Stop all engines for a push. What is written so far belongs to the version before."""
        for actor in self.alive:
            for sequence, written in actor.engine.in_flight():
                trajectory = getattr(sequence.on_done, "__self__", None)
                if isinstance(trajectory, _Trajectory):
                    trajectory.count(written)
            actor.engine.pause()

    def resume(self, version: int) -> None:
        """End a push with the weights of `version`."""
        self.version = version
        for actor in self.actors:
            actor.engine.resume(recompute=not self.keeps_kv)

    # --- faults

    def die(self, actor: Actor) -> None:
        """Let an actor die. Its groups are lost, and it serves again after `join`."""
        self.alive.remove(actor)
        self.router.leave(actor.name)
        actor.engine.fail()
        for group in sorted(actor.groups, key=lambda group: group.key):
            if not group.future.done():
                group.future.set_exception(EngineGone(f"Simulated death of {actor.name}."))

    def join(self, actor: Actor) -> None:
        """Let an actor take part in the rollout."""
        self.alive.append(actor)
        self.router.join(actor.name, actor)

    # --- the rest of the port

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        """See Rollout. Payloads are the groups themselves."""
        return list(payloads)

    async def store(self, group: Group) -> Any:
        """See Rollout."""
        return group

    def where(self, key: GroupKey) -> str:
        """See Rollout."""
        for actor in self.alive:
            if any(group.key == key for group in actor.groups):
                return f"on {actor.name}"
        return "waiting for an actor"

    def engine_stats(self) -> dict[str, float]:
        """Return the metrics of all engines together, as the pool knows them."""
        return self.router.total_stats()
