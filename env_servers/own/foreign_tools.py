"""An environment of the tools of verl and TRL. The observation is the result of a call, as text.

A mistake of the model is an observation and is trained (outcome model_error): `bad_call`, `unknown_function`, and
`refused`, which is an exception of the tool: verl and TRL show it to the model as well. Two kinds of exception are not
the model's doing and fail the step: a NameError, a missing import, a service's wrong key and the like (a defect of the
tool, with file and line), and a service that does not answer (an outage). A tool that reaches hosts which the model
names must catch their errors itself.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import json
import logging
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from typing import Any

from env_servers.actions import CALLS, BadAction, cut_to_reply, read_calls
from env_servers.defects import contain, described, is_denied, is_outage
from env_servers.env import Env, Step
from openrlhf_tir.protocol import Outcome
from openrlhf_tir.waiting.daemon_threads import in_daemon_thread

from .session_thread import SessionThread

log = logging.getLogger(__name__)
CLOSE_S = 5.0
"""Seconds for which the end of a session waits for the user's `close`, which goes on behind that."""
DEFECTS = (NameError, ImportError, NotImplementedError, SyntaxError)
"""Exceptions that no argument can cause, except where a tool executes a text that the model wrote."""


class Tool:
    """One tool: its name, its schema, and the function that answers a call, in any thread or in `thread`."""

    def __init__(
        self,
        name: str,
        schema: dict[str, Any],
        function: Callable[..., Any] | None = None,
        thread: Executor | None = None,
    ) -> None:
        self.name = name
        self.schema = schema
        self.function = function
        self.thread = thread

    @property
    def source(self) -> Any:
        """The function or class that the user wrote."""
        return self.function

    async def begin(self, session: str, kwargs: Mapping[str, Any]) -> None:
        """Begin an episode. `kwargs` are the row's arguments for this tool (verl's tools_kwargs)."""

    async def call(self, session: str, arguments: dict[str, Any]) -> tuple[str, float | None]:
        """Return the result as text, and the reward of the step if there is one."""
        assert self.function is not None
        return text_of(await called(self.thread, self.function, **arguments)), None

    async def score(self, session: str) -> float | None:
        """Return what the episode is worth so far, by the tool; None if the tool does not say."""
        return None

    async def end(self, session: str) -> None:
        """End the episode."""


class VerlTool(Tool):
    """A BaseTool of verl: one object for all sessions, which it distinguishes by instance_id."""

    def __init__(self, name: str, schema: dict[str, Any], tool: Any) -> None:
        super().__init__(name, schema)
        self.tool = tool
        self._kwargs: dict[str, Mapping[str, Any]] = {}
        self._instances: dict[str, str] = {}

    @property
    def source(self) -> Any:
        return type(self.tool)

    async def begin(self, session: str, kwargs: Mapping[str, Any]) -> None:
        self._kwargs[session] = kwargs
        create_kwargs = dict(kwargs.get("create_kwargs") or {})
        # Tools read their arguments by name, or from `create_kwargs`, as verl's two rollouts pass them.
        arguments = accepted(self.tool.create, {"create_kwargs": create_kwargs, **create_kwargs})
        result = await called(None, self.tool.create, session, **arguments)
        self._instances[session] = str(result[0] if isinstance(result, tuple) else result)

    async def call(self, session: str, arguments: dict[str, Any]) -> tuple[str, float | None]:
        more = accepted(self.tool.execute, dict(self._kwargs[session].get("execute_kwargs") or {}))
        result = await called(None, self.tool.execute, self._instances[session], arguments, **more)
        response, reward, *_ = result if isinstance(result, tuple) else (result, None)
        text = getattr(response, "text", response)
        return text_of("" if text is None else text), None if reward is None else float(reward)

    async def score(self, session: str) -> float | None:
        if not hasattr(self.tool, "calc_reward") or session not in self._instances:
            return None
        more = accepted(self.tool.calc_reward, dict(self._kwargs[session].get("calc_reward_kwargs") or {}))
        value = await called(None, self.tool.calc_reward, self._instances[session], **more)
        return None if value is None else float(value)

    async def end(self, session: str) -> None:
        kwargs = self._kwargs.pop(session, {})
        instance = self._instances.pop(session, None)
        if instance is not None:
            more = accepted(self.tool.release, dict(kwargs.get("release_kwargs") or {}))
            await called(None, self.tool.release, instance, **more)


class ToolEnv(Env):
    """A session with the tools in `callables`. The environment never ends an episode: the model stops calling."""

    action = CALLS
    callables: Sequence[Tool] = ()
    tools: Sequence[dict[str, Any]] = ()
    """Schemas of `callables`, in OpenAI's form."""
    user_files: Sequence[str] = ()
    """Files of the tools (defects.py)."""

    def __init__(self) -> None:
        self.session = uuid.uuid4().hex
        self._by_name = {tool.name: tool for tool in self.callables}
        self._counts = {"calls": 0, "errors": 0}

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        kwargs = tools_kwargs(task)
        for tool in self.callables:
            await tool.begin(self.session, kwargs.get(tool.name) or {})
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        try:
            calls = read_calls(action)
        except BadAction as e:
            self._counts["errors"] += 1
            return Step(str(e), outcome="model_error", signals={**self._counts, "error_type": "bad_call"})
        results = []
        rewards = []
        first_error = None
        for name, arguments in calls:
            self._counts["calls"] += 1
            text, reward, error = await self._call(name, arguments)
            results.append(text)
            if reward is not None:
                rewards.append(reward)
            if error:
                self._counts["errors"] += 1
                first_error = first_error or error
        signals = {**self._counts, "error_type": first_error, **await self._scores()}
        outcome: Outcome = "model_error" if first_error else "ok"
        reward = sum(rewards) if rewards else None
        return Step(cut_to_reply("\n".join(results)), reward=reward, outcome=outcome, signals=signals)

    async def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, float | None, str | None]:
        """Answer one call. Return the text for the model, the reward, and the error type."""
        tool = self._by_name.get(name)
        if tool is None:
            return f"There is no tool {name!r}. There are: {', '.join(self._by_name)}.", None, "unknown_function"
        if tool.function is not None and (fault := misfit(tool.function, arguments)):
            return f"Error: {name}: {fault}", None, "bad_call"
        try:
            return (*await tool.call(self.session, arguments), None)
        except Exception as e:
            if is_outage(e) or is_denied(e) or (isinstance(e, DEFECTS) and not _in_executed_text(e)):
                raise
            return f"Error when executing {name}: {described(e)}", None, "refused"

    async def _scores(self) -> dict[str, Any]:
        scores = {tool.name: value for tool in self.callables if (value := await tool.score(self.session)) is not None}
        return {"tool_scores": scores} if scores else {}

    async def close(self) -> None:
        async with AsyncExitStack() as releases:  # a release that fails keeps no other tool from its own
            for tool in self.callables:
                releases.push_async_callback(tool.end, self.session)


class TrlEnv(ToolEnv):
    """An environment of TRL's `environment_factory`: one object for each session, with a thread of its own."""

    environment: type = object
    """The user's class."""
    methods: Sequence[str] = ()
    """Names of the methods that are tools."""

    def __init__(self) -> None:
        super().__init__()
        self.object: Any = None
        self._thread = SessionThread()
        self._earned = 0.0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        await self._in_thread(self._make)
        columns = {k: v for k, v in task.items() if k != "extra"} | dict(task.get("extra") or {})
        observation = await self._in_thread(self.object.reset, **accepted(self.object.reset, columns))
        return "" if observation is None else text_of(observation)

    def _make(self) -> None:
        self.object = self.environment()
        schemas = {schema["function"]["name"]: schema for schema in self.tools}
        methods = {name: getattr(self.object, name) for name in self.methods}
        self.callables = [Tool(name, schemas[name], method, self._thread) for name, method in methods.items()]
        self._by_name = {tool.name: tool for tool in self.callables}

    async def step(self, action: str, deadline_s: float) -> Step:
        step = await super().step(action, deadline_s)
        judge = getattr(self.object, "get_reward", None)
        if judge is None:
            return step
        value = float(await self._in_thread(judge))
        # get_reward is the value of the whole episode; the rewards of the steps must add up to its last value
        gained = value - self._earned
        self._earned = value
        return Step(step.observation, reward=gained, outcome=step.outcome, signals=step.signals)

    async def close(self) -> None:
        if not self._thread.started:
            return
        # A call that still runs here was given up, and may never return.
        wait_s = 0.0 if self._thread.busy else CLOSE_S
        closing = asyncio.create_task(contain(self._in_thread(self._close_object)), name=f"close {self.session}")
        closing.add_done_callback(lambda _: self._thread.end())
        done, _ = await asyncio.wait([closing], timeout=wait_s)
        if done:
            closing.result()
        else:
            closing.add_done_callback(_log_error)

    def _close_object(self) -> Any:
        """Call the user's `close` if there is one. In the thread: a `_make` before it may still be running."""
        close = getattr(self.object, "close", None)
        return None if close is None else close()

    def _in_thread(self, function: Callable[..., Any], /, **kwargs: Any) -> Any:
        return called(self._thread, function, **kwargs)


def _log_error(closing: asyncio.Task[Any]) -> None:
    """Log what a late `close` raised, as the session does where it is not late."""
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log.error("the environment failed in close", exc_info=error)


def tools_kwargs(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments for each tool in a row of verl's: extra_info.tools_kwargs, or a column of that name."""
    extra = task.get("extra") or {}
    info = extra.get("extra_info") or {}
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = {}
    table = extra.get("tools_kwargs") or (info.get("tools_kwargs") if isinstance(info, Mapping) else None) or {}
    return table if isinstance(table, Mapping) else {}


def _in_executed_text(error: Exception) -> bool:
    """Return True if an error comes from `eval`, `exec` or `ast.parse` of a text, and not from a file."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename.startswith("<")
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [file for file in files if not file.startswith("<frozen ")]  # the importer of Python itself
    return bool(own) and own[-1].startswith("<")


async def called(thread: Executor | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function and await the result if it is awaitable.

    A function that may block is called in `thread`, or if that is None in a thread of its own: calls that never return
    must not use up the threads of other sessions.

    Raises:
        BlockingIOError: The system starts no more threads. It is an outage (`is_outage`), and not the function's error.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    call = functools.partial(function, *args, **kwargs)
    if thread is not None:
        pending = asyncio.get_running_loop().run_in_executor(thread, call)
    else:
        try:
            pending = in_daemon_thread(call)
        except RuntimeError as e:  # a limit of the system or of the container
            raise BlockingIOError(errno.EAGAIN, str(e)) from None
    result = await pending
    return await result if inspect.isawaitable(result) else result


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the keyword arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(arguments)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if name in names}


def misfit(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return why a function cannot be called with these arguments; None if it can."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as e:
        return str(e)
    return None


def text_of(value: Any) -> str:
    """Return a result as the model reads it."""
    return value if isinstance(value, str) else str(value)
