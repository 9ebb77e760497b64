"""The environments' image: the steps of its Dockerfile in a Debian root, and its server started as the image starts it.

No container runtime is needed. Two things are not as `docker build` has them: debootstrap's Debian 12 with its own
Python 3.11 stands for the base image, and pip inside installs from wheels that the pip of this machine has fetched,
since only that one is set up for a registry.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO

from ..env_process import START_TIMEOUT_S, Http
from .debian_root import DebianRoot, missing, steps_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

TOKEN = "a-token-of-the-test"


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Iterator[DebianRoot]:
    """Make the image, some 600 MB that do not outlive the tests."""
    if reason := missing():
        pytest.skip(reason)
    if sys.version_info[:2] != (3, 11):
        pytest.skip("this Python fetches wheels of its own version, and the image has Python 3.11")
    directory = tmp_path_factory.mktemp("image")
    path = directory / "root"  # pytest lets nobody else into its own directories, and the image has a user of its own
    try:
        root = DebianRoot.bootstrapped(path)
        fetch_wheels(root.inside("/wheels"))
        root.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        root.build(steps_of((REPO / "Dockerfile").read_text(), "env"), REPO)
        yield root
    finally:
        shutil.rmtree(directory)


def fetch_wheels(directory: Path) -> None:
    """Fetch what `pip install .[env]` will ask for, and what builds the package."""
    with (REPO / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    needed = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["env"],
    ]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "-w", directory, *needed], check=True)


@pytest.fixture
def url(image) -> Iterator[str]:
    """Start the image's entrypoint on a free port, as `docker run IMAGE --port 0` does."""
    port = image.inside("/tmp/port")
    flags = ("--port", "0", "--port-file", "/tmp/port")
    command = image.command(*image.entrypoint, *flags, environ={"TIR_ENV_TOKEN": TOKEN})
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not port.exists():
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                raise RuntimeError(f"the image's server did not start:\n{process.communicate()[1]}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.read_text()}"
    finally:
        process.kill()
        process.communicate()
        port.unlink(missing_ok=True)


def test_the_image_runs_as_a_user_without_rights_and_has_no_library_of_training(image):
    def printed(*words: str) -> str:
        return subprocess.run(image.command(*words), check=True, capture_output=True, text=True).stdout.strip()

    assert printed("id", "-u") == "1000"
    assert printed("python", "-c", "import importlib.util as u; print(u.find_spec('torch'))") == "None"


async def test_the_images_server_plays_a_session_in_its_sandbox(image, url):
    async with Http(url) as nobody:
        assert (await nobody.send("POST", "/reset", json={"task": {}, "seed": 0}))[0] == 401
    async with Http(url, TOKEN) as http:
        assert "bwrap" in (await http.send("GET", "/health"))[1]["isolation"].split("+")
        session = await http.open()
        code = "import numpy, sympy; print(sympy.sqrt(int(numpy.int64(16))))"
        reply = await http.unless_late(session, 0, code)
        assert (reply["outcome"], reply["observation"].strip()) == ("ok", "4")
