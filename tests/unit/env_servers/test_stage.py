"""Stage: the interpreter's packages are there in the sandbox, wherever the host has them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sysconfig

import pytest

from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.isolation.stage import Stage, reachable
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.warm.sandbox import WarmSandbox


@pytest.fixture
def below_tmp(tmp_path, monkeypatch):
    """The server's packages are in a directory below /tmp that only its owner can enter, as `mktemp -d` makes them."""
    packages = tmp_path / "venv" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "only_here.py").write_text("x = 42\n")
    os.chmod(tmp_path, 0o700)
    assert str(packages).startswith("/tmp/")
    paths = sysconfig.get_paths()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths | {"purelib": str(packages), "platlib": str(packages)})


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("kind", [BwrapSandbox, WarmSandbox])
def test_only_packages_below_tmp_are_visible(below_tmp, kind):
    async def seen() -> bytes:
        sandbox = kind(Limits(code_timeout_s=60.0, start_timeout_s=60.0))
        try:
            return (await sandbox.run("import os, only_here; print(only_here.x, os.listdir('/tmp'))")).stdout
        finally:
            await sandbox.close()

    assert asyncio.run(seen()) == b"42 ['main.py']\n"


def test_paths_outside_of_tmp_keep_their_names(tmp_path):
    assert Stage(["/etc"]).mounts == [("/etc", "/etc")]
    stage = Stage([str(tmp_path)])
    try:
        ((_, target),) = stage.mounts
        assert stage.sandbox_path(str(tmp_path / "a")) == f"{target}/a" and not target.startswith("/tmp/")
        assert stage.sandbox_path(f"{tmp_path}2/a") == os.path.realpath(f"{tmp_path}2/a")
        assert stage.sandbox_path("/usr/bin/env") == os.path.realpath("/usr/bin/env")
    finally:
        stage.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root binds")
def test_what_one_stage_removes_is_not_anothers(below_tmp, tmp_path):
    first, second = [Stage([str(tmp_path)]) for _ in range(2)]
    try:
        ((source, _),) = second.mounts
        first.close()
        assert os.listdir(source) == os.listdir(tmp_path)
    finally:
        second.close()
    assert os.listdir(source) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root binds")
def test_what_is_bound_can_be_reached_whatever_the_umask_of_the_server_is(below_tmp, tmp_path):
    umask = os.umask(0o077)
    try:
        stage = Stage([str(tmp_path)])
    finally:
        os.umask(umask)
    try:
        ((source, _),) = stage.mounts
        assert reachable(os.path.dirname(source))
    finally:
        stage.close()
