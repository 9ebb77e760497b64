"""Turn protocols: which text of the model is a call, and how its output is inserted. One small state machine per method.

A protocol sees text and answers with what to do next; it never sees tokens, engines or environments. One instance per episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ...errors import unknown

if TYPE_CHECKING:
    from ...config import Env
    from ...types import Completion


@dataclass(frozen=True, slots=True)
class Call:
    """Run `action` in the environment, insert its output, go on."""

    action: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The model meant a call that cannot be read. Nothing is run: `message` is inserted as a call's output would be, and the reward
    finds `action` among the trajectory's calls, with `defect` (see tool_call.Malformed) in its signals."""

    action: str
    defect: str
    message: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Sample the next segment at once, after inserting `text` (mostly nothing)."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The episode is over."""


class TurnProtocol(Protocol):
    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings of the next segment; a matched one stays in the text."""

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        """What the segment just sampled asks for."""

    def insertion(self, observation: str) -> str:
        """The block that shows an observation to the model."""

    def too_long(self) -> str | None:
        """What replaces an observation whose block exceeds the token limit; None: the observation's end is cut off."""

    def after_insertion(self) -> str:
        """Text of the environment to add behind the block just inserted, e.g. that the calls are used up."""


PROTOCOLS = {
    "artist": "artist:Artist",
    "function": "structured:Function",
    "hermes": "structured:Hermes",
    "retool": "retool:ReTool",
    "searchr1": "searchr1:SearchR1",
    "tooln1": "structured:ToolN1",
    "toolrl": "structured:ToolRL",
    "torl": "torl:ToRL",
    "zerotir": "zerotir:ZeroTir",
}


def load(name: str) -> type:
    """The protocol class called `name`. Raises ConfigError for an unknown one."""
    if name not in PROTOCOLS:
        raise unknown("turn protocol", name, PROTOCOLS, "Set env.protocol to one of them.")
    module, _, cls = PROTOCOLS[name].partition(":")
    return getattr(import_module(f".{module}", __name__), cls)


def make(cfg: Env) -> TurnProtocol:
    """A fresh protocol instance for one episode."""
    return load(cfg.protocol)(max_calls=cfg.max_calls, budget_message=cfg.budget_message)
