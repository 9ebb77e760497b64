"""Ray without processes: placement groups, nodes and actors as records; virtual time. Put in place by fixture `ray`."""

from __future__ import annotations

import asyncio

from openrlhf_tir.config import Config


class Group:
    """A placement group that is ready after `ready_s`."""

    def __init__(self, ready_s: float, bundles: list, strategy: str) -> None:
        self.ready_s, self.removed, self.bundles, self.strategy = ready_s, False, bundles, strategy
        self.on = {i: "id of 10.0.0.1" for i in range(len(bundles))}

    async def ready(self) -> None:
        await asyncio.sleep(self.ready_s)


def node(address: str, **resources: float) -> dict:
    return {"NodeID": f"id of {address}", "NodeManagerAddress": address, "Alive": True, "Resources": resources}


class Ray:
    """The calls that `place`, `spawn` and LearnerGroup make."""

    def __init__(self, monkeypatch) -> None:
        from openrlhf_tir.cluster import nodes

        from .fake_actors import FakeActor

        self.nodes = [node("10.0.0.1", CPU=4.0)]
        self.asked: list[dict] = []
        self.groups: list[Group] = []
        self.ready_s, self.fails_to_start = 1.0, False
        self.actors: list[FakeActor] = []
        self.prepare = lambda actor: None
        self.killed: list[FakeActor] = []
        remove = lambda group: setattr(group, "removed", True)  # noqa: E731
        for module in ("ray_session", "engine_handle", "learner_group"):
            monkeypatch.setattr(f"openrlhf_tir.cluster.{module}.remove_placement_group", remove)
        for module in ("engine_handle", "learner_group"):
            monkeypatch.setattr(
                f"openrlhf_tir.cluster.{module}.PlacementGroupSchedulingStrategy", lambda *args, **kwargs: None
            )
        monkeypatch.setattr("openrlhf_tir.cluster.ray_session.placement_group", self.placement_group)
        monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 0.0})
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0, "memory": 1.0})
        monkeypatch.setattr("ray.nodes", lambda: self.nodes)
        self.controller = "10.0.0.1"
        monkeypatch.setattr("ray.get_runtime_context", lambda: self)
        monkeypatch.setattr(
            "openrlhf_tir.cluster.ray_session.placement_group_table", lambda group: {"bundles_to_node_id": group.on}
        )
        nodes.has_gpus.cache_clear()
        monkeypatch.setattr("ray.kill", self.killed.append)
        monkeypatch.setattr("ray.remote", lambda *args, **kwargs: self if args else lambda cls: self)

    def get_node_id(self) -> str:
        return f"id of {self.controller}"

    def placement_group(self, bundles, strategy) -> Group:
        self.groups.append(Group(self.ready_s, bundles, strategy))
        return self.groups[-1]

    def options(self, **kwargs) -> Ray:
        self.asked.append(kwargs)
        return self

    def remote(self, index: int, *args):
        from .fake_actors import FakeActor

        if self.fails_to_start:
            raise ValueError("the class cannot be pickled")
        self.actors.append(FakeActor(index))
        self.prepare(self.actors[-1])
        return self.actors[-1]


def lost(member, why) -> None: ...


async def spawned(cfg: Config | None = None):
    from openrlhf_tir.cluster.engine_handle import spawn

    return await spawn(object, 0, cfg or Config(), {}, lost)
