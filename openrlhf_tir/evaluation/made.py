"""Made: suites whose rows an environment's own command writes, in a process of its own (nothing here imports one):
tasks of ours that no file is needed for, and rows of SWE-Gym's form that become prompts.

    suite, its file or None, env.protocol -> ITEMS/SUITE/rows_PROTOCOL.jsonl, made once -> a file as any other

A file of the user's in the environment's own form is taken as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config.environments import Environment
from ..config.paths import shorten
from ..data.rows import read_rows
from ..errors import ConfigError
from .suites import Maker, SuiteFile

MAKING_S = 1800.0
"""The help desk's tasks take a second, sixty bugs half a minute on a free core: each is verified by running its
tests."""
MIRRORED, CONTAINERS = "/tmp/{name}", "/testbed"
"""Where the repository of a row is in a session of the environment swe."""
RUNTIMES = ("docker", "runtime_api")
"""Options of swe's server with which sessions are containers."""


def with_rows(found: SuiteFile, directory: Path, e: Environment) -> SuiteFile:
    """The same with a file in the environment's own form. Raises ConfigError with what the command said, DataError."""
    maker = found.suite.maker
    if maker is not None and maker.takes_rows:
        _check_repositories(found, e)
    if maker is None or (found.path is not None and (not maker.takes_rows or _is_ours(found.path))):
        return found
    asked = _protocol(found, maker, e.env.protocol)
    target = directory / f"rows_{asked or 'plain'}.jsonl"
    if found.path is None and target.exists():
        return replace(found, path=target)
    directory.mkdir(parents=True, exist_ok=True)
    flags = [*maker.flags, "--protocol", asked]
    if found.path is not None:
        given = directory / "given.jsonl"
        rows = [json.dumps(row, ensure_ascii=False) + "\n" for _, row in read_rows(str(found.path), "test")]
        given.write_text("".join(rows), encoding="utf-8")
        flags += ["--rows", str(given), "--root", _root(e)]
    _run(found, [*maker.command, *flags], target)
    return replace(found, path=target)


def _check_repositories(found: SuiteFile, e: Environment) -> None:
    if not e.urls and not e.env.file and not {*_options(e)} & {*RUNTIMES, "mirror"}:
        raise ConfigError(
            f"{found.suite.name} has other people's repositories, and the server is not told where they are. Give"
            f" {e.section}.server_options mirror=DIR, or containers (docs/environments.md)."
        )


def _options(e: Environment) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in e.env.server_options.items()}


def _is_ours(path: Path) -> bool:
    """Whether the first row is in the form of the environment's rows: a prompt, and what the environment is told."""
    _, row = next(iter(read_rows(str(path), "test")), ("", {}))
    return isinstance(row.get("meta"), Mapping) and bool(row.get("prompt"))


def _protocol(found: SuiteFile, maker: Maker, protocol: str) -> str:
    """How its prompts are to say that calls are written; "" for a protocol of the user's own, which nobody here
    knows."""
    if protocol in maker.protocols:
        return maker.protocols[protocol]
    if ":" in protocol:
        return ""
    raise ConfigError(
        f"The prompts of {found.suite.name} are written for the protocols {', '.join(maker.protocols)}, not"
        f" {protocol!r}. Set env.protocol to one of them, or give rows with prompts of your own:"
        f" --suite {found.suite.name}=FILE."
    )


def _root(e: Environment) -> str:
    options = _options(e)
    if any(options.get(name) for name in RUNTIMES):
        return str(options.get("repo_root", CONTAINERS))
    return MIRRORED


def _run(found: SuiteFile, words: list[str], target: Path) -> None:
    part = target.with_name(target.name + ".part")
    command = [sys.executable, "-m", *words, "--out", str(part)]
    try:
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", timeout=MAKING_S
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"The rows of {found.suite.name} were not made within {MAKING_S:g} s: {' '.join(command)}"
        ) from None
    if done.returncode != 0:
        raise ConfigError(f"The rows of {found.suite.name} were not made: {shorten(done.stderr.strip(), 800)}")
    os.replace(part, target)
