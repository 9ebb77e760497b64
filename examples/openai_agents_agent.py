"""openai-agents: python examples/openai_agents_agent.py RUN_DIR, beside a run with --rollout.agent external
--vllm.tool_call_parser hermes"""

import asyncio

import openai_agent
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded
from openai import AsyncOpenAI
from task_loop import run

set_tracing_disabled(True)
calculate = function_tool(openai_agent.calculate)


async def answer(base_url, key, prompt):
    async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
        agent = Agent("solver", model=OpenAIChatCompletionsModel("policy", client), tools=[calculate])
        return (await Runner.run(agent, prompt, max_turns=4)).final_output


def solve(base_url, key, task):
    try:
        return float(asyncio.run(answer(base_url, key, task["prompt"])).strip().endswith(task["label"]))
    except MaxTurnsExceeded:
        return 0.0


if __name__ == "__main__":
    run(solve)
