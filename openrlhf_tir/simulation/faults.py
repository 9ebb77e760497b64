"""Scripted faults of a simulation, from the workload file's [[faults]] tables.

kind          what happens at `at_s`                                                   ends after `for_s`
actor_death   the engine's groups are lost, nothing is routed to it                     a new one joins, of this version
env_outage    no call is served; those that wait longer than env.step_timeout_s fail    calls are served again
slow_node     the engine decodes at `factor` of its rate                                at full rate again
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
    kind: str
    at_s: float
    for_s: float
    engine: int = 0
    factor: float = 0.5

    @classmethod
    def of(cls, table: dict) -> Fault:
        if table.get("kind") not in KINDS:
            raise unknown("fault", table.get("kind"), KINDS, "Set faults.kind to one of them.")
        try:
            return cls(**table)
        except TypeError as e:
            raise ConfigError(
                f"Fault {table} is not complete or has a key too many: {e}. Keys: kind, at_s, for_s, engine, factor."
            ) from None


def read_faults(path: Path) -> tuple[Fault, ...]:
    """The [[faults]] of a workload file that Workload.read has accepted."""
    return tuple(Fault.of(table) for table in read_toml(path, "Workload").get("faults", []))


def script_faults(faults: Iterable[Fault], rollout: SimulatedRollout, clock: Clock) -> None:
    """Put them on the clock. Raises ConfigError for an engine that the workload does not have."""
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
