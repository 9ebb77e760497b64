"""Turn protocols: which text of the model is a call, and how its result is shown. One small state machine per method.

A protocol sees text and returns what to do next; it never sees tokens, engines or environments. Each episode has an
instance of its own. There are two kinds:

    turn protocol       an observation is text behind what was sampled: `insertion`
    messages protocol   an observation is messages, which the model's own chat template renders: `replies`

A protocol of the user's is a class in a file (docs/protocols.md). What any method of it raises becomes a TurnError with
file and line (`UserProtocol`), which fails the group as `protocol_error`. Registered protocols raise nothing, whatever
the model writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ConfigError, TurnError
from ...user_code import plugins
from ...user_code.failures import described, show, traceback_of, user_code_errors

if TYPE_CHECKING:
    from ...config import Env
    from ...types import Completion


TURN_LIMIT = "turn_limit"
"""Stop reason of a segment that was cut at the protocol's `max_turn_tokens`, with some of the response's budget
left."""


@dataclass(frozen=True, slots=True)
class Call:
    """Run `action` in the environment, show its observation, and sample the next segment."""

    action: str


@dataclass(frozen=True, slots=True)
class Reject:
    """The model meant a call that cannot be read. Nothing is run; the next segment is sampled behind `message`.

    Attributes:
        action: The text in place of a call. The reward finds it among the trajectory's calls.
        defect: What is wrong with it (see tool_call.Malformed). The reward finds it in the call's signals.
        message: What the model is told, in place of an observation.
    """

    action: str
    defect: str
    message: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Sample the next segment at once, after inserting `text` if there is any."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The episode is over."""


class EpisodeProtocol(Protocol):
    """What turn protocols and messages protocols have in common."""

    def __init__(self, *, max_calls: int, budget_message: bool, **options: Any) -> None:
        """Begin a response or a conversation.

        Args:
            max_calls: env.max_calls.
            budget_message: Tell the model when its calls are used up. False unless env.options has it.
            options: env.options.
        """

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the next segment. The text includes the one that matched.

        A messages protocol usually has none: a message ends with the model's own end token.
        """

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        """Return what the segment, or message, that was just sampled asks for.

        A protocol counts its calls itself: once env.max_calls are used up, nothing is a call any more.
        """


class TurnProtocol(EpisodeProtocol, Protocol):
    """A protocol that shows observations as text. A class may also have these attributes:

    cuts_at_limit       True to cut an inserted block where the response budget ends, instead of exceeding the budget
    max_turn_tokens     Largest number of tokens of a segment. A segment that is cut there has finish_reason "length"
                        and stop_reason TURN_LIMIT
    max_context_tokens  Sample every segment from this many last tokens of prompt and response
    env_task            A dict that is added to the task of every session, for example how observations are to read. The
                        row's own keys take precedence
    """

    def insertion(self, observation: str) -> str:
        """Return the block that shows an observation to the model."""

    def too_long(self) -> str | None:
        """Return what replaces an observation whose block exceeds the token limit; None to cut its end off."""

    def after_insertion(self) -> str:
        """Return text to add behind the block that was just inserted, for example that the calls are used up."""


class MessagesProtocol(EpisodeProtocol, Protocol):
    """A protocol that shows observations as chat messages.

    The text of a completion contains special tokens, except for the one that ends the message. A class may have an
    attribute `relies_on_template`: False if the model learns of its tools otherwise than from its chat template
    (shown_tools.py).
    """

    def replies(self, observation: str) -> Sequence[Mapping[str, Any]]:
        """Return the messages that show an observation. `content` must hold its text unchanged."""


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
"""The registered protocols: env.protocol -> "module:class"."""
TURN_MEMBERS = ("stops", "advance", "insertion", "too_long", "after_insertion")
"""What the class of a turn protocol must have."""
MESSAGES_MEMBERS = ("stops", "advance", "replies")
"""What the class of a messages protocol must have."""


def of_messages(cls: Any) -> bool:
    """Return True for a messages protocol."""
    return hasattr(cls, "replies")


def _complaint(cls: Any) -> str | None:
    """Return what is wrong with a user's class; None if nothing is."""
    members = MESSAGES_MEMBERS if of_messages(cls) else TURN_MEMBERS
    missing = [name for name in members if not isinstance(cls, type) or not hasattr(cls, name)]
    if missing == ["stops"] and "self.stops" in inspect.getsource(cls):
        missing = []  # the constructor sets it
    if missing:
        return f"{cls.__name__} has no {', '.join(missing)}"
    return plugins.takes(0, "max_calls", "budget_message")(cls)


PROTOCOL = plugins.Place(
    "turn protocol",
    "env.protocol",
    "a class with stops, advance(completion), insertion(observation), too_long() and after_insertion(), or, over"
    " messages, with stops, advance(completion) and replies(observation);"
    " made with max_calls=, budget_message= (False) and env.options",
    PROTOCOLS,
    _complaint,
)


def load(name: str) -> Any:
    """Return the protocol class called `name`.

    Raises:
        ConfigError: It is not registered and cannot be loaded.
    """
    return plugins.load(PROTOCOL, name)


def check(settings: Env) -> None:
    """Check that the protocol can be created with its options.

    Raises:
        ConfigError: It cannot.
    """
    cls = load(settings.protocol)
    if "max_calls" in settings.options:
        raise ConfigError(f"env.options = {settings.options}: max_calls is a setting of its own. Set env.max_calls.")
    fault = plugins.wrong_keywords(cls, {"max_calls": 0, **_options(settings)})
    if fault:
        raise ConfigError(
            f"env.options = {settings.options}: {plugins.location(cls)}:"
            f" {cls.__name__}{inspect.signature(cls)} does not accept them: {fault}."
        )
    if not plugins.is_own(PROTOCOL, settings.protocol):
        try:
            make(settings)
        except (TypeError, ValueError) as e:
            raise ConfigError(f"env.options = {settings.options}: {e}") from None


def make(settings: Env) -> Any:
    """Return a new protocol instance for one episode: a TurnProtocol or a MessagesProtocol.

    Raises:
        TurnError: A user's class raised.
    """
    cls = load(settings.protocol)
    if plugins.is_own(PROTOCOL, settings.protocol):
        return UserProtocol(settings, cls)
    return cls(max_calls=settings.max_calls, **_options(settings))


def replies_of(settings: Env) -> Sequence[Mapping[str, Any]]:
    """Return an example of a messages protocol's replies. The check of the chat template needs their roles.

    Raises:
        ConfigError: A registered protocol refuses its options.
    """
    try:
        replies: Sequence[Mapping[str, Any]] = make(settings).replies("A reply.")
    except TurnError:
        # A user's class that cannot reply before the model has written a message.
        return [{"role": "tool", "name": "tool", "content": "A reply."}]
    return replies


def _options(settings: Env) -> dict[str, Any]:
    """Return the keyword arguments of a turn protocol's constructor besides max_calls."""
    return {"budget_message": False, **settings.options}


class UserProtocol:
    """A protocol of the user's. What it raises, and an answer of the wrong type, is a TurnError with file and line."""

    def __init__(self, settings: Env, cls: Any) -> None:
        """Create the user's protocol.

        Raises:
            TurnError: Its constructor raised, or an attribute has the wrong type.
        """
        self._name = settings.protocol
        self._cls = cls
        self.cuts_at_limit = bool(getattr(cls, "cuts_at_limit", False))
        self.env_task = getattr(cls, "env_task", {})
        with self._errors_with_line():
            self._protocol = cls(max_calls=settings.max_calls, **_options(settings))
            self.relies_on_template = bool(getattr(self._protocol, "relies_on_template", True))
            self.max_turn_tokens = getattr(self._protocol, "max_turn_tokens", None)
            self.max_context_tokens = getattr(self._protocol, "max_context_tokens", None)
        if not isinstance(self.env_task, dict):
            raise self._wrong_type("env_task", self.env_task, "a dict")
        for name, number in ("max_turn_tokens", self.max_turn_tokens), ("max_context_tokens", self.max_context_tokens):
            if number is not None and not (isinstance(number, int) and number > 0):
                raise self._wrong_type(name, number, "a number of tokens, 1 or more")

    @property
    def stops(self) -> tuple[str, ...]:
        """See TurnProtocol."""
        with self._errors_with_line():
            stops = self._protocol.stops
        if not isinstance(stops, Collection) or isinstance(stops, str) or not all(map(_is_text, stops)):
            raise self._wrong_type("stops", stops, "a tuple of texts")
        return tuple(stops)

    def advance(self, completion: Completion) -> Call | Reject | GoOn | End:
        """See TurnProtocol."""
        answer: Call | Reject | GoOn | End = self._answer(
            "advance", Call | Reject | GoOn | End, "a Call, Reject, GoOn or End", completion
        )
        for field in fields(answer):
            if not isinstance(value := getattr(answer, field.name), str):
                raise self._wrong_type(f"{field.name} of advance's {type(answer).__name__}", value, "text")
        return answer

    def insertion(self, observation: str) -> str:
        """See TurnProtocol."""
        text: str = self._answer("insertion", str, "text", observation)
        return text

    def replies(self, observation: str) -> list[Mapping[str, Any]]:
        """See MessagesProtocol."""
        replies = self._answer("replies", list | tuple, "a list of messages with role and content", observation)
        if not all(map(_is_message, replies)):
            raise self._wrong_type("replies", replies, "a list of messages with role and content")
        return [dict(message) for message in replies]

    def too_long(self) -> str | None:
        """See TurnProtocol."""
        text: str | None = self._answer("too_long", str | None, "text or None")
        return text

    def after_insertion(self) -> str:
        """See TurnProtocol."""
        text: str = self._answer("after_insertion", str, "text")
        return text

    def _answer(self, method: str, types: Any, expected: str, *args: Any) -> Any:
        """Call a method of the user's.

        Args:
            method: Its name.
            types: Types that its answer may have.
            expected: The same in words.
            args: Its arguments.

        Raises:
            TurnError: It raised, or its answer has another type.
        """
        with self._errors_with_line():
            answer = getattr(self._protocol, method)(*args)
        if not isinstance(answer, types):
            raise self._wrong_type(method, answer, expected)
        return answer

    def _wrong_type(self, member: str, value: Any, expected: str) -> TurnError:
        return TurnError(
            f"env.protocol = {self._name!r}: {plugins.location(self._cls)}: {member} gave {show(value)},"
            f" not {expected}."
        )

    @contextmanager
    def _errors_with_line(self) -> Iterator[None]:
        """Turn what the user's code raises in this block into a TurnError with its file, line and traceback."""
        try:
            yield
        except user_code_errors() as e:
            file = plugins.source_file(self._cls)
            line = plugins.raised_at(e, file)
            remedy = "It is a bug in that line, or a text that it does not expect."
            error = TurnError(f"env.protocol = {self._name!r}: {line}: {described(e)}. {remedy}")
            error.user_traceback = traceback_of(e, file)
            raise error from e


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and {"role", "content"} <= value.keys()
