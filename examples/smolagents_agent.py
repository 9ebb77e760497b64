"""smolagents: python examples/smolagents_agent.py RUN_DIR, beside a run with --rollout.agent external
--vllm.tool_call_parser hermes"""

import openai_agent
from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from task_loop import run


@tool
def calculate(expression: str) -> str:
    """Integer arithmetic.

    Args:
        expression: such as 12*34
    """
    return openai_agent.calculate(expression)


def solve(base_url, key, task):
    model = OpenAIServerModel("policy", api_base=base_url, api_key=key)
    agent = ToolCallingAgent([calculate], model, max_steps=4, verbosity_level=LogLevel.OFF)
    return float(str(agent.run(task["prompt"])).strip().endswith(task["label"]))


if __name__ == "__main__":
    run(solve)
