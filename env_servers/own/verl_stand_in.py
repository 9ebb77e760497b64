"""A stand-in for the part of verl that a file with tools imports, for machines without verl.

    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
    from verl.utils.rollout_trace import rollout_trace_op

Names and behaviour are verl's; the code is not. It is installed only after such an import has failed and if verl is not
installed. Whatever else a file imports from verl needs verl itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

STANDS_FOR = (
    "verl",
    "verl.tools",
    "verl.tools.base_tool",
    "verl.tools.schemas",
    "verl.utils",
    "verl.utils.rollout_trace",
)
"""Modules that the stand-in replaces."""


class ToolResponse(BaseModel):
    """What a tool answers: text, and pictures or videos, which are not shown here."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    def is_empty(self) -> bool:
        """Return True if it holds nothing."""
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        """Return True if it holds text alone."""
        return bool(self.text) and not (self.image or self.video)


class _Schema(BaseModel):
    model_config = ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Schema):
    """A parameter of a tool."""

    type: Any = None
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Schema):
    """The parameters of a tool."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = {}
    required: list[str] = []


class OpenAIFunctionSchema(_Schema):
    """A tool's name, description and parameters."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(_Schema):
    """A tool in the form of OpenAI's API."""

    type: str = "function"
    function: OpenAIFunctionSchema


class BaseTool:
    """The base class of verl's tools."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> Any:
        """Return the schema that the tool was made with; tools override it."""
        return self.tool_schema

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Begin an episode; return the instance's name and what the tool says at first."""
        return instance_id or str(uuid4()), ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        """Answer one call: (response, reward of the step, metrics)."""
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return what the episode is worth so far."""
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End an episode."""


def rollout_trace_op(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is: calls are recorded by the run itself."""
    return function


def install(module_name: str | None) -> bool:
    """Put the stand-in where `import verl` finds it. Return True if `module_name` is one of its modules and was
    missing."""
    if module_name not in STANDS_FOR or module_name in sys.modules or importlib.util.find_spec("verl") is not None:
        return False
    for name in STANDS_FOR:
        module = ModuleType(name, __doc__)
        module.__path__ = []  # a package without files
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    contents: dict[str, Sequence[Any]] = {
        "verl.tools.schemas": (
            *(ToolResponse, OpenAIFunctionToolSchema, OpenAIFunctionSchema),
            *(OpenAIFunctionParametersSchema, OpenAIFunctionPropertySchema),
        ),
        "verl.tools.base_tool": (BaseTool, ToolResponse, OpenAIFunctionToolSchema),
        "verl.utils.rollout_trace": (rollout_trace_op,),
    }
    for name, members in contents.items():
        for member in members:
            setattr(sys.modules[name], member.__name__, member)
    return True
