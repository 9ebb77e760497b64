"""Python sandboxes that files of these folders share: a start costs more than most of their tests."""

from __future__ import annotations

import pytest

from .env_process import env_server


@pytest.fixture(scope="session")
def python_server(tmp_path_factory):
    """(URL, process id) of a python_tir server with two workers. Snippets have a second; sixteen executions may wait.

    Its tests leave no session with state, and nothing that runs.
    """
    tmp = tmp_path_factory.mktemp("env")
    flags = ("--code-timeout", "1", "--workers", "2", "--max-queue", "16")
    with env_server("env_servers.python_tir", tmp, *flags) as (url, process):
        yield url, process.pid


@pytest.fixture(scope="session")
def cold_server(tmp_path_factory):
    """The URL of a python_tir server without warm workers, which runs Python only."""
    tmp = tmp_path_factory.mktemp("env")
    with env_server("env_servers.python_tir", tmp, "--no-warm", "--no-languages") as (url, _):
        yield url
