"""litellm: python examples/litellm_agent.py RUN_DIR, beside a run with --rollout.agent external --vllm.tool_call_parser
hermes"""

import json
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # else its import asks the network for prices
import litellm
from openai_agent import calculate
from task_loop import run

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "calculate", "description": "Integer arithmetic.", "parameters": PARAMETERS},
    }
]


def solve(base_url, key, task):
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(4):
        message = (
            litellm.completion("openai/policy", messages, tools=TOOLS, base_url=base_url, api_key=key)
            .choices[0]
            .message
        )
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return float((message.content or "").strip().endswith(task["label"]))
        for call in message.tool_calls:
            result = calculate(json.loads(call.function.arguments).get("expression", ""))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return 0.0


if __name__ == "__main__":
    run(solve)
