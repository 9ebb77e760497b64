"""python -m env_servers.functions: serve function calling with state. env_servers.functions.make_tasks writes rows."""

from __future__ import annotations

import argparse
import functools

from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies

from .env import ACTION, FunctionsEnv
from .task import FunctionTask
from .users import TOKEN_ENV, User, add_user_flags, user_of

EXAMPLE = """
example:
  python -m env_servers.functions.make_tasks --count 3 --calls 1 2 --out tasks.jsonl
  python -m env_servers.functions --port 8500 &
  curl -s localhost:8500/reset -H 'content-type: application/json' -d '{"session_id": "s1", "seed": 0, "task":
      {"domains": ["files"], "gold": [[{"name": "make_directory", "arguments": {"path": "new"}}]]}}'
  curl -s localhost:8500/step -H 'content-type: application/json' -d '{"session_id": "s1", "step_id": 0,
      "deadline_s": 5, "action": "[{\\"name\\": \\"make_directory\\", \\"arguments\\": {\\"path\\": \\"new\\"}}]"}'
  -> {"observation": "{\\"result\\": null}", "signals":
      {"state_match": 2, "state_total": 2, "functions_matched": 1, ...}, ...}
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.functions", __doc__, EXAMPLE)
    add_serving_flags(p, workers=64)
    add_user_flags(
        p,
        "an OpenAI-compatible URL (.../v1) whose model plays the user of tasks that have an instruction;"
        f" {TOKEN_ENV} is its bearer token (default: the task's script)",
    )
    return p


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    run_copies(args)

    def make_user(task: FunctionTask) -> User:
        return user_of(task, args.user_url, args.user_model, args.user_timeout)

    serve_env(functools.partial(FunctionsEnv, make_user), args, env="functions", action=ACTION, stateful=True)


if __name__ == "__main__":
    main()
