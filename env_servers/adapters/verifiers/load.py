"""Load an environment of verifiers by name, as the package does: the module of that name and its `load_environment`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from env_servers.adapters.packages import required
from openrlhf_tir.errors import ConfigError


def add_environment_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name the environment and its arguments."""
    parser.add_argument(
        "environment",
        metavar="ENVIRONMENT",
        help="name of an installed package, or of a module in the current directory, with load_environment",
    )
    parser.add_argument(
        "--args", type=json.loads, default={}, metavar="JSON", help="arguments of load_environment, as a JSON object"
    )


def load(args: argparse.Namespace) -> Any:
    """Return the environment of the flags. Raises ConfigError; exits if the package is missing."""
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
    except Exception as e:  # the module of another project may raise anything
        raise ConfigError(f"The environment {args.environment!r} cannot be loaded: {type(e).__name__}: {e}") from e
