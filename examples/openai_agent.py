"""An agent written against the plain `openai` client, trained by openrlhf_tir: it takes tasks, talks, and says how it
went.

    python examples/openai_agent.py runs/my_run        # beside a run with --rollout.agent external; ends with it

Nothing here knows of tokens, log-probs or weights: the rollout actor records them behind the OpenAI API. The agent's
one tool is a calculator: the model writes <calc>12*34</calc>, the next message holds the result. Put your own agent in
the place of `solve`; a framework that takes an OpenAI client (or its base URL and key) can be run there as it is.
"""

from __future__ import annotations

import ast
import operator
import re

from openai import OpenAI
from task_loop import run

MAX_TURNS = 4
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(expression: str) -> str:
    """Integer arithmetic, and nothing else: what a model writes is never evaluated as Python."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only integers and + - * // %")

    try:
        return str(value(ast.parse(expression.strip()[:100], mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError) as e:
        return f"error: {e}"


def solve(base_url: str, key: str, task: dict) -> float | None:
    """One task -> its reward; None leaves the judgement to the run's own reward."""
    client = OpenAI(base_url=base_url, api_key=key)
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(MAX_TURNS):
        reply = (
            client.chat.completions.create(model="policy", messages=messages, max_tokens=256).choices[0].message.content
            or ""
        )
        messages.append({"role": "assistant", "content": reply})
        call = re.search(r"<calc>(.*?)</calc>", reply, re.DOTALL)
        if call is None:
            return float(reply.strip().endswith(task["label"]))
        messages.append({"role": "user", "content": calculate(call[1])})
    return 0.0


if __name__ == "__main__":
    run(solve)
