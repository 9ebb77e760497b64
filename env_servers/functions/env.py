"""An environment whose action is a JSON list of calls, or {"message": text} to the user.

The observation is the results of the calls, or the user's answer. A wrong call is an observation too, and is trained
(outcome model_error, signals.error_type): `unknown_function`, `bad_call`, `refused` (the function says why).

Signals of every step, over the whole episode so far: state_match, state_total, functions_matched, functions_total (read
by `reward.name = "artist"` with `functions = true`), turn, turns_passed, errors. The last step has a reward: 1.0 if
every turn passed, else 0.0.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from env_servers.actions import CALLS, BadAction, cut_to_reply, read_message_or_calls
from env_servers.env import Env, Step

from .grade import Grade, Tally, grade, run, state_texts
from .task import FunctionTask
from .tools import World
from .users import User, user_of

ACTION = f'{CALLS}, or {{"message": text}} to the user'
"""What an action is, for /schema and for messages to the model."""


class FunctionsEnv(Env):
    """An episode of function calling with a user."""

    def __init__(self, make_user: Callable[[FunctionTask], User] = lambda task: user_of(task, None, "", 60.0)) -> None:
        """Create the environment.

        Args:
            make_user: Returns the user of a task; the default is a scripted one.
        """
        self._make_user = make_user

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start a task. Raises ValueError (pydantic's) for a malformed task, or one whose gold calls cannot be carried
        out."""
        self._task = FunctionTask.model_validate(task)
        self._world = self._task.world()
        self._gold = self._task.world()
        self._task.run_gold(self._task.world())
        self._user = self._make_user(self._task)
        self._turn = 0
        self._passed = 0
        self._ended = False
        self._calls = Tally()
        self._expected = Tally()
        self._messages: list[str] = []
        self._begin_turn()
        return ""

    def _begin_turn(self) -> None:
        """Begin a turn: carry out its gold calls on the gold world."""
        everything = World(self._gold.domains)
        gold = [run(everything, call.name, call.arguments) for call in self._task.gold[self._turn]]
        self._expected.add(gold)
        self._turn_calls = Tally()
        self._turn_expected = Tally(gold)
        self._gold_state = state_texts(self._gold)

    async def step(self, action: str, deadline_s: float) -> Step:
        """Carry out calls, or send a message to the user."""
        if self._ended:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals(None))
        try:
            request = read_message_or_calls(action, ACTION)
        except BadAction as e:
            return self._bad(str(e))
        if isinstance(request, str):
            return await self._message(request)
        results = [run(self._world, name, arguments) for name, arguments in request]
        self._calls.add(results)
        self._turn_calls.add(results)
        lines = [
            {"error": result.error} if result.error else {"result": json.loads(result.result)} for result in results
        ]
        observation = cut_to_reply("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
        failed = next((result for result in results if result.error), None)
        if failed is None:
            return Step(observation, signals=self._signals(None))
        unknown = failed.name not in self._world.owner or failed.name in self._world.hidden
        error_type = "unknown_function" if unknown else "refused"
        return Step(observation, outcome="model_error", signals=self._signals(error_type))

    async def _message(self, text: str) -> Step:
        """End the model's turn: grade it and return the user's answer."""
        self._messages.append(text)
        line = await self._user.answer(text)
        turns = len(self._task.gold)
        if self._task.check == "turns":
            self._passed += self._grade(self._turn_calls, self._turn_expected).passed
            if line is None or self._turn + 1 >= turns:
                return self._end("" if line is None else line.text, self._passed == turns)
            self._turn += 1
            self._begin_turn()
        elif line is None:
            return self._end("", self._grade(self._calls, self._expected).passed)
        self._world.hidden -= frozenset(line.reveal)
        revealed = [schema for schema in self._world.offered() if schema["name"] in line.reveal]
        schemas = [json.dumps(schema, ensure_ascii=False) for schema in revealed]
        return Step("\n".join([line.text, *schemas]), signals=self._signals(None))

    def _end(self, text: str, passed: bool) -> Step:
        self._ended = True
        return Step(text, reward=float(passed), done=True, signals=self._signals(None))

    def _grade(self, calls: Tally, expected: Tally) -> Grade:
        """Grade calls. Results count only for `check` "turns" (BFCL), the model's messages only for "end"
        (tau-bench)."""
        at_end = self._task.check == "end"
        outputs = self._task.outputs if at_end else ()
        result = grade(self._world, self._gold_state, calls, expected, self._messages, outputs)
        if at_end:
            result.responses_found = True
        return result

    def _signals(self, error: str | None) -> dict[str, Any]:
        result = self._grade(self._calls, self._expected)
        return {
            "state_match": result.state_match,
            "state_total": result.state_total,
            "functions_matched": result.functions_matched,
            "functions_total": result.functions_total,
            "turn": self._turn,
            "turns_passed": self._passed,
            "errors": self._calls.errors,
            "error_type": error,
        }

    def _bad(self, text: str) -> Step:
        return Step(text, outcome="model_error", signals=self._signals("bad_call"))
