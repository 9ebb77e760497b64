"""SimulatedRollout: rollout actors without processes. A group is n scripted trajectories on one modelled engine and the
modelled environment.

    run_group -> n x [ engine: segment -> env: call -> engine: segment -> ... ] -> (GroupMeta, tokens by policy version)

Everything between `run_group` and its result are callbacks on the clock: no coroutine per trajectory, so that millions
fit into a minute. Routing, faults and metadata are those of cluster/engine_pool.py: the same router; a dead actor's
groups raise EngineGone; a call that an outage fails costs the whole group, whose sessions share the server.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ..actors.router import Router
from ..errors import EngineGone
from ..types import KEEP, Group, GroupKey, GroupMeta, Task, Verdict
from .engine_model import Clock, EngineModel
from .environment import EnvModel
from .workload import PROMPT_TOKENS, Workload

REJECTED = Verdict(False, "simulated")


class UnderWay(NamedTuple):
    """One response, as pipeline/lane/keeper.py looks at it."""

    group: GroupKey
    sample: int
    engine: str
    tokens: int
    moves: int
    trajectory: Any


class Actor:
    """`live`: trajectories that are here, in the engine or at a tool."""

    def __init__(self, index: int, engine: EngineModel) -> None:
        self.index, self.engine = index, engine
        self.name = f"rollout-{index}"
        self.groups: set[_Group] = set()
        self.live = 0

    def load(self) -> dict[str, float]:
        """What a rollout actor tells with each group."""
        engine = self.engine
        return {
            "running": float(engine.n),
            "waiting": float(engine.waiting),
            "width": float(engine.spec.max_running),
            "preemptions": float(engine.preemptions),
        }


class _Group:
    """One group under way. `tokens` counts model tokens by the policy version that wrote them."""

    __slots__ = ("actor", "failures", "future", "key", "left", "lengths", "started", "tokens", "trajectories")

    def __init__(self, key: GroupKey, actor: Actor, n: int, future: asyncio.Future, started: float) -> None:
        self.key, self.actor, self.left, self.future, self.started = key, actor, n, future, started
        self.tokens: Counter[int] = Counter()
        self.lengths: list[int] = []
        self.failures = 0
        self.trajectories: list[_Trajectory] = []


class _Trajectory:
    """Callbacks in turn: `write` a segment, `written`, `called`, `write` ... The group is told when it is over.

    A segment may be written on several engines: `begun` tokens of it elsewhere, `marked` of it are counted by version.
    """

    __slots__ = (
        "actor", "before", "begun", "cached_by", "context", "group", "marked", "moves", "over", "sample", "script",
        "sequence", "turn", "world",
    )  # fmt: skip

    def __init__(self, world: SimulatedRollout, group: _Group, sample: int, actor: Actor) -> None:
        self.world, self.group, self.sample, self.actor = world, group, sample, actor
        self.script = world.workload.script(group.key, sample)
        self.turn = self.marked = self.begun = self.before = self.moves = 0
        self.context, self.cached_by = PROMPT_TOKENS, -1
        self.sequence: Any = None
        self.over = False
        actor.live += 1

    def write(self, fresh: int) -> None:
        """The segment, or the rest of it; of its context only `fresh` tokens are new, unless the weights changed and
        the cache went with the old ones."""
        kept = self.cached_by == self.world.version or (self.world.keeps_kv and self.cached_by >= 0)
        cached = self.context - fresh if kept else 0
        rest = self.script.segments[self.turn] - self.begun
        self.sequence = self.actor.engine.submit(self.context, rest, self.written, cached_tokens=cached)

    @property
    def tokens(self) -> int:
        """Model tokens so far."""
        if self.sequence is None:
            return self.before
        return self.before + self.begun + int(self.actor.engine.written(self.sequence))

    def mark(self, written: float) -> None:
        """The weights change: what was written so far is of the version before."""
        new = self.begun + int(written) - self.marked
        if new > 0:
            self.group.tokens[self.world.version] += new
            self.marked += new

    def move(self, actor: Actor) -> None:
        """Go on there, at once or after the tool call; what was written stays, the prefix is computed again."""
        old, self.actor = self.actor, actor
        old.live -= 1
        actor.live += 1
        self.moves += 1
        self.cached_by = -1
        if self.sequence is not None:
            written = int(old.engine.written(self.sequence))
            self.mark(written)
            old.engine.cancel(self.sequence)
            self.begun += written
            self.context += written
            self.write(0)

    def written(self, ok: bool) -> None:
        group, world, script = self.group, self.world, self.script
        self.sequence = None
        if group.future.done():
            return
        if not ok:  # an engine that dies costs the groups of which it had a response
            group.future.set_exception(EngineGone(f"Simulated death of {self.actor.name}."))
            return
        segment = script.segments[self.turn]
        group.tokens[world.version] += segment - self.marked
        self.context += segment - self.begun
        self.before += segment
        self.marked, self.begun, self.cached_by = 0, 0, world.version
        if self.turn < len(script.latencies_s):
            world.env.call(script.latencies_s[self.turn], self.called)
        else:
            group.lengths.append(script.model_tokens)
            self.end()

    def called(self, ok: bool) -> None:
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
        self.over = True
        self.actor.live -= 1
        self.world.over(self.group)


class SimulatedRollout:
    """Implements pipeline.ports.Rollout. `accepts(key)` is the filters' verdict on a group that is done."""

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
            accepts: Tells whether the filters keep a group.
            patience_s: Deadline of a call in seconds.
            keeps_kv: Whether a push leaves the KV cache, as pipeline.kv_after_push says.
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

    # --- pipeline/lane/keeper.py

    @property
    def engines(self) -> list[str]:
        return [a.name for a in self.alive]

    def reserve(self, lanes: Collection[str], live: Mapping[str, int]) -> None:
        self.router.reserve(lanes)
        self.router.record_sampling(live)

    async def under_way(self) -> list[UnderWay]:
        groups = sorted((g for a in self.alive for g in a.groups), key=lambda g: g.key)
        return [
            UnderWay(g.key, t.sample, t.actor.name, t.tokens, t.moves, t)
            for g in groups
            for t in g.trajectories
            if not t.over
        ]

    async def move(self, response: UnderWay, engine: str) -> bool:
        target = next((a for a in self.alive if a.name == engine), None)
        if target is None or response.trajectory.over:
            return False
        response.trajectory.move(target)
        return True

    # --- groups

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, Any]:
        n = self.workload.samples_per_prompt
        async with self.router.place(str(key.prompt), n) as actor:
            group = _Group(key, actor, n, asyncio.get_running_loop().create_future(), self.clock.time())
            actor.groups.add(group)
            for i in range(n):
                trajectory = _Trajectory(self, group, i, actor)
                group.trajectories.append(trajectory)
                # The samples share the prompt: the first computes it, the others find it in the prefix cache.
                trajectory.cached_by = self.version if i > 0 else -1
                trajectory.write(0)
            try:
                done = await group.future
                self.router.record_report(actor.name, actor.load())
                return done
            finally:
                actor.groups.discard(group)
                for trajectory in group.trajectories:
                    trajectory.actor.live -= not trajectory.over
                group.trajectories.clear()  # a cycle less for Python's collector

    def over(self, group: _Group) -> None:
        """One trajectory of the group has ended."""
        group.left -= 1
        if group.left:
            return
        valid = len(group.lengths)
        # an outage is of the server that all of them share: episodes/sample_selection.py
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
            actor=f"rollout-{group.actor.index}",
            env="simulated",
            seconds=self.clock.time() - group.started,
        )
        group.future.set_result((meta, group.tokens))

    # --- weights

    def pause(self) -> None:
        """A push begins: what is written so far is of the version before."""
        for actor in self.alive:
            for sequence, written in actor.engine.in_flight():
                writer = getattr(sequence.on_done, "__self__", None)
                if isinstance(writer, _Trajectory):
                    writer.mark(written)
            actor.engine.pause()

    def resume(self, version: int) -> None:
        self.version = version
        for actor in self.actors:
            actor.engine.resume(recompute=not self.keeps_kv)

    # --- faults

    def die(self, actor: Actor) -> None:
        """Its groups are lost; it serves again after `join`."""
        self.alive.remove(actor)
        self.router.leave(f"rollout-{actor.index}")
        actor.engine.fail()
        for group in sorted(actor.groups, key=lambda g: g.key):
            if not group.future.done():
                group.future.set_exception(EngineGone(f"Simulated death of rollout-{actor.index}."))

    def join(self, actor: Actor) -> None:
        self.alive.append(actor)
        self.router.join(f"rollout-{actor.index}", actor)

    # --- the rest of the port

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        return list(payloads)

    async def store(self, group: Group) -> Any:
        return group

    def where(self, key: GroupKey) -> str:
        return next(
            (f"on rollout-{a.index}" for a in self.alive if any(g.key == key for g in a.groups)), "waiting for an actor"
        )

    def engine_stats(self) -> dict[str, float]:
        """The figures of all engines, as the pool knows them."""
        return self.router.total_stats()
