"""StatefulEnv: PythonEnv whose calls share one interpreter, as cells of a notebook do. Loss of state is told to the
model.

    reset  task["stateful"] says whether this session keeps state; the server's --stateful where the task does not
    step   Notebook.run(code) -> `judge` -> Step, with RESTARTED where earlier state is gone

signals, besides `judge`'s: state_lost (by this call, or since the last one that was answered). A session without state
is `PythonEnv`'s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from env_servers.env import Step

from . import conventions
from .env import PythonEnv, judge
from .sandbox import Sandbox
from .warm.notebooks import Cell, Notebook, Notebooks

RESTARTED = "[Python was restarted: variables, imports and files of earlier calls are gone.]\n"


class StatefulEnv(PythonEnv):
    def __init__(self, sandbox: Sandbox, notebooks: Notebooks, *, stateful: bool) -> None:
        super().__init__(sandbox)
        self._notebooks = notebooks
        self._stateful = stateful
        self._notebook: Notebook | None = None

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        wanted = task.get("stateful", self._stateful)
        if not isinstance(wanted, bool):
            raise ValueError(f'task["stateful"] is {wanted!r}. Send true or false, or leave it out.')
        self._convention = conventions.wanted(task)
        self._notebook = Notebook(self._notebooks) if wanted else None
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        if self._notebook is None:
            return await super().step(action, deadline_s)
        return told(await self._notebook.run(action), self._convention)

    async def close(self) -> None:
        if self._notebook is not None:
            await self._notebook.close()


def told(cell: Cell, convention: str = conventions.DEFAULT) -> Step:
    """The step of a cell: as any execution's, and a line where the model would otherwise rely on state that is gone."""
    step = judge(cell.execution, convention)
    text = step.observation
    if cell.restarted:
        text = RESTARTED + text if cell.alive else text + ("\n" if text and not text.endswith("\n") else "") + RESTARTED
    return replace(step, observation=text, signals={**step.signals, "state_lost": cell.restarted})
