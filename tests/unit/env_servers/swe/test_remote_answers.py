"""What a container answers may be the model's: nonsense is a fault of the container and no other exception."""

from __future__ import annotations

import io
import json
import subprocess
import zipfile

import pytest

from env_servers.swe.remote import judging
from env_servers.swe.remote.backend import image_of
from env_servers.swe.remote.container import MAX_TOTAL_BYTES, Container
from env_servers.swe.remote.docker import Docker, DockerOptions
from env_servers.swe.remote.faults import RuntimeBroken, RuntimeLate
from env_servers.swe.remote.http import RuntimeHttp
from env_servers.swe.remote.image_layout import ImageLayout, prepare_repository
from env_servers.swe.remote.jobs import Done, run_job
from env_servers.swe.remote.judging import _read_tests
from env_servers.swe.task import SweTask

TASK = SweTask.model_validate(
    {"repo": "o/lib", "base_commit": "c", "test_patch": "x", "FAIL_TO_PASS": ["t.py::test_a"], "image": "lib"}
)


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


class ScriptEnds:
    """A container's HTTP: every script ends with this exit status, and has written these files."""

    def __init__(self, status: int, **out: bytes) -> None:
        self._observation = {"observation": "run", "content": f"started ended: {status}"}
        self._packed = io.BytesIO()
        with zipfile.ZipFile(self._packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in out.items():
                archive.writestr(name, content)

    async def ask(self, method: str, url: str, *args, **kwargs) -> bytes:
        return self._packed.getvalue() if url.endswith("/download_files") else json.dumps(self._observation).encode()


async def test_a_container_that_is_too_slow_to_be_prepared_is_late_and_no_unfit_image():
    slow = Container(ScriptEnds(124, log=b"so far"), "http://c", "id", "")
    with pytest.raises(RuntimeLate, match=r"60 s .*--runtime-timeout.*so far"):
        await prepare_repository(slow, TASK, ImageLayout())


@pytest.mark.parametrize(("status", "fault"), [(91, RuntimeBroken), (137, RuntimeLate)])
async def test_a_patch_is_not_believed_because_its_tests_cannot_be_read(status, fault):
    with pytest.raises(fault):
        await _read_tests(Container(ScriptEnds(status), "http://c", "id", ""), ImageLayout(), ["t.py"])


@pytest.mark.parametrize("setup_works", [True, False])
async def test_a_set_up_that_fails_before_the_tests_is_no_verdict(setup_works, tmp_path, monkeypatch):
    """And code of the patch that ends like it, wherever it looks for the mark, is judged."""

    async def run(_container, script, files, _seconds):
        (tmp_path / "out").mkdir()
        for name, content in {**files, "run.sh": script.encode()}.items():
            (tmp_path / name).write_bytes(content)
        status = subprocess.run(["bash", "run.sh"], cwd=tmp_path, check=False).returncode
        return Done(status, {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})

    monkeypatch.setattr(judging, "run_job", run)
    patched = tmp_path / "bin" / "python"
    patched.parent.mkdir()
    patched.write_text(
        f"#!/bin/bash\ncp {tmp_path}/not_begun {tmp_path}/out/ || touch {tmp_path}/out/not_begun\nexit 90\n"
    )
    patched.chmod(0o755)
    setup = f"export PATH={patched.parent}:$PATH" if setup_works else "(exit 137)"
    testing = judging._tested(container(b""), ImageLayout(root=str(tmp_path), setup=setup), ["t.py"], [])
    if setup_works:
        assert (await testing).ended == "no_report"
    else:
        with pytest.raises(RuntimeBroken):
            await testing


async def test_a_download_that_unpacks_to_gigabytes_is_cut():
    files = {f"file{i}": bytes(12 << 20) for i in range(8)} | {"large": bytes(20 << 20), "exit": b"0"}
    kept = await Container(ScriptEnds(0, **files), "http://c", "id", "").download("/out")
    assert sum(map(len, kept.values())) <= MAX_TOTAL_BYTES
    assert {"file0", "file4", "exit"} <= set(kept) and not {"file5", "large"} & set(kept)


async def test_a_docker_command_that_cannot_be_run_is_a_fault_and_leaves_no_container(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    docker = Docker(RuntimeHttp(request_s=1.0, retries=0), DockerOptions(["serve"], 5.0, []))
    with pytest.raises(RuntimeBroken, match=r"\[Errno 2\].*'docker'"):
        await docker.start("lib")
    await docker.close()
    assert docker.running == 0


@pytest.mark.parametrize("image", ["-v=/:/host", "--privileged"])
def test_a_row_cannot_give_flags_to_docker(image):
    with pytest.raises(ValueError, match=f" = '{image}'"):
        image_of(TASK.model_copy(update={"image": image}), None)
    with pytest.raises(ValueError, match=f" = '{image}'"):
        image_of(TASK.model_copy(update={"image": None, "instance_id": image}), "{instance_id}")
