"""A Python environment whose calls share one interpreter, like the cells of a notebook. Lost state is reported.

    reset  task["stateful"] says whether the session keeps state; without it, the server's --stateful
    step   Notebook.run(code) -> `judge` -> Step, with RESTARTED if earlier state is gone

Signals, besides those of `judge`: state_lost, True if state was lost by this call or since the last answered one. A
session without state behaves as `PythonEnv`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from env_servers.env import Step

from . import conventions
from .env import PythonEnv, judge
from .sandbox import Sandbox
from .warm.notebooks import Cell, Notebook, Notebooks

RESTARTED = "[Python was restarted: variables, imports and files of earlier calls are gone.]\n"
"""Line that tells the model that its earlier state is gone."""


class StatefulEnv(PythonEnv):
    """An environment whose session keeps its interpreter, if the task asks for it."""

    def __init__(self, sandbox: Sandbox, notebooks: Notebooks, *, stateful: bool) -> None:
        """Create the environment of one session.

        Args:
            sandbox: Runs the calls of a session without state.
            notebooks: The server's interpreters that keep state.
            stateful: Default for a task that does not say.
        """
        super().__init__(sandbox)
        self._notebooks = notebooks
        self._stateful = stateful
        self._notebook: Notebook | None = None

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Read from the task whether state is kept, and the convention. Raises ValueError for a malformed task."""
        stateful = task.get("stateful", self._stateful)
        if not isinstance(stateful, bool):
            raise ValueError(f'task["stateful"] is {stateful!r}. Send true or false, or leave it out.')
        self._convention = conventions.convention_of(task)
        self._notebook = Notebook(self._notebooks) if stateful else None
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Run the action in the session's interpreter, or as a script of its own."""
        if self._notebook is None:
            return await super().step(action, deadline_s)
        return step_of_cell(await self._notebook.run(action), self._convention)

    async def close(self) -> None:
        """End the session's interpreter."""
        if self._notebook is not None:
            await self._notebook.close()


def step_of_cell(cell: Cell, convention: str = conventions.DEFAULT) -> Step:
    """Return the step of a cell: as for any execution, with RESTARTED where state is gone.

    The line stands first if the cell ran in a new interpreter, and last if the interpreter died in it.
    """
    step = judge(cell.execution, convention)
    text = step.observation
    if cell.restarted and cell.alive:
        text = RESTARTED + text
    elif cell.restarted:
        separator = "\n" if text and not text.endswith("\n") else ""
        text = text + separator + RESTARTED
    return replace(step, observation=text, signals={**step.signals, "state_lost": cell.restarted})
