"""OpenEnv servers written with the package's own base classes: an echo with a text field, a counter with typed ones."""

import os
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Heard(Observation):
    reply: str = ""


class EchoEnvironment(Environment[Say, Heard, State]):
    """Ends on "bye"; "die" ends the server, "fail" raises."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, greeting="hello", **more):
        self._heard = 0
        return Heard(reply=f"{greeting} {seed}")

    def step(self, action, timeout_s=None, **more):
        if action.message == "die":
            os._exit(3)
        if action.message == "fail":
            raise RuntimeError("broken inside")
        self._heard += 1
        over = action.message == "bye"
        return Heard(reply=f"{self._heard}: {action.message}", reward=1.0 if over else None, done=over)

    @property
    def state(self):
        return State()


class Add(Action):
    """Adds to the total."""

    amount: int


class Total(Observation):
    total: int = 0
    goal: int = 0


class AddEnvironment(Environment[Add, Total, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self._total = 0
        return Total(total=0, goal=3)

    def step(self, action, timeout_s=None, **more):
        self._total += action.amount
        return Total(total=self._total, goal=3, reward=float(self._total == 3), done=self._total >= 3)

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    kind, port = sys.argv[1:]
    parts = {"echo": (EchoEnvironment, Say, Heard), "add": (AddEnvironment, Add, Total)}[kind]
    uvicorn.run(
        create_fastapi_app(*parts, max_concurrent_envs=2), host="127.0.0.1", port=int(port), log_level="warning"
    )
