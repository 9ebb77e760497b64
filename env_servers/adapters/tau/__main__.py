"""python -m env_servers.adapters.tau: serve tau-bench's airline and retail desks; a model plays the user.

env_servers.adapters.tau.make_tasks writes rows.
"""

from __future__ import annotations

import argparse

from env_servers.flags import command_parser
from env_servers.functions.users import TOKEN_ENV, ModelUser, add_user_flags
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies

from .env import ACTION, TauEnv
from .package import check_installed


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.tau", __doc__)
    add_serving_flags(p, workers=64)
    url_help = f"OpenAI-compatible URL (.../v1) whose model plays the users; {TOKEN_ENV} is its bearer token"
    add_user_flags(p, url_help, required=True)
    return p


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    check_installed()
    run_copies(args)

    def make_user(instruction: str) -> ModelUser:
        return ModelUser(args.user_url, args.user_model, instruction, args.user_timeout)

    serve_env(lambda: TauEnv(make_user), args, env="tau", action=ACTION, stateful=True)


if __name__ == "__main__":
    main()
