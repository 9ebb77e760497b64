"""An agent for the help desk that knows the gold: a task that it does not solve in the environment is broken."""

from __future__ import annotations

import json

from env_servers.functions.task import FunctionTask


class Solver:
    """An agent that knows the gold: it asks the name, makes the gold calls one by one, and says what must be said.

    Attributes:
        actions: Its actions, in order.
    """

    def __init__(self, task: FunctionTask) -> None:
        calls = [json.dumps([call.model_dump()]) for call in task.gold[0]]
        closing = " ".join(["That is done.", *(f"{output} EUR." for output in task.outputs)])
        self.actions = [
            json.dumps({"message": "What is your name?"}),
            *calls,
            json.dumps({"message": closing}),
            json.dumps({"message": "Goodbye."}),
        ]
