"""What `swe` asks of the warm sandbox besides running code: modules that are there already, directories that are not,
and a socket between two calls."""

from __future__ import annotations

import asyncio
import shutil
import socket

import pytest

from env_servers.python_tir.isolation.bwrap import site_packages
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
HIDDEN = f"{site_packages()[0]}/iniconfig"
LOOK = """
import os, sys
# elsewhere than outside, for a checkout in /tmp
above = next(path for path in sys.path if "iniconfig" in (os.listdir(path) if os.path.isdir(path) else []))
hidden = os.path.join(above, "iniconfig")
print(os.listdir(hidden), len(os.listdir(above)) > 1)
open(os.path.join(hidden, "x"), "w")
"""


@pytest.fixture(scope="module")
def warm():
    sandbox = WarmSandbox(
        Limits(code_timeout_s=60.0),
        slots=2,
        light_imports=["colorsys"],
        light_sessions=True,
        hidden=[HIDDEN, "/nowhere/at/all"],
    )
    yield sandbox
    asyncio.run(sandbox.close())


async def test_named_modules_are_imported_before_any_call(warm):
    assert (
        await warm.run("import sys; print('colorsys' in sys.modules, 'wave' in sys.modules)")
    ).stdout == b"True False\n"


async def test_a_hidden_directory_is_empty_and_cannot_be_written_to(warm):
    e = await warm.run(LOOK)
    assert e.stdout == b"[] True\n" and b"Read-only file system" in e.stderr


async def test_two_calls_share_descriptor_4_and_each_sees_the_end_of_the_other(warm):
    one, other = socket.socketpair()
    asks = "import os; os.write(4, b'6*7'); print(os.read(4, 99), os.read(4, 99))"
    answers = "import os; os.write(4, str(eval(os.read(4, 99))).encode())"
    first, second = await asyncio.gather(
        warm.converse(Snippet(asks), warm.limits, one), warm.converse(Snippet(answers), warm.limits, other)
    )
    assert first.stdout == b"b'42' b''\n" and second.return_code == 0
    assert one.fileno() == other.fileno() == -1
    assert (await warm.run("import os; os.write(4, b'')")).return_code == 1, "no call finds the socket of another"
