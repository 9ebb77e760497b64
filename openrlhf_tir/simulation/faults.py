"""Scripted faults of a simulation, from the [[faults]] tables of the workload file.

kind          what happens at `at_s`                                                  what happens `for_s` later
actor_death   the groups of the engine are lost, and no group is routed to it         it joins with the current version
env_outage    no call is served; calls that wait env.step_timeout_s fail              calls are served again
slow_node     the engine decodes at `factor` of its rate                              it decodes at its full rate
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..config.toml_file import read_toml
from ..errors import ConfigError, unknown
from .engine_model import Clock
from .rollout import SimulatedRollout

KINDS = ("actor_death", "env_outage", "slow_node")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; the table above has the kinds.

    Attributes:
        kind: One of KINDS.
        at_s: Virtual time at which it begins, in seconds.
        for_s: Its duration in seconds.
        engine: Index of the engine that it is about.
        factor: Share of the rate that a slow node has.
    """

    kind: str
    at_s: float
    for_s: float
    engine: int = 0
    factor: float = 0.5

    @classmethod
    def of(cls, table: dict) -> Fault:
        """Return the fault of one table.

        Raises:
            ConfigError: Its kind is unknown, a key is missing, or there is one too many.
        """
        if table.get("kind") not in KINDS:
            raise unknown("fault", table.get("kind"), KINDS, "Set faults.kind to one of them.")
        try:
            return cls(**table)
        except TypeError as error:
            raise ConfigError(
                f"Fault {table} is not complete or has a key too many: {error}."
                " Keys: kind, at_s, for_s, engine, factor."
            ) from None


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Return the faults of a workload file that Workload.read has accepted."""
    return tuple(Fault.of(table) for table in read_toml(path, "Workload").get("faults", []))


def script_faults(faults: Iterable[Fault], rollout: SimulatedRollout, clock: Clock) -> None:
    """Set timers for the begin and the end of each fault.

    Raises:
        ConfigError: A fault is about an engine that the workload does not have.
    """
    for fault in faults:
        if not 0 <= fault.engine < len(rollout.actors):
            raise ConfigError(
                f"Fault {fault.kind} is of engine {fault.engine}, but there are {len(rollout.actors)}."
                f" Use 0 ... {len(rollout.actors) - 1}."
            )
        actor = rollout.actors[fault.engine]
        effects: dict[str, tuple[tuple[Callable[..., object], object], tuple[Callable[..., object], object]]] = {
            "actor_death": ((rollout.die, actor), (rollout.join, actor)),
            "env_outage": ((rollout.env.outage, True), (rollout.env.outage, False)),
            "slow_node": ((actor.engine.set_speed, fault.factor), (actor.engine.set_speed, 1.0)),
        }
        begin, end = effects[fault.kind]
        clock.call_at(fault.at_s, *begin)
        clock.call_at(fault.at_s + fault.for_s, *end)
