"""An agent written against the plain `openai` client, trained by openrlhf_tir: it takes tasks, talks, and says how it went.

    python examples/openai_agent.py runs/my_run        # beside a training run with --rollout.agent external; ends when the run has

Nothing here knows of tokens, log-probs or weights: the rollout actor records them behind the OpenAI API. The agent's one tool is a
calculator: the model writes <calc>12*34</calc>, the next message holds the result. Put your own agent in the place of `solve`;
a framework that takes an OpenAI client (or its base URL and key) can be run there as it is.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from openai import OpenAI, OpenAIError

MAX_TURNS = 4
WORKERS = 16
GONE_S = 60.0
"""No rollout actor for so long: the run is over."""
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}


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


def solve(client: OpenAI, task: dict) -> float | None:
    """One task -> its reward; None leaves the judgement to the run's own reward."""
    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(MAX_TURNS):
        reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=256).choices[0].message.content or ""
        messages.append({"role": "assistant", "content": reply})
        call = re.search(r"<calc>(.*?)</calc>", reply, re.DOTALL)
        if call is None:
            return float(reply.strip().endswith(task["label"]))
        messages.append({"role": "user", "content": calculate(call[1])})
    return 0.0


def serve(url: str, key: str) -> None:
    """Take tasks from one rollout actor until it is gone."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=90) as http:
        while True:
            reply = http.post("/agent/tasks", json={"wait_s": 30})
            if reply.status_code == 204:
                continue
            task = reply.raise_for_status().json()
            try:
                end = {"reward": solve(OpenAI(base_url=task["base_url"], api_key=key), task)}
            except OpenAIError as e:  # the server's fault, or ours: never the model's
                end = {"failed": str(e)[:500]}
            http.post(f"/sessions/{task['session_id']}/reward", json=end)


def main(run_dir: Path) -> None:
    own = run_dir / "endpoints" / "token"  # made by the run where there is no $TIR_ROLLOUT_TOKEN

    def work(i: int) -> None:
        """Actors come and go; every worker looks anew which are there, until there has been none for a while."""
        seen = None
        while seen is None or time.monotonic() - seen < GONE_S:
            urls = [f.read_text().strip() for f in sorted((run_dir / "endpoints").glob("rollout-*"))]
            try:
                if urls:
                    seen = time.monotonic()
                    key = os.environ.get("TIR_ROLLOUT_TOKEN") or (own.read_text().strip() if own.exists() else "none")
                    serve(urls[i % len(urls)], key)
            except httpx.HTTPError:
                pass
            time.sleep(1)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
