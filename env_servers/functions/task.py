"""The task of one row, checked: everything that `reset` gets about an episode, as JSON.

    {"domains": ["files", "travel"], "seed": 7, "gold": [[{"name": ..., "arguments": {...}}, ...], ...]}

`gold` is a list of calls for each turn of the user. The text of the first turn is in the prompt; `user` has the later
ones.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .domains import DOMAINS
from .grade import CallResult, run
from .tools import World


class GoldCall(BaseModel):
    """A call of the correct solution."""

    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class UserLine(BaseModel):
    """A line of a scripted user.

    Attributes:
        text: What the user says.
        when: If not empty, the line only answers a message that holds one of these words (in any case).
        reveal: Functions that are offered from now on.
    """

    model_config = ConfigDict(extra="forbid")
    text: str
    when: list[str] = Field(default_factory=list)
    reveal: list[str] = Field(default_factory=list, description="functions that are offered from now on")


class FunctionTask(BaseModel):
    """A function-calling task. `check` is "turns" to grade after each turn of the user (BFCL v3), "end" to grade once
    (tau-bench)."""

    model_config = ConfigDict(extra="ignore")
    domains: list[str] = Field(min_length=1)
    seed: int = 0
    state: dict[str, dict[str, Any]] | None = Field(
        None, description="state by domain; default: generated from the seed"
    )
    gold: list[list[GoldCall]] = Field(min_length=1)
    hidden: list[str] = Field(
        default_factory=list, description="functions that are not offered (until a user's line reveals them)"
    )
    user: list[UserLine] = Field(default_factory=list)
    instruction: str = Field("", description="for a user played by a model: who it is and what it wants")
    outputs: list[str] = Field(default_factory=list, description="texts that the model must say")
    check: Literal["turns", "end"] = "turns"

    @model_validator(mode="after")
    def _end_has_one_turn(self) -> FunctionTask:
        if self.check == "end" and len(self.gold) != 1:
            raise ValueError(f'check = "end" compares once, with one list of gold calls; there are {len(self.gold)}.')
        return self

    def world(self) -> World:
        """Return a new world in the initial state of the task.

        Raises:
            ValueError: There is no such domain or function, or a state is not of the form of its domain.
        """
        if unknown := sorted(set(self.domains) - set(DOMAINS)):
            raise ValueError(f"domains: {', '.join(unknown)}: there are {', '.join(DOMAINS)}.")
        if unknown := sorted(set(self.state or {}) - set(self.domains)):
            raise ValueError(f"state: {', '.join(unknown)}: the task's domains are {', '.join(self.domains)}.")
        domains = [DOMAINS[name](self._state_of(name)) for name in self.domains]
        world = World(domains, frozenset(self.hidden))
        used_functions = {
            *self.hidden,
            *(call.name for turn in self.gold for call in turn),
            *(name for line in self.user for name in line.reveal),
        }
        if unknown := sorted(used_functions - set(world.owner)):
            raise ValueError(f"{', '.join(unknown)}: no function of the domains {', '.join(self.domains)}.")
        return world

    def _state_of(self, domain: str) -> dict[str, Any]:
        """Return the initial state of a domain.

        Raises:
            ValueError: The state of the task has other variables than the domain, or values of another type.
        """
        initial = DOMAINS[domain].initial(random.Random(f"{self.seed} {domain}"))
        state = (self.state or {}).get(domain) or initial
        if state.keys() != initial.keys():
            raise ValueError(
                f"state.{domain} has {', '.join(state) or 'nothing'}; a state of {domain} has {', '.join(initial)}."
            )
        for name, value in initial.items():
            if value is not None and _kind(state[name]) != _kind(value):
                raise ValueError(
                    f"state.{domain}.{name} is {_kind(state[name])}; it is {_kind(value)} in a state of {domain}."
                )
        return state

    def run_gold(self, world: World) -> list[list[CallResult]]:
        """Run the gold calls of all turns on a world, which they change, hidden functions included.

        Raises:
            ValueError: A call cannot be carried out.
        """
        everything = World(world.domains)
        turn_results = [[run(everything, call.name, call.arguments) for call in turn] for turn in self.gold]
        for result in (result for turn in turn_results for result in turn):
            if result.error:
                raise ValueError(f"gold: {result.key} cannot be carried out: {result.error}")
        return turn_results


def _kind(value: Any) -> str:
    """Return the JSON type of a value, as a noun."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
