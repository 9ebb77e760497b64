"""Turn protocols: which text of the model is a call, and how its output is inserted. One small state machine per
method.

A protocol sees text and answers with what to do next; it never sees tokens, engines or environments. One instance per
episode. One of one's own is a class in a file (docs/protocols.md): what it raises fails the trajectory as
`protocol_error`, with file and line.

    turn protocol       an observation is text behind what was sampled: `insertion`
    messages protocol   an observation is messages, which the model's own chat template renders: `replies`
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ... import plugins
from ...errors import ConfigError, TurnError
from ...user_code import Overrun, traceback_of

if TYPE_CHECKING:
    from ...config import Env
    from ...types import Completion


TURN_LIMIT = "turn_limit"
"""Stop reason of a segment that a protocol's `max_turn_tokens` has cut; the response's own budget is not used up."""


@dataclass(frozen=True, slots=True)
class Call:
    """Run `action` in the environment, insert its output, go on."""

    action: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The model meant a call that cannot be read. Nothing is run: `message` is inserted as a call's output, and the
    reward finds `action` among the trajectory's calls, with `defect` (see tool_call.Malformed) in its signals."""

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
    """What a class may say besides:

    cuts_at_limit    True: an inserted block is cut where the response budget ends, instead of overshooting it
    max_turn_tokens  a number: no segment gets more tokens. One that is cut there has finish_reason "length" and
                     stop_reason TURN_LIMIT
    max_context_tokens  a number: a segment is sampled from the last so many tokens of prompt and response
    env_task         a dict for the task that a session is opened with, e.g. how observations are to read; a row's own
                     keys win
    """

    def __init__(self, *, max_calls: int, budget_message: bool, **options: Any) -> None:
        """`options`: env.options."""

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


class MessagesProtocol(Protocol):
    """The same over messages. The text of a completion shows special tokens but for the one that ends the message."""

    def __init__(self, *, max_calls: int, budget_message: bool, **options: Any) -> None: ...

    @property
    def stops(self) -> tuple[str, ...]:
        """Mostly none: a message ends with the model's own end token."""

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        """What the message just sampled asks for."""

    def replies(self, observation: str) -> Sequence[Mapping[str, Any]]:
        """The messages that show an observation; `content` holds its text as it is."""


PROTOCOLS = {
    "artist": f"{__name__}.artist:Artist",
    "function": f"{__name__}.structured:Function",
    "hermes": f"{__name__}.structured:Hermes",
    "messages": f"{__name__}.messages:Messages",
    "plain": f"{__name__}.plain:Plain",
    "retool": f"{__name__}.retool:ReTool",
    "searchr1": f"{__name__}.searchr1:SearchR1",
    "skyrl": f"{__name__}.skyrl:SkyRL",
    "tagged": f"{__name__}.tagged:Tagged",
    "tool": f"{__name__}.structured:Tool",
    "tooln1": f"{__name__}.structured:ToolN1",
    "toolrl": f"{__name__}.structured:ToolRL",
    "torl": f"{__name__}.torl:ToRL",
    "zerotir": f"{__name__}.zerotir:ZeroTir",
}
MEMBERS = ("stops", "advance", "insertion", "too_long", "after_insertion")
OF_MESSAGES = ("stops", "advance", "replies")


def of_messages(cls: Any) -> bool:
    """Whether it is a messages protocol."""
    return hasattr(cls, "replies")


def _complaint(cls: Any) -> str | None:
    lacks = [
        name
        for name in (OF_MESSAGES if of_messages(cls) else MEMBERS)
        if not isinstance(cls, type) or not hasattr(cls, name)
    ]
    if lacks == ["stops"] and "self.stops" in inspect.getsource(cls):
        lacks = []  # set by the constructor
    return (
        f"{cls.__name__} has no {', '.join(lacks)}" if lacks else plugins.takes(0, "max_calls", "budget_message")(cls)
    )


PROTOCOL = plugins.Place(
    "turn protocol",
    "env.protocol",
    "a class with stops, advance(completion), insertion(observation), too_long() and after_insertion(), or, over"
    " messages, with stops, advance(completion) and replies(observation);"
    " made with max_calls=, budget_message= and env.options",
    PROTOCOLS,
    _complaint,
)


def load(name: str) -> Any:
    """The protocol class called `name`. Raises ConfigError for an unknown one; see plugins.py."""
    return plugins.load(PROTOCOL, name)


def check(cfg: Env) -> None:
    """Raises ConfigError for a protocol that cannot be made with its options."""
    cls = load(cfg.protocol)
    try:
        inspect.signature(cls).bind(max_calls=0, budget_message=False, **cfg.options)
    except TypeError as e:
        raise ConfigError(
            f"env.options = {cfg.options}: {plugins.location(cls)}:"
            f" {cls.__name__}{inspect.signature(cls)} does not take them: {e}."
        ) from None
    if not plugins.is_own(PROTOCOL, cfg.protocol):
        try:
            make(cfg)
        except ValueError as e:
            raise ConfigError(f"env.options = {cfg.options}: {e}") from None


def make(cfg: Env) -> Any:
    """A fresh protocol instance for one episode: a TurnProtocol, or a MessagesProtocol."""
    cls = load(cfg.protocol)
    if not plugins.is_own(PROTOCOL, cfg.protocol):
        return cls(max_calls=cfg.max_calls, budget_message=cfg.budget_message, **cfg.options)
    return OwnProtocol(cfg, cls)


def replies_of(cfg: Env) -> Sequence[Mapping[str, Any]]:
    """What a messages protocol answers to a turn, asked before any: its roles are what counts. Raises ConfigError when
    it cannot be made so."""
    try:
        found: Sequence[Mapping[str, Any]] = make(cfg).replies("A reply.")
    except TurnError:
        return [{"role": "tool", "name": "tool", "content": "A reply."}]  # one of one's own that wants a turn first
    return found


class OwnProtocol:
    """A protocol of one's own: what it raises, and an answer of the wrong type, is a TurnError with file and line."""

    def __init__(self, cfg: Env, cls: Any) -> None:
        self._name, self._cls = cfg.protocol, cls
        self.cuts_at_limit = bool(getattr(cls, "cuts_at_limit", False))
        self.env_task = getattr(cls, "env_task", {})
        with self._named():
            self._protocol = cls(max_calls=cfg.max_calls, budget_message=cfg.budget_message, **cfg.options)
            self.max_turn_tokens = getattr(self._protocol, "max_turn_tokens", None)
            self.max_context_tokens = getattr(self._protocol, "max_context_tokens", None)
        if not isinstance(self.env_task, dict):
            raise self._wrong("env_task", self.env_task, "a dict")
        for name, number in ("max_turn_tokens", self.max_turn_tokens), ("max_context_tokens", self.max_context_tokens):
            if number is not None and not (isinstance(number, int) and number > 0):
                raise self._wrong(name, number, "a number of tokens, 1 or more")

    @property
    def stops(self) -> tuple[str, ...]:
        with self._named():
            stops = self._protocol.stops
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise self._wrong("stops", stops, "a tuple of texts")
        return tuple(stops)

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        with self._named():
            answer = self._protocol.advance(completion)
        if not isinstance(answer, Call | Reject | GoOn | End):
            raise self._wrong("advance", answer, "a Call, Reject, GoOn or End")
        return answer

    def insertion(self, observation: str) -> str:
        with self._named():
            text = self._protocol.insertion(observation)
        return self._text("insertion", text)

    def replies(self, observation: str) -> list[Mapping[str, Any]]:
        with self._named():
            found = self._protocol.replies(observation)
        if not isinstance(found, list | tuple) or not all(
            isinstance(m, Mapping) and {"role", "content"} <= m.keys() for m in found
        ):
            raise self._wrong("replies", found, "a list of messages with role and content")
        return [dict(m) for m in found]

    def too_long(self) -> str | None:
        with self._named():
            text = self._protocol.too_long()
        if not isinstance(text, str | None):
            raise self._wrong("too_long", text, "text or None")
        return text

    def after_insertion(self) -> str:
        with self._named():
            text = self._protocol.after_insertion()
        return self._text("after_insertion", text)

    def _text(self, method: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        raise self._wrong(method, value, "text")

    def _wrong(self, method: str, value: Any, wanted: str) -> TurnError:
        return TurnError(
            f"env.protocol = {self._name!r}: {plugins.location(self._cls)}: {method} gave {value!r}"
            f" ({type(value).__name__}), not {wanted}."
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit, Overrun) as e:
            file = plugins.source_file(self._cls)
            at = plugins.raised_at(e, file)
            remedy = "It is a bug in that line, or a text that it does not expect."
            error = TurnError(f"env.protocol = {self._name!r}: {at}: {type(e).__name__}: {e}. {remedy}")
            error.traceback = traceback_of(e, file)
            raise error from e
