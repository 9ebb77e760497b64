"""tau-bench's desks: a stand-in package of its layout, and a user played by a scripted model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from env_servers.adapters.tau.env import ACTION, GREETING, TauEnv
from env_servers.functions.task import UserLine

TYPES = """
from dataclasses import dataclass, field

@dataclass
class Action:
    name: str
    kwargs: dict

@dataclass
class Task:
    instruction: str
    actions: list
    outputs: list = field(default_factory=list)

@dataclass
class Response:
    observation: str
    reward: float = 0.0
    done: bool = False
"""
DESK = """
import json
from tau_bench.types import Action, Response, Task

TASKS = [
    Task("Cancel order 1 and ask what it cost.", [Action("cancel", {"order": "1"})], ["1250"]),
    Task("Only ask.", []),
]

class NAME:
    def __init__(self, user_strategy, task_split, task_index):
        self.user, self.tasks, self.task, self.wiki = None, TASKS, TASKS[task_index], "The policy."
        self.data, self.actions, self.tools_map = {"1": "open"}, [], {"cancel": None, "hand_over": None}
        self.tools_info = [{"type": "function", "function": {"name": "cancel"}}]

    def step(self, action):
        self.actions.append(action)
        if action.name == "hand_over":
            return Response("Handed over.", self.calculate_reward().reward, True)
        if action.name != "cancel":
            return Response(f"Unknown action {action.name}")
        if action.kwargs.get("order") not in self.data:
            return Response("Error: order not found")
        self.data[action.kwargs["order"]] = "cancelled"
        return Response("cancelled")

    def calculate_reward(self):
        data, self.data = self.data, {"1": "open"}
        for action in self.task.actions:
            self.step(action)
        said = [a.kwargs["content"].replace(",", "") for a in self.actions if a.name == "respond"]
        right = data == self.data and all(any(o in s for s in said) for o in self.task.outputs)
        return Response("", float(right))
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A directory whose tau_bench has the layout of the real one."""
    root = tmp_path / "tau_bench"
    for domain, name in (("airline", "MockAirlineDomainEnv"), ("retail", "MockRetailDomainEnv")):
        directory = root / "envs" / domain
        directory.mkdir(parents=True)
        (directory / "__init__.py").write_text("")
        (directory / "env.py").write_text(DESK.replace("NAME", name))
    (root / "__init__.py").write_text("")
    (root / "envs" / "__init__.py").write_text("")
    (root / "types.py").write_text(TYPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "tau_bench"]:
        del sys.modules[name]


class Said:
    """A user of lines, done after the last one."""

    def __init__(self, instruction: str, *lines: str) -> None:
        self.instruction, self.heard, self.lines = instruction, [], list(lines)

    async def answer(self, message):
        self.heard.append(message)
        return UserLine(text=self.lines.pop(0)) if self.lines else None


def call(name, **arguments):
    return json.dumps([{"name": name, "arguments": arguments}])


def message(text):
    return json.dumps({"message": text})


async def opened(index=0, *lines, domain="retail"):
    users = []

    def make_user(instruction):
        users.append(Said(instruction, *(lines or ("I want to cancel.", "Thanks."))))
        return users[0]

    env = TauEnv(make_user)
    return env, users, await env.reset({"tau_domain": domain, "split": "test", "index": index}, 0)


async def test_the_package_grades_what_was_done_and_said(package):
    env, users, first = await opened()
    assert first == "I want to cancel." and users[0].heard == [GREETING]
    assert users[0].instruction.startswith("Cancel order 1")
    done = await env.step(call("cancel", order="1"), 10)
    assert (done.observation, done.outcome, done.reward, done.done) == ("cancelled", "ok", None, False)
    told = await env.step(message("It is cancelled; it cost 1,250 dollars."), 10)
    assert (told.observation, told.done) == ("Thanks.", False)
    last = await env.step(message("Bye."), 10)
    assert (last.reward, last.done) == (1.0, True)
    after = await env.step(message("Hello?"), 10)
    assert after.done and after.reward is None and after.outcome == "model_error"


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([call("cancel", order="1"), message("Done."), message("Bye.")], 0.0),  # the price was not told
        ([message("It costs 1250."), message("Bye.")], 0.0),  # nothing was cancelled
    ],
)
async def test_part_of_the_required_actions_has_reward_0(package, actions, reward):
    env, _, _ = await opened(0, "I want to cancel.", "And?")
    for text in actions:
        last = await env.step(text, 10)
    assert (last.reward, last.done) == (reward, True)


async def test_a_wrong_call_is_answered_with_the_error_and_is_not_a_fault(package):
    env, _, _ = await opened()
    for text, kind, message_part in (
        (call("cancel", order="9"), "refused", "Error: order not found"),
        (call("fly"), "unknown_function", "Unknown action fly"),
        (call("respond", content="1250"), "bad_call", "respond is not a function"),
        ("cancel it", "bad_call", ACTION),
    ):
        step = await env.step(text, 10)
        assert (step.outcome, step.signals["error_type"], step.reward) == ("model_error", kind, None)
        assert message_part in step.observation


async def test_a_transfer_to_a_human_ends_the_dialogue(package):
    env, _, _ = await opened(1)
    last = await env.step(call("hand_over"), 10)
    assert (last.observation, last.reward, last.done) == ("Handed over.", 1.0, True)


@pytest.mark.parametrize(
    "task",
    [
        {"tau_domain": "bank", "index": 0},
        {"tau_domain": "retail"},
        {"tau_domain": "retail", "index": 99},
        {"tau_domain": "airline", "split": "train", "index": 0},
    ],
)
async def test_an_unknown_task_is_the_callers_mistake(package, task):
    with pytest.raises(ValueError):
        await TauEnv(lambda instruction: Said(instruction)).reset(task, 0)


def make_tasks(directory, *flags):
    command = [sys.executable, "-m", "env_servers.adapters.tau.make_tasks", *flags]
    paths = ":".join([str(directory), *(p for p in sys.path if p)])
    return subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": paths, "PATH": "/usr/bin"})


def test_rows_have_the_policy_and_the_functions_and_name_their_task(package, tmp_path):
    out = tmp_path / "rows.jsonl"
    done = make_tasks(package, "--domain", "airline", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [[{"role": "system", "content": "The policy."}]] * 2
    assert json.loads(rows[0]["label"]) == [{"name": "cancel", "arguments": {"order": "1"}}]
    assert [row["meta"]["index"] for row in rows] == [0, 1] and rows[0]["meta"]["chat_tools"]
    assert make_tasks(package, "--domain", "airline", "--split", "train", "--out", str(out)).returncode == 2


def test_without_the_package_it_says_what_to_install(tmp_path):
    done = make_tasks(tmp_path, "--out", str(tmp_path / "rows.jsonl"))
    assert done.returncode == 1 and "sierra-research/tau-bench" in done.stderr
