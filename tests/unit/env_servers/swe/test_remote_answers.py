"""What a container answers may be the model's: nonsense is a fault of the container and no other exception."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from env_servers.swe.remote.container import Container
from env_servers.swe.remote.faults import RuntimeBroken
from env_servers.swe.remote.jobs import run_job


class Http:
    """Gives the same answer to every request."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    async def ask(self, *args, **kwargs) -> bytes:
        return self._answer


def container(answer: bytes) -> Container:
    return Container(Http(answer), "http://c", "id", "")


def damaged(compression: int) -> bytes:
    """A zip file whose only member does not unpack."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        archive.writestr("log", "a text " * 100)
    content = bytearray(packed.getvalue())
    content[40:60] = bytes(20)
    return bytes(content)


@pytest.mark.parametrize("answer", [b"", b"null", b"[" * 30000, b"\xff"])
async def test_a_server_of_actions_that_talks_nonsense_is_not_up(answer):
    assert not await container(answer).is_alive()
    with pytest.raises(RuntimeBroken):
        await container(answer).execute("run", {}, 1.0)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
async def test_a_damaged_archive_is_a_broken_container(compression):
    with pytest.raises(RuntimeBroken):
        await container(damaged(compression)).download("/out")


@pytest.mark.parametrize("status", ["x", "\u00b2", "9" * 5000])
async def test_a_status_that_is_no_number_is_a_broken_container(status):
    observation = {"observation": "run", "content": f"started ended: {status}"}
    with pytest.raises(RuntimeBroken):
        await run_job(container(json.dumps(observation).encode()), "", {}, 60.0)
