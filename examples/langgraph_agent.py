"""langgraph: python examples/langgraph_agent.py RUN_DIR, beside a run with --rollout.agent external
--vllm.tool_call_parser hermes"""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent
from openai_agent import calculate
from task_loop import run

TOOLS = [tool(calculate)]


def solve(base_url, key, task):
    model = ChatOpenAI(model="policy", base_url=base_url, api_key=key)
    try:
        end = create_react_agent(model, TOOLS).invoke({"messages": [("user", task["prompt"])]}, {"recursion_limit": 9})
    except GraphRecursionError:
        return 0.0
    return float(str(end["messages"][-1].content).strip().endswith(task["label"]))


if __name__ == "__main__":
    run(solve)
