"""Which languages are served: those whose tool has run a program, wherever it lies; a broken one is said."""

from __future__ import annotations

import re
import shutil

import pytest

from env_servers.python_tir.isolation.bare import BareSandbox
from env_servers.python_tir.languages import find_languages


@pytest.fixture
def places(tmp_path):
    """A directory with the machine's bash, and a node that prints something else."""
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    (tmp_path / "node").write_text("#!/bin/sh\necho 41\necho broken node >&2\n")
    (tmp_path / "node").chmod(0o755)
    return str(tmp_path)


async def test_a_tool_that_fails_its_trial_is_reported_and_not_served(places, capfd):
    assert (await find_languages(BareSandbox(), places)).names == ["bash"]
    assert re.search(f"{places}/node .* nodejs .*: broken node\n", capfd.readouterr().err)


async def test_a_file_may_have_the_name_of_the_program_however_it_is_written(places, capfd):
    languages = await find_languages(BareSandbox(), places)
    results = await languages.execute(
        "bash", "cat main.sh", files={"./main.sh": b"content"}, compile_s=60.0, run_s=60.0, keep_bytes=1 << 10
    )
    assert results.ran is not None and results.ran.stdout == b"content"


async def test_go_without_its_compiled_library_is_reported_with_the_command_that_builds_it(tmp_path, capfd):
    (tmp_path / "go").write_text("#!/bin/sh\necho go version of nobody\n")
    (tmp_path / "go").chmod(0o755)
    assert (await find_languages(BareSandbox(), str(tmp_path))).names == []
    assert "python -m env_servers.python_tir.go_cache" in capfd.readouterr().err
