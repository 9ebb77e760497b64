"""FunctionsEnv: action = a JSON list of calls, or {"message": text} to the user; observation = their results, or the
user's answer.

A call that is wrong is told to the model and trained (outcome model_error, signals.error_type): `unknown_function`,
`bad_call`, `refused` (the function says why). signals on every step, of the whole episode so far: state_match,
state_total, functions_matched, functions_total (what `reward.name = "artist"` with `functions = true` reads), turn,
turns_passed, errors. The last step has a reward: 1.0 iff every turn passed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from env_servers.actions import BadAction, cut_to_reply, read_json
from env_servers.env import Env, Step

from .grade import Grade, Tally, grade, run, state_texts
from .task import FunctionTask
from .tools import World
from .users import User, user_of

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...], or {"message": text} to the user'
MAX_CALLS = 64
"""Calls of one action that are carried out."""


class FunctionsEnv(Env):
    def __init__(self, make_user: Callable[[FunctionTask], User] = lambda task: user_of(task, None, "", 60.0)) -> None:
        self._make_user = make_user

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError (pydantic's) for a task that is malformed or whose gold cannot be carried out."""
        self._task = FunctionTask.model_validate(task)
        self._world = self._task.world()
        self._gold = self._task.world()
        self._task.run_gold(self._task.world())
        self._user = self._make_user(self._task)
        self._turn = 0
        self._passed = 0
        self._ended = False
        self._made = Tally()
        self._expected = Tally()
        self._messages: list[str] = []
        self._begin_turn()
        return ""

    def _begin_turn(self) -> None:
        """The gold calls of the turn that begins are carried out on the gold world."""
        everything = World(self._gold.domains)
        gold = [run(everything, c.name, c.arguments) for c in self._task.gold[self._turn]]
        self._expected.add(gold)
        self._of_turn = Tally()
        self._expected_of_turn = Tally(gold)
        self._gold_state = state_texts(self._gold)

    async def step(self, action: str, deadline_s: float) -> Step:
        if self._ended:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals(None))
        try:
            said = read_json(action)
        except BadAction as e:
            return self._bad(f"{e} Send {ACTION}.")
        if isinstance(said, dict) and isinstance(said.get("message"), str):
            return await self._message(said["message"])
        calls = said if isinstance(said, list) else [said]
        if (
            not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in calls)
            or not 0 < len(calls) <= MAX_CALLS
        ):
            return self._bad(f"This is no list of 1 to {MAX_CALLS} calls. Send {ACTION}.")
        made = [run(self._world, c["name"], c.get("arguments", {})) for c in calls]
        self._made.add(made)
        self._of_turn.add(made)
        lines = [
            json.dumps({"error": m.error} if m.error else {"result": json.loads(m.result)}, ensure_ascii=False)
            for m in made
        ]
        wrong = next((m for m in made if m.error), None)
        kind = (
            None
            if wrong is None
            else "unknown_function"
            if wrong.name not in self._world.owner or wrong.name in self._world.hidden
            else "refused"
        )
        return Step(
            cut_to_reply("\n".join(lines)), outcome="model_error" if wrong else "ok", signals=self._signals(kind)
        )

    async def _message(self, text: str) -> Step:
        """The model's turn is over: it is graded, and the user answers."""
        self._messages.append(text)
        line = await self._user.answer(text)
        turns = len(self._task.gold)
        if self._task.check == "turns":
            self._passed += self._grade(self._of_turn, self._expected_of_turn).passed
            if line is None or self._turn + 1 >= turns:
                return self._end("" if line is None else line.text, self._passed == turns)
            self._turn += 1
            self._begin_turn()
        elif line is None:
            return self._end("", self._grade(self._made, self._expected).passed)
        self._world.hidden -= frozenset(line.reveal)
        shown = [json.dumps(s, ensure_ascii=False) for s in self._world.offered() if s["name"] in line.reveal]
        return Step("\n".join([line.text, *shown]), signals=self._signals(None))

    def _end(self, text: str, passed: bool) -> Step:
        self._ended = True
        return Step(text, reward=float(passed), done=True, signals=self._signals(None))

    def _grade(self, made: Tally, expected: Tally) -> Grade:
        """Results are compared by BFCL only, what was said by tau-bench only."""
        at_end = self._task.check == "end"
        g = grade(self._world, self._gold_state, made, expected, self._messages, self._task.outputs if at_end else ())
        g.responses_found |= at_end
        return g

    def _signals(self, error: str | None) -> dict[str, Any]:
        g = asdict(self._grade(self._made, self._expected))
        kept = {k: g[k] for k in ("state_match", "state_total", "functions_matched", "functions_total")}
        return {
            **kept,
            "turn": self._turn,
            "turns_passed": self._passed,
            "errors": self._made.errors,
            "error_type": error,
        }

    def _bad(self, text: str) -> Step:
        return Step(text, outcome="model_error", signals=self._signals("bad_call"))
