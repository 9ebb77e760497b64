"""An environment of verifiers by name, as the package has it: the module of that name, and its `load_environment`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from env_servers.adapters.packages import required
from openrlhf_tir.errors import ConfigError


def add_environment_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "environment",
        metavar="ENVIRONMENT",
        help="its name: an installed package, or a module in the current directory, with load_environment",
    )
    parser.add_argument(
        "--args", type=json.loads, default={}, metavar="JSON", help="what its load_environment takes, as a JSON object"
    )


def load(args: argparse.Namespace) -> Any:
    """Raises ConfigError; exits where the package is absent."""
    package = required("verifiers", "verifiers")
    if not hasattr(package, "load_environment"):
        raise ConfigError(
            f"verifiers {package.__version__} has other environments than those with load_environment. "
            "Install the version that has: pip install '.[verifiers]'."
        )
    if not isinstance(args.args, dict):
        raise ConfigError(f"--args is {type(args.args).__name__}, not an object of what load_environment takes.")
    try:
        return package.load_environment(args.environment, **args.args)
    except Exception as e:  # whatever somebody else's module raises: it cannot be loaded
        raise ConfigError(f"The environment {args.environment!r} cannot be loaded: {type(e).__name__}: {e}") from e
