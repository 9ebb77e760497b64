"""The solutions of tasks are masked in every layout in which the package can be installed."""

from __future__ import annotations

import shutil

import pytest

from env_servers.python_tir.limits import Limits
from env_servers.python_tir.warm.sandbox import WarmSandbox
from env_servers.swe.answers import answer_directories


def package(directory):
    hidden = directory / "env_servers" / "swe" / "repos" / "roman" / "hidden"
    hidden.mkdir(parents=True)
    (hidden / "test_roman.py").write_text("def test_roman(): pass\n")
    return directory


def test_every_copy_of_the_answers_that_a_session_could_read_is_found(tmp_path):
    pip = package(tmp_path / "venv" / "site-packages")
    other = package(tmp_path / "other" / "lib" / "dist-packages")
    checkout = package(tmp_path / "src" / "app")
    (checkout / "pyproject.toml").write_text("")
    found = answer_directories((str(tmp_path),))
    assert set(found) == {f"{pip}/env_servers", f"{other}/env_servers", str(checkout)}


def test_a_checkout_is_masked_except_for_the_virtual_environment_inside_it(tmp_path):
    checkout = package(tmp_path / "app")
    (checkout / "pyproject.toml").write_text("")
    (checkout / "tests").mkdir()
    packages = package(checkout / ".venv" / "lib" / "site-packages")
    (checkout / ".venv" / "bin").mkdir()
    found = answer_directories((str(tmp_path), str(packages)))
    masked = ["env_servers", "tests", ".venv/bin", ".venv/lib/site-packages/env_servers"]
    assert set(found) == {f"{checkout}/{path}" for path in masked}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_a_copy_that_the_server_did_not_import_is_empty_in_a_session(tmp_path):
    """As with pip's copy in a container's environment, where the server is started in a checkout."""
    shown = package(tmp_path / "site-packages")
    (shown / "other.py").write_text("")
    sandbox = WarmSandbox(
        Limits(code_timeout_s=60.0), slots=1, extra_directories=[str(shown)], hidden=answer_directories((str(shown),))
    )
    try:
        seen = await sandbox.run(
            "import os\n"
            "tops = [top for top, _, files in os.walk('/opt') if 'other.py' in files]\n"
            "print([os.listdir(top + '/env_servers') for top in tops])\n"
        )
    finally:
        await sandbox.close()
    assert seen.stdout == b"[[]]\n"
