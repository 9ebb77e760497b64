"""The `check-env` command: test what an environment server promises, and print a table. Exit code 1 if a promise is
broken."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..config.numbers import real, whole
from ..telemetry.printable import printable

VERDICT_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}
ACTIONS = {
    "valid": "an action that works",
    "slow": "an action that takes at least 3 s",
    "failing": "an action that is wrong or breaks the environment",
    "ending": "an action that ends the episode of --ending-task",
    "write": "an action that leaves the text tir-secret-5f1c where another session could find it",
    "read": "an action that looks for that text and shows it",
}
"""Kind of an action -> help text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add = parser.add_argument
    add("url", help="base URL, e.g. http://127.0.0.1:8000")
    add("--timeout", type=real(), default=5.0, metavar="SECONDS", help="deadline of the first answer [5]")
    add(
        "--token-env",
        default="TIR_ENV_TOKEN",
        metavar="NAME",
        help="environment variable that holds the bearer token [TIR_ENV_TOKEN]",
    )
    add("--quick", action="store_true", help="only ask the server to describe itself")
    add("--steps", type=whole(at_least=1), default=1000, metavar="N", help="steps of the leak check [1000]")
    add(
        "--flood",
        type=whole(at_least=1),
        default=400,
        metavar="N",
        help="concurrent slow steps; more than the server's queue takes [400]",
    )
    add(
        "--max-growth-mib",
        type=real(),
        default=32.0,
        metavar="N",
        help="memory the server may gain in the leak check [32]",
    )
    for name, text in ACTIONS.items():
        add(f"--{name}-action", metavar="ACTION", help=f"{text} [by the environment's name]")
    add("--task", metavar="JSON", help="task of the sessions [by the environment's name]")
    add("--slow-task", metavar="JSON", help="task of the sessions of the slow action [by the environment's name]")
    add("--ending-task", metavar="JSON", help="task of the session of the ending action [{}]")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..rollout.environment_client.probe import probe_env

    token = os.environ.get(args.token_env) or None
    health, schema = probe_env(args.url, token=token, timeout_s=args.timeout)
    print(
        f"{args.url}: env {health.env!r}, {health.status}, isolation {printable(health.isolation)}, "
        f"capacity {health.capacity}, running {health.running}, sessions {health.sessions}"
    )
    print(
        f"action: {printable(schema.action)}; {'stateful' if schema.stateful else 'stateless'}; prefers batches:"
        f" {'yes' if schema.prefers_batches else 'no'}"
    )
    if args.quick:
        return 0 if health.status == "ok" else 1
    return _check(args, schema.env, token)


def _check(args: argparse.Namespace, env: str, token: str | None) -> int:
    import asyncio
    import dataclasses

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..config.servers import OTHER, SERVERS
    from ..rollout.environment_client.check import Options, check_server

    own_actions: dict[str, Any] = {
        name: value for name in ACTIONS if (value := getattr(args, f"{name}_action")) is not None
    }
    tasks: dict[str, Any] = {
        name: _task(f"--{name.replace('_', '-')}", text)
        for name in ("task", "slow_task", "ending_task")
        if (text := getattr(args, name)) is not None
    }
    actions = dataclasses.replace(SERVERS.get(env, OTHER).actions, **own_actions, **tasks)
    options = Options(steps=args.steps, flood=args.flood, max_growth_mib=args.max_growth_mib)
    console = Console()
    with console.status("checking") as status:
        findings = asyncio.run(
            check_server(
                args.url,
                actions,
                options,
                token=token,
                on_finding=lambda finding: status.update(f"{finding.check}: {finding.verdict}"),
            )
        )
    table = Table("promise", "", "fact", "s")
    for finding in findings:
        table.add_row(
            finding.check,
            Text(finding.verdict, VERDICT_STYLES[finding.verdict]),
            Text(printable(finding.fact)),
            f"{finding.seconds:.1f}",
        )
    console.print(table)
    tally = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICT_STYLES}
    console.print(f"{tally['pass']} kept, {tally['fail']} broken, {tally['skip']} not checked")
    return 1 if tally["fail"] else 0


def _task(flag: str, text: str) -> dict:
    """Return the task in a flag's JSON text. Raises ConfigError."""
    import json

    from ..errors import ConfigError

    try:
        task = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"{flag} {text!r} is not JSON: {e}. Write an object, e.g. '{{\"delay_s\": 3}}'.") from None
    if not isinstance(task, dict):
        raise ConfigError(f"{flag} {text!r} is not a JSON object. Write one, e.g. '{{\"delay_s\": 3}}'.")
    return task
