"""Checks of the environments: every server that the run will use answers and is the right one, and every server that
the run will start can be started."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

from ...cluster.env_process import LOOPBACK, server_flags, server_module, url_remedy
from ...config import Config
from ...config.environments import Environment
from ...config.problems import Problems
from ...config.secrets import ENV_TOKEN
from ...config.sections.env import Env
from ...errors import ConfigError
from ...machine.namespaces import namespace_remedy
from ...protocol import NOT_NEEDED, UNISOLATED
from ...rollout.environment_client.probe import probe_env
from ...user_code import plugins
from ...waiting.backoff import until_available
from .host import Machine, engines_elsewhere


def environments_of(cfg: Config) -> list[Environment]:
    """Return the environments; [] if their settings contradict each other, which the rules of the configuration
    report."""
    try:
        return list(cfg.environments.values())
    except ConfigError:
        return []


def check_envs(
    cfg: Config, machine: Machine, problems: Problems, wait_s: float = 0.0, *, learner: bool = True
) -> list[str]:
    """Check that every server answers and is the environment of the tasks, and that ours can be started. Return
    facts. `learner` is False for a command that trains nothing."""
    if cfg.train.agent_func_path:
        return [
            f"agent file {cfg.train.agent_func_path}: {cfg.reward.workers} process(es) for each rollout actor,"
            " in place of an environment"
        ]
    facts: list[str] = []
    environments = environments_of(cfg)
    for e in environments:
        with problems.caught(code="environment"):
            facts += check_env(cfg, e, machine, wait_s, learner=learner)
    by_url: dict[str, list[Environment]] = {}
    for e in environments:
        for url in e.urls:
            by_url.setdefault(url, []).append(e)
    for url, users in by_url.items():
        if len(users) > 1:
            facts.append(
                f"{url} serves {' and '.join(f'{e.name} (protocol {e.env.protocol})' for e in users)}:"
                " it runs what each of them sends"
            )
    return facts


def _names_this_node(url: str) -> bool:
    """Return True for a URL on loopback, or on an address that stands for all of a node: every node takes it for its
    own."""
    host = urlsplit(url).hostname or ""
    return host in (*LOOPBACK, "0.0.0.0", "::") or host.startswith("127.")


def check_env(cfg: Config, e: Environment, machine: Machine, wait_s: float = 0.0, *, learner: bool = True) -> list[str]:
    """Check the servers of one environment and return facts.

    Raises:
        ConfigError: No URL is set, and engines on other nodes would not reach the server that the run starts.
    """
    reason = engines_elsewhere(cfg, machine, learner=learner)
    if e.urls:
        facts = [_check_server(cfg, e, url, wait_s) for url in e.urls]
        if reason and any(map(_names_this_node, e.urls)):
            facts.append(
                f"{e.section}.url is on loopback or 0.0.0.0, where no other node reaches it, and engines will be on"
                f" other nodes ({reason}): start the server with -h ADDRESS, and give that address"
            )
        return facts
    server_module(e)
    if reason:
        raise ConfigError(
            f"{e.section}.url is not set, so the run would start the {e.serves} server on its controller's node, where"
            f" no other node reaches it; and engines will be on other nodes ({reason}). {url_remedy([e.section])}",
            code="environment",
            setting=f"{e.section}.url",
        )
    flags = server_flags(e)
    if e.env.file:
        check_class(e, flags)
        return [f"environment {e.name}: a server of {e.env.file} will be started in its own process"]
    if e.server_info.runs_code:
        check_isolation(machine, e.serves)
    check_server_flags(e, flags)
    of = "" if e.serves == e.name else f" of {e.serves}"
    workers = f" with {e.env.workers} workers" if e.server_info.takes_workers else ""
    return [f"environment {e.name}: a server{of}{workers} will be started"]


def check_isolation(machine: Machine, server: str) -> None:
    """Check that our server that runs model-written code can confine it here.

    Raises:
        ConfigError: It cannot.
    """
    if fault := machine.isolation_fault():
        raise ConfigError(
            f"The {server} server that the run would start cannot confine model-written code here: {fault}. Install"
            f" bubblewrap (apt-get install bubblewrap). {namespace_remedy()}; or point env.url at a server on another"
            " machine."
        )


def check_server_flags(e: Environment, flags: list[str]) -> None:
    """Check that one of our servers accepts its flags, by its own parser, and that its corpus exists.

    Raises:
        ConfigError: It does not.
    """
    if not e.env.server_options and not e.server_info.needs_options:
        return
    parser = import_module(f"{server_module(e)}.__main__").parser()
    with _parser_errors(e):
        args = parser.parse_args(flags)
    corpus = getattr(args, "corpus", None)
    if corpus is not None and not Path(corpus).is_file():
        raise ConfigError(
            f"{e.section}.server_options.corpus = {str(corpus)!r} is no file (looked at {Path(corpus).absolute()})."
            " Correct the path."
        )


def check_class(e: Environment, flags: list[str]) -> None:
    """Check that a user's environment class accepts the keywords that it would be created with.

    Raises:
        ConfigError: It does not.
    """
    try:
        cls = plugins.load(plugins.ENVIRONMENT, str(e.env.file))
    except ConfigError:
        return  # reported by `names.check_names_of_env`
    server = import_module(f"{server_module(e)}.__main__")
    with _parser_errors(e):
        _, keywords = server.read(flags)
    server.check(cls, keywords, f"{e.section}.server_options")


@contextmanager
def _parser_errors(e: Environment) -> Iterator[None]:
    """Raise ConfigError if the parser of the environment's server refuses its flags in the block, or prints help."""
    stderr = io.StringIO()
    try:
        with redirect_stderr(stderr), redirect_stdout(io.StringIO()):
            yield
    except SystemExit:
        lines = stderr.getvalue().strip().splitlines() or ["error: with them it prints its help and serves nothing"]
        complaint = lines[-1].partition("error: ")[2]
        raise ConfigError(
            f"{e.section}.server_options = {e.env.server_options}: the {e.serves} server says: {complaint}. `python -m"
            f" {server_module(e)} --help` lists its flags."
        ) from None


def _check_server(cfg: Config, e: Environment, url: str, wait_s: float) -> str:
    token = os.environ.get(ENV_TOKEN)
    health, schema = until_available(lambda: probe_env(url, token=token), wait_s)
    if schema.env != e.serves:
        fields = "env.name or env.url" if e.section == "env" else f"{e.section}.server or {e.section}.url"
        raise ConfigError(
            f"The server at {url} is env {schema.env!r}, the tasks use {e.serves!r}. Set {fields} to match."
        )
    timeout_s, expected_s = schema.code_timeout_s, e.env.code_timeout_s
    runs_code = not cfg.by_agent and bool(e.env.max_calls or cfg.eval.max_calls)
    if runs_code and timeout_s is not None and not math.isclose(timeout_s, expected_s):
        raise ConfigError(
            f"The server at {url} ends a code snippet after {timeout_s:g} s, and {e.section}.code_timeout_s ="
            f" {expected_s:g}: slower snippets would be trained as other outcomes than the recipe's. Start it with"
            f" --code-timeout {expected_s:g}, or set {e.section}.code_timeout_s = {timeout_s:g}.",
            code="environment",
            setting=f"{e.section}.code_timeout_s",
        )
    facts = [f"capacity {schema.capacity}"]
    if health.isolation not in (NOT_NEEDED, UNISOLATED):
        facts.insert(0, f"isolation {health.isolation}")
    if timeout_s is not None:
        facts.append(f"{timeout_s:g} s for a code snippet")
    fact = f"environment {e.name} at {url}: {', '.join(facts)}"
    if health.isolation == UNISOLATED:
        fact += "; it runs model-written code WITHOUT isolation"
    if runs_code and timeout_s is None and e.server_info.takes_code_timeout:
        fact += f"; it does not say its --code-timeout, which must be {e.section}.code_timeout_s = {expected_s:g}"
    if e.env.workers not in (Env.model_fields["workers"].default, schema.capacity):
        fact += f"; {e.section}.workers = {e.env.workers} has no effect on it, its own --workers has"
    return fact
