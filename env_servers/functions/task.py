"""FunctionTask: a row's task, checked. Everything that `reset` is told about an episode, as JSON.

    {"domains": ["files", "travel"], "seed": 7, "gold": [[{"name": ..., "arguments": {...}}, ...], ...]}

`gold` is a list of calls per turn of the user. The first turn's text is in the prompt; `user` has the later answers."""

from __future__ import annotations

import random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .domains import DOMAINS
from .grade import Made, run
from .tools import World


class GoldCall(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class UserLine(BaseModel):
    """What a scripted user says. `when`: only in answer to a message that holds one of these words (in any case)."""

    model_config = ConfigDict(extra="forbid")
    text: str
    when: list[str] = Field(default_factory=list)
    reveal: list[str] = Field(default_factory=list, description="functions that are offered from now on")


class FunctionTask(BaseModel):
    """See above. `check`: "turns" grades after each turn of the user (BFCL v3), "end" once (tau-bench)."""

    model_config = ConfigDict(extra="ignore")
    domains: list[str] = Field(min_length=1)
    seed: int = 0
    state: dict[str, dict[str, Any]] | None = Field(
        None, description="domain -> its state; default: made from the seed"
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
        """A fresh one. Raises ValueError for a domain or a function that is not there, a state not its domain's."""
        if strange := sorted(set(self.domains) - set(DOMAINS)):
            raise ValueError(f"domains: {', '.join(strange)}: there are {', '.join(DOMAINS)}.")
        if strange := sorted(set(self.state or {}) - set(self.domains)):
            raise ValueError(f"state: {', '.join(strange)}: the task's domains are {', '.join(self.domains)}.")
        made = [DOMAINS[d](self._state_of(d)) for d in self.domains]
        world = World(made, frozenset(self.hidden))
        named = {
            *self.hidden,
            *(c.name for turn in self.gold for c in turn),
            *(n for line in self.user for n in line.reveal),
        }
        if strange := sorted(named - set(world.owner)):
            raise ValueError(f"{', '.join(strange)}: no function of the domains {', '.join(self.domains)}.")
        return world

    def _state_of(self, domain: str) -> dict[str, Any]:
        """Raises ValueError for a state without the variables that the domain has, and of their types."""
        initial = DOMAINS[domain].initial(random.Random(f"{self.seed} {domain}"))
        given = (self.state or {}).get(domain) or initial
        if given.keys() != initial.keys():
            raise ValueError(
                f"state.{domain} has {', '.join(given) or 'nothing'}; a state of {domain} has {', '.join(initial)}."
            )
        for name, value in initial.items():
            if value is not None and _kind(given[name]) != _kind(value):
                raise ValueError(
                    f"state.{domain}.{name} is {_kind(given[name])}; it is {_kind(value)} in a state of {domain}."
                )
        return given

    def run_gold(self, world: World, turns: int | None = None) -> list[list[Made]]:
        """Carry out the gold calls of the first turns on `world` (hidden ones too). Raises ValueError where one cannot
        be carried out."""
        everything = World(world.domains)
        results = [[run(everything, c.name, c.arguments) for c in turn] for turn in self.gold[:turns]]
        for made in (m for turn in results for m in turn):
            if made.error:
                raise ValueError(f"gold: {made.key} cannot be carried out: {made.error}")
        return results


def _kind(value: Any) -> str:
    """A value's type in JSON, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
