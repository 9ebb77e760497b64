"""BfclEnv: action = a JSON list of calls, or {"message": text} when the model's turn is over; observation = their
results, or the user's next turn.

Results are the package's texts, a line for each call. What is wrong with a call is among them, or said in their place,
and trained (outcome model_error, signals.error_type): `bad_call`, `unknown_function`, `refused` (the function says
why), `cpu` (it used up its CPU; the step counts as not made). signals of every step, of the whole episode so far:
state_match, state_total, functions_matched, functions_total (what reward.name = "artist" with functions = true reads),
turn, turns_passed, errors. The last step has a reward: 1.0 iff every turn passed (play.py); else signals.failed says
why the first one did not. More than the package's 20 steps in a turn end the episode with 0 (`force_terminated`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from env_servers.actions import BadAction, read_json
from env_servers.adapters.calls import read_calls
from env_servers.env import Env, Step
from openrlhf_tir.data.bfcl.functions import Schema, offered
from openrlhf_tir.protocol import Outcome
from openrlhf_tir.rewards.workers import CpuSpent, Workers

from .play import Played, play
from .task import BfclTask, Call, parse_call
from .world import FAILED, Scene

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...], or {"message": text} at the end of the turn'
MAX_STEPS = 20
"""The limit of steps in a turn: the package's MAXIMUM_STEP_LIMIT, after which it gives the task up."""
NOW_OFFERED = "I have updated some more functions you can choose from. What about now?"
"""The package's words, behind the functions that were withheld."""


class BfclEnv(Env):
    def __init__(self, workers: Workers, functions: Mapping[str, Sequence[Schema]]) -> None:
        """`functions`: schemas by class. `workers` have the package's classes."""
        self._workers = workers
        self._functions = functions

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """The functions, where the prompt does not tell them. Raises ValueError (pydantic's) for a task that is
        malformed or cannot be made."""
        self._task = t = BfclTask.model_validate(task)
        gold = [[parse_call(text) for text in turn] for turn in t.label]
        self._scene = Scene(t.involved_classes, t.initial_config, t.long_context, gold)
        self._turns: list[list[list[Call]]] = [[]]
        self._steps = 0
        self._errors = 0
        self._ended = False
        try:
            self._played: Played = await self._workers.run(play, self._scene, self._turns, 0)
        except CpuSpent as e:
            raise ValueError(f"the true calls of {t.id} cannot be carried out: {e}") from None
        return (
            ""
            if t.functions_told
            else "\n".join(["# Functions", *self._told(offered(self._functions, t.involved_classes, t.withheld))])
        )

    def _told(self, functions: Sequence[Schema]) -> list[str]:
        return [json.dumps(f, ensure_ascii=False) for f in functions]

    async def step(self, action: str, deadline_s: float) -> Step:
        if self._ended:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals(None))
        try:
            said = read_json(action)
            if isinstance(said, dict) and isinstance(said.get("message"), str):
                return await self._message()
            calls = [Call(name, (), arguments) for name, arguments in read_calls(action)]
        except BadAction as e:
            self._errors += 1
            return self._counted(str(e), "bad_call")
        turns = [*self._turns[:-1], [*self._turns[-1], calls]]
        try:
            played = await self._workers.run(play, self._scene, turns, len(turns) - 1)
        except CpuSpent:
            self._errors += 1
            return self._counted(
                f"{FAILED}the call takes more than {self._workers.cpu_s:g} s of CPU. Nothing was changed.", "cpu"
            )
        self._turns = turns
        self._played = played
        self._errors += len(played.errors)
        return self._counted(played.text, played.errors[0] if played.errors else None)

    def _counted(self, text: str, error: str | None) -> Step:
        """A step within the turn, unless it is one too many."""
        self._steps += 1
        outcome: Outcome = "model_error" if error else "ok"
        if self._steps > MAX_STEPS:
            self._ended = True
            return Step(
                text,
                reward=0.0,
                done=True,
                outcome=outcome,
                signals=self._signals(error) | {"failed": "force_terminated"},
            )
        return Step(text, outcome=outcome, signals=self._signals(error))

    async def _message(self) -> Step:
        """The model's turn is over: it is graded, and the user's next one begins."""
        over = len(self._turns)
        last = over == len(self._task.label)
        turns = self._turns if last else [*self._turns, []]
        try:
            self._played = await self._workers.run(play, self._scene, turns, over)
        except CpuSpent:  # the calls of a turn, each within its bound, are not together
            self._ended = True
            self._errors = self._errors + 1
            return Step(
                "", reward=0.0, done=True, outcome="model_error", signals=self._signals("cpu") | {"failed": "cpu"}
            )
        self._turns = turns
        self._steps = 0
        if last:
            self._ended = True
            failed = next((f for f in self._played.failed if f), None)
            return Step("", reward=float(failed is None), done=True, signals=self._signals(None) | {"failed": failed})
        return Step(self._says(over), signals=self._signals(None))

    def _says(self, turn: int) -> str:
        """The user's words at the beginning of a turn, counted from 0."""
        lines = [str(m.get("content", "")) for m in self._task.turns[turn - 1]]
        if names := self._task.missed_function.get(str(turn)):
            every = offered(self._functions, self._task.involved_classes)
            lines = [*self._told([f for f in every if f["name"] in names]), *(lines or [NOW_OFFERED])]
        return "\n".join(lines)

    def _signals(self, error: str | None) -> dict[str, Any]:
        p = self._played
        passed = sum(f is None for f in p.failed)
        counts = {
            "state_match": p.state_match,
            "state_total": p.state_total,
            "functions_matched": p.functions_matched,
            "functions_total": p.functions_total,
        }
        return {
            **counts,
            "turn": len(self._turns) - 1,
            "turns_passed": passed,
            "errors": self._errors,
            "error_type": error,
        }
