"""An environment whose action is a JSON list of calls, or {"message": text} when the model's turn is over.

The observation is the results of the calls, or the user's next turn. Results are the package's texts, a line for each
call. An error of a call is among them or takes their place, and is trained (outcome model_error, signals.error_type):
`bad_call`, `unknown_function`, `refused` (the function says why), `cpu` (it used up its CPU; the step counts as not
made).

Signals of every step, over the whole episode so far: state_match, state_total, functions_matched, functions_total (read
by reward.name = "artist" with functions = true), turn, turns_passed, errors. The last step has a reward: 1.0 if every
turn passed (play.py), else 0.0 and signals.failed says why the first one did not. More than the package's 20 steps in a
turn end the episode with 0 (`force_terminated`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from env_servers.actions import CALLS, BadAction, read_message_or_calls
from env_servers.env import Env, Step
from openrlhf_tir.data.bfcl.functions import Schema, offered
from openrlhf_tir.protocol import Outcome
from openrlhf_tir.rewards.workers import CpuSpent, Workers

from .play import Played, play
from .task import BfclTask, Call, parse_call
from .world import FAILED, Scene

ACTION = f'{CALLS}, or {{"message": text}} at the end of the turn'
MAX_STEPS = 20
"""Steps of a turn: the package's MAXIMUM_STEP_LIMIT, after which it ends the task."""
NOW_OFFERED = "I have updated some more functions you can choose from. What about now?"
"""The package's words, after the functions that were withheld."""


class BfclEnv(Env):
    """An episode of one multi-turn task."""

    def __init__(self, workers: Workers, functions: Mapping[str, Sequence[Schema]]) -> None:
        """Create the environment.

        Args:
            workers: Worker processes that have imported the package's classes.
            functions: Schemas by class.
        """
        self._workers = workers
        self._functions = functions

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start a task and return its functions, if the prompt does not have them.

        Raises:
            ValueError: As pydantic's: the task is malformed, or its classes or true calls cannot be used.
        """
        self._task = BfclTask.model_validate(task)
        gold = [[parse_call(text) for text in turn] for turn in self._task.label]
        self._scene = Scene(self._task.involved_classes, self._task.initial_config, self._task.long_context, gold)
        self._turns: list[list[list[Call]]] = [[]]
        self._steps = 0
        self._errors = 0
        self._ended = False
        try:
            self._played: Played = await self._workers.run(play, self._scene, self._turns, 0)
        except CpuSpent as e:
            raise ValueError(f"the true calls of {self._task.id} cannot be carried out: {e}") from None
        if self._task.functions_told:
            return ""
        functions = offered(self._functions, self._task.involved_classes, self._task.withheld)
        return "\n".join(["# Functions", *self._schema_lines(functions)])

    def _schema_lines(self, functions: Sequence[Schema]) -> list[str]:
        return [json.dumps(schema, ensure_ascii=False) for schema in functions]

    async def step(self, action: str, deadline_s: float) -> Step:
        """Carry out calls, or end the model's turn."""
        if self._ended:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals(None))
        try:
            request = read_message_or_calls(action, ACTION)
        except BadAction as e:
            self._errors += 1
            return self._step(str(e), "bad_call")
        if isinstance(request, str):
            return await self._message()
        calls = [Call(name, (), arguments) for name, arguments in request]
        turns = [*self._turns[:-1], [*self._turns[-1], calls]]
        try:
            played = await self._workers.run(play, self._scene, turns, len(turns) - 1)
        except CpuSpent:
            self._errors += 1
            cpu_s = self._workers.limits.cpu.seconds  # type: ignore[union-attr]  # these workers have a budget
            return self._step(f"{FAILED}the call takes more than {cpu_s:g} s of CPU. Nothing was changed.", "cpu")
        self._turns = turns
        self._played = played
        self._errors += len(played.errors)
        return self._step(played.text, played.errors[0] if played.errors else None)

    def _step(self, text: str, error: str | None) -> Step:
        """Count a step of the turn and return it. It ends the episode if it is one too many."""
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
        """End the model's turn: grade it, and begin the user's next turn or end the episode."""
        ended_turns = len(self._turns)
        is_last = ended_turns == len(self._task.label)
        turns = self._turns if is_last else [*self._turns, []]
        try:
            self._played = await self._workers.run(play, self._scene, turns, ended_turns)
        except CpuSpent:  # each call was within the limit, but all calls of the episode together are not
            self._ended = True
            self._errors = self._errors + 1
            return Step(
                "", reward=0.0, done=True, outcome="model_error", signals=self._signals("cpu") | {"failed": "cpu"}
            )
        self._turns = turns
        self._steps = 0
        if is_last:
            self._ended = True
            failed = next((reason for reason in self._played.failed if reason), None)
            return Step("", reward=float(failed is None), done=True, signals=self._signals(None) | {"failed": failed})
        return Step(self._user_message(ended_turns), signals=self._signals(None))

    def _user_message(self, turn: int) -> str:
        """Return what the user says at the beginning of a turn, counted from 0."""
        lines = [str(message.get("content", "")) for message in self._task.turns[turn - 1]]
        if names := self._task.missed_function.get(str(turn)):
            functions = offered(self._functions, self._task.involved_classes)
            lines = [
                *self._schema_lines([schema for schema in functions if schema["name"] in names]),
                *(lines or [NOW_OFFERED]),
            ]
        return "\n".join(lines)

    def _signals(self, error: str | None) -> dict[str, Any]:
        played = self._played
        return {
            "state_match": played.state_match,
            "state_total": played.state_total,
            "functions_matched": played.functions_matched,
            "functions_total": played.functions_total,
            "turn": len(self._turns) - 1,
            "turns_passed": sum(reason is None for reason in played.failed),
            "errors": self._errors,
            "error_type": error,
        }
