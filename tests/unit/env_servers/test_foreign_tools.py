"""Tools written for verl and TRL are environments as they are: from a Python file, or from verl's YAML."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import httpx
import pytest

from env_servers.serving import ServingConfig, create_env_app
from openrlhf_tir.config import own_files
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code.plugins import ENVIRONMENT, load

TRL = '''
"""Tools as TRL takes them."""
import asyncio
from urllib.error import HTTPError


def multiply(a: int, b: int = 2) -> int:
    """Multiply two integers.

    Args:
        a: The first factor.
        b: The second factor.

    Returns:
        The product.
    """
    return a * b


async def look_up(word: str) -> dict:
    """Look a word up.

    Args:
        word: What to look up.
    """
    await asyncio.sleep(0)
    return {"word": word}[word] if word == "fail" else {"word": word}


def execute(text: str) -> None:
    """Execute a text.

    Args:
        text: A text.
    """
    exec(text)


def broken(a: int) -> int:
    """Fail whatever it is given.

    Args:
        a: A number.
    """
    return nothing_of_that_name


def offline(path: str) -> str:
    """Ask a service that is down or answers with a status, or open a file.

    Args:
        path: A file; "service" asks the service, a number is its status.
    """
    if path == "service":
        raise ConnectionRefusedError("the service is down")
    if path.isdigit():
        raise HTTPError("http://service", int(path), "refused", None, None)
    return open(path).read()


TOOLS = [multiply, look_up]


def undocumented(a: int) -> int:
    return a


def unhinted(a) -> int:
    """Take anything.

    Args:
        a: Anything.
    """
    return a
'''
VERL = '''
from typing import Any, Optional
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Guess(BaseTool):
    """Says whether a guess is too low; one object serves all trajectories."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.open = {}

    async def create(self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs):
        if ground_truth is None:
            ground_truth = kwargs.get("create_kwargs", {}).get("ground_truth")
        self.open[instance_id or str(uuid4())] = {"truth": ground_truth, "best": 0.0}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        state = self.open[instance_id]
        right = parameters["answer"] == state["truth"]
        state["best"] = max(state["best"], float(right))
        return ToolResponse(text=f"{self.config.get('word', 'so')}: {right}"), 0.5 if right else -0.1, {"right": right}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return self.open[instance_id]["best"]

    async def release(self, instance_id: str, **kwargs) -> None:
        del self.open[instance_id]
'''
WAITING = '''
import threading

may_end = threading.Event()


def wait(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    may_end.wait(seconds)
    return "done"
'''
YAML = """
tools:
  - class_name: "guessing_tool_of_a_test.Guess"
    config:
      type: native
      word: verdict
    tool_schema:
      type: "function"
      function:
        name: "guess"
        description: "Says whether an answer is right."
        parameters:
          type: "object"
          properties:
            answer:
              type: "string"
              description: "the answer"
          required: ["answer"]
"""
ENVIRONMENT_OF_TRL = '''
class Counter:
    """Counts; TRL makes one for each rollout."""

    def __init__(self):
        self.n = 0

    def reset(self, start: int = 0, **kwargs) -> str:
        self.n = start
        return f"It is {self.n}."

    def add(self, amount: int) -> str:
        """Add to the counter.

        Args:
            amount: How much.

        Returns:
            The new value.
        """
        self.n += amount
        return f"Now {self.n}."

    def get_reward(self) -> float:
        return self.n / 10
'''


def action(*calls) -> str:
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])


@pytest.fixture
def trl(tmp_path):
    path = tmp_path / "tools.py"
    path.write_text(TRL)
    return str(path)


async def opened(cls, **row):
    env = cls()
    return env, await env.reset({"label": "42", "extra": row}, seed=0)


async def test_functions_of_trl_are_tools_with_schemas_from_hints_and_docstrings(trl):
    cls = load(ENVIRONMENT, f"{trl}:TOOLS")
    assert [tool["function"]["name"] for tool in cls.tools] == ["multiply", "look_up"]
    parameters = cls.tools[0]["function"]["parameters"]
    assert parameters["required"] == ["a"] and parameters["properties"]["b"]["type"] == "integer"
    env, first = await opened(cls)
    step = await env.step(action(("multiply", {"a": 6, "b": 7})), 5.0)
    assert first == "" and (step.observation, step.outcome, step.reward) == ("42", "ok", None)
    several = await env.step(action(("look_up", {"word": "x"}), ("multiply", {"a": 2})), 5.0)
    assert several.observation == "{'word': 'x'}\n4" and several.signals["calls"] == 3


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("multiply", {"c": 1}), "bad_call"),
        (("multiply", {}), "bad_call"),
        (("divide", {}), "unknown_function"),
        (("look_up", {"word": "fail"}), "refused"),
    ],
)
async def test_a_wrong_call_is_answered_with_the_error(trl, call, error):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:TOOLS"))
    step = await env.step(action(call), 5.0)
    assert step.outcome == "model_error" and step.signals["error_type"] == error and step.observation


@pytest.mark.parametrize(
    "text", ["1 +", "nothing", "import nothing_of_that_name", "1 / 0", "raise NotImplementedError"]
)
async def test_an_error_of_the_model_s_own_code_in_a_tool_is_shown_to_the_model(trl, text):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:execute"))
    step = await env.step(action(("execute", {"text": text})), 5.0)
    assert (step.outcome, step.signals["error_type"]) == ("model_error", "refused")


async def test_a_name_error_in_a_tool_is_a_defect_and_not_an_observation(trl):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:broken"))
    with pytest.raises(NameError):
        await env.step(action(("broken", {"a": 1})), 5.0)


async def test_an_unreachable_service_fails_the_step_and_is_not_shown_to_the_model(trl):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:offline"))
    with pytest.raises(ConnectionRefusedError):
        await env.step(action(("offline", {"path": "service"})), 5.0)


async def test_a_wrong_key_of_a_service_fails_the_step_and_a_page_that_does_not_exist_is_shown_to_the_model(trl):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:offline"))
    with pytest.raises(OSError, match="401"):
        await env.step(action(("offline", {"path": "401"})), 5.0)
    step = await env.step(action(("offline", {"path": "404"})), 5.0)
    assert (step.outcome, step.signals["error_type"]) == ("model_error", "refused")


@pytest.mark.parametrize("path", ["no/such/file", "x" * 5000, "a\0b"])
async def test_a_wrong_path_in_a_call_is_a_model_error_and_not_an_outage(trl, path):
    env, _ = await opened(load(ENVIRONMENT, f"{trl}:offline"))
    step = await env.step(action(("offline", {"path": path})), 5.0)
    assert (step.outcome, step.signals["error_type"]) == ("model_error", "refused")


async def test_a_defect_of_a_tool_is_reported_with_file_and_line_and_is_not_an_outage(trl):
    factory = load(ENVIRONMENT, f"{trl}:broken")
    app = create_env_app(factory, ServingConfig(env="tools", action="calls"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://env") as http:
        session = (await http.post("/reset", json={"task": {"label": ""}})).json()["session_id"]
        request = {"session_id": session, "step_id": 0, "action": action(("broken", {"a": 1})), "deadline_s": 5.0}
        signals = (await http.post("/step", json=request)).json()["signals"]
    line = TRL.splitlines().index("    return nothing_of_that_name") + 1
    assert signals["code_defect"] == f"{trl}:{line}"


@pytest.mark.parametrize("name", ["undocumented", "unhinted"])
def test_a_function_that_cannot_be_described_is_refused_with_file_and_line(trl, name):
    with pytest.raises(ConfigError, match=rf"tools\.py:\d+: {name}"):
        load(ENVIRONMENT, f"{trl}:{name}")


def test_tools_without_tensors_are_described_without_torch(trl, monkeypatch):
    """Every process of their server would import it, for two CPU seconds. With None in its place an import fails."""
    from transformers.utils import is_torch_available

    is_torch_available()  # transformers asks once, also for the tests after this one
    monkeypatch.setitem(sys.modules, "torch", None)
    assert len(load(ENVIRONMENT, f"{trl}:TOOLS").tools) == 2


async def test_an_environment_of_trl_has_its_methods_as_tools_and_its_reward(tmp_path):
    (tmp_path / "counter.py").write_text(ENVIRONMENT_OF_TRL)
    cls = load(ENVIRONMENT, f"{tmp_path / 'counter.py'}:Counter")
    env, first = await opened(cls, start=3)
    assert first == "It is 3." and [tool["function"]["name"] for tool in cls.tools] == ["add"]
    rewards = [(await env.step(action(("add", {"amount": n})), 5.0)).reward for n in (4, -2)]
    assert rewards == [pytest.approx(0.7), pytest.approx(-0.2)], "they add up to the last get_reward()"
    other, _ = await opened(cls, start=0)
    assert (await other.step(action(("add", {"amount": 1})), 5.0)).observation == "Now 1."
    for session in (env, other):
        await session.close()


async def test_calls_that_never_return_leave_the_threads_of_other_calls_alone(tmp_path):
    path = tmp_path / "tools.py"
    path.write_text(WAITING)
    env, _ = await opened(load(ENVIRONMENT, f"{path}:wait"))
    hanging = [asyncio.create_task(env.step(action(("wait", {"seconds": 600.0})), 5.0)) for _ in range(40)]
    await asyncio.sleep(0)  # they are called before the other
    try:
        async with asyncio.timeout(60):
            assert (await env.step(action(("wait", {"seconds": 0.0})), 5.0)).observation == "done"
        assert not any(step.done() for step in hanging)
    finally:
        env.callables[0].function.__globals__["may_end"].set()
        await asyncio.gather(*hanging)


async def test_a_machine_without_threads_fails_the_step_and_is_not_shown_to_the_model(trl, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    env, _ = await opened(load(ENVIRONMENT, f"{trl}:TOOLS"))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(BlockingIOError):
            await env.step(action(("multiply", {"a": 3})), 5.0)


@pytest.fixture
def verl(tmp_path, monkeypatch):
    """verl's YAML file beside the module that it names, on a machine without verl."""
    (tmp_path / "guessing_tool_of_a_test.py").write_text(VERL)
    (tmp_path / "tools.yaml").write_text(YAML)
    yield str(tmp_path / "tools.yaml")
    for name in [n for n in sys.modules if n == "verl" or n.startswith(("verl.", "guessing_tool"))]:
        del sys.modules[name]


async def test_a_tool_of_verl_runs_from_its_yaml_without_verl(verl):
    cls = load(ENVIRONMENT, verl)
    assert cls.tools[0]["function"]["name"] == "guess" and cls.tools[0]["type"] == "function"
    kwargs = {"guess": {"create_kwargs": {"ground_truth": "42"}}}
    env, _ = await opened(cls, extra_info={"need_tools_kwargs": True, "tools_kwargs": kwargs})
    other, _ = await opened(cls, tools_kwargs={"guess": {"create_kwargs": {"ground_truth": "7"}}})
    wrong_call, right = [await env.step(action(("guess", {"answer": a})), 5.0) for a in ("7", "42")]
    assert (wrong_call.observation, wrong_call.reward) == ("verdict: False", -0.1)
    assert (right.observation, right.reward) == ("verdict: True", 0.5)
    assert right.signals["tool_scores"] == {"guess": 1.0}
    assert (await other.step(action(("guess", {"answer": "7"})), 5.0)).reward == 0.5
    tool = cls.callables[0].tool
    await env.close()
    assert len(tool.open) == 1
    await other.close()
    assert not tool.open


async def test_a_missing_argument_of_a_verl_tool_is_a_model_error(verl):
    env, _ = await opened(load(ENVIRONMENT, verl))
    step = await env.step(action(("guess", {})), 5.0)
    assert step.outcome == "model_error" and step.signals["error_type"] == "refused"


async def test_a_tool_whose_release_fails_keeps_no_other_tool_from_its_own(verl):
    second_tool = YAML.partition("tools:\n")[2].replace('name: "guess"', 'name: "guess_again"')
    Path(verl).write_text(YAML + second_tool)
    cls = load(ENVIRONMENT, verl)
    env, _ = await opened(cls)
    first, second = [tool.tool for tool in cls.callables]
    first.open.clear()  # its release raises KeyError
    with pytest.raises(KeyError):
        await env.close()
    assert not second.open


def test_a_verl_tool_class_without_its_yaml_is_refused_with_the_remedy(verl):
    with pytest.raises(ConfigError, match="YAML"):
        load(ENVIRONMENT, verl.replace("tools.yaml", "guessing_tool_of_a_test.py") + ":Guess")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "tools"),
        ("tools: [{config: {}}]", "class_name"),
        ("tools: [{class_name: no_such_module_here.Tool}]", "no_such_module_here"),
        ("tools: [{class_name: verl.tools.gsm8k_tool.Gsm8kTool}]", "verl"),
        ("tools: [{class_name: json.JSONDecoder, config: {type: mcp}}]", "mcp"),
        ("tools: [{class_name: json.JSONDecoder, config: [1]}]", r"tools\[0\]: .* \[1\], "),
        ("tools: [{class_name: json.JSONDecoder, tool_schema: {type: function}}]", r"tool_schema\.function"),
        ("tools: [", r"t\.yaml .*: while parsing a flow node"),
    ],
)
def test_a_yaml_that_cannot_be_used_is_refused(tmp_path, text, named):
    (tmp_path / "t.yaml").write_text(text)
    try:
        with pytest.raises(ConfigError, match=named):
            load(ENVIRONMENT, str(tmp_path / "t.yaml"))
    finally:
        for name in [n for n in sys.modules if n == "verl" or n.startswith("verl.")]:
            del sys.modules[name]


def test_a_yaml_file_is_relative_to_the_recipe_that_names_it(tmp_path):
    change = own_files.absolute(tmp_path)
    assert change("tools.yaml") == str(tmp_path / "tools.yaml") and change("/x/t.yml") == "/x/t.yml"
