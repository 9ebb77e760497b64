"""/run_code over HTTP as a SandboxFusion client uses it, and python_tir with such a server behind it."""

from __future__ import annotations

import asyncio
import base64
import re
import sys

import pytest

from env_servers.python_tir.__main__ import main

from ..env_process import Http, env_server, growing

PYTHON = "env_servers.python_tir"


@pytest.fixture
async def http(python_server):
    async with Http(python_server[0]) as http:
        yield http


@pytest.fixture(scope="module")
def forwarding(python_server, tmp_path_factory):
    flags = ["--backend-url", python_server[0], "--code-timeout", "1"]
    with env_server(PYTHON, tmp_path_factory.mktemp("front"), *flags) as (front, _):
        yield front


async def run(http: Http, code: str, **fields) -> dict:
    status, body, _ = await http.send(
        "POST", "/run_code", json={"code": code, "language": "python", "run_timeout": 600, **fields}
    )
    assert status == 200, body
    return body


async def test_output_larger_than_a_pipe_arrives_whole(http):
    body = await run(http, "print('a' * 1_000_000)")
    assert (body["status"], len(body["run_result"]["stdout"])) == ("Success", 1_000_001)


async def test_an_output_flood_fails_with_the_reason(http):
    body = await run(http, "while True: print('y' * 99999)")
    result = body["run_result"]
    assert (body["status"], result["return_code"], result["stderr"]) == ("Failed", -9, "OutputLimitExceeded\n")


async def test_files_are_passed_in_and_returned_even_from_failed_code(http):
    code = "open('out/b', 'wb').write(open('in/a.bin', 'rb').read()[::-1]); 1/0"
    files = {"in/a.bin": base64.b64encode(b"\x00\xff").decode(), "out/.keep": ""}
    body = await run(http, code, files=files, fetch_files=["out/b", "nothing", "out"])
    assert (body["status"], body["files"]) == ("Failed", {"out/b": base64.b64encode(b"\xff\x00").decode()})


async def test_base64_may_have_line_breaks_as_encoders_write_them(http):
    content = bytes(range(256))
    files = {"a": base64.encodebytes(content).decode()}
    body = await run(http, "print(1)", files=files, fetch_files=["a"])
    assert base64.b64decode(body["files"]["a"]) == content


async def test_faults_of_a_request_are_listed_in_the_order_of_sandboxfusions_fields(http):
    status, body, _ = await http.send("POST", "/run_code", json={"run_timeout": "soon", "files": 1})
    assert status == 422
    assert [fault["loc"][-1] for fault in body["detail"]] == ["run_timeout", "code", "language", "files"]


async def test_code_sees_no_file_of_an_earlier_request(http):
    await run(http, "open('left', 'w').write('x')")
    assert (await run(http, "import os; print('left' in os.listdir('.'))"))["run_result"]["stdout"] == "False\n"


@pytest.mark.slow
async def test_a_large_file_is_returned_whole_and_one_beyond_the_limit_is_named(http):
    code = "for n, size in (('a', 20 << 20), ('b', 20 << 20), ('c', 1)): open(n, 'wb').write(bytes(size))"
    body = await run(http, code, fetch_files=["a", "b", "c"], memory_limit_MB=1024)
    assert body["status"] == "Success" and list(body["files"]) == ["a", "c"]
    assert len(base64.b64decode(body["files"]["a"])) == 20 << 20 and f"b ({20 << 20} bytes)" in body["message"]


async def test_files_to_fetch_may_have_absolute_paths_in_the_working_directory(http):
    body = await run(http, "open('/mnt/b', 'w').write('x')", fetch_files=["/mnt/b", "/tmp/b", "b"])
    assert set(body["files"].values()) == {base64.b64encode(b"x").decode()} and len(body["files"]) == 3
    for path in ("/mnt/../etc/passwd", "/tmp/a/../../x", "/mnt/", "/home/x"):
        malformed = {"code": "", "language": "python", "fetch_files": [path]}
        assert (await http.send("POST", "/run_code", json=malformed))[0] == 422


async def test_localhost_is_the_sandboxs_own_loopback(http):
    code = (
        "import socket; s = socket.create_server(('localhost', 0));"
        " c = socket.create_connection(('localhost', s.getsockname()[1])); print(c.getpeername()[0])"
    )
    assert (await run(http, code))["run_result"]["stdout"] == "127.0.0.1\n"


async def test_a_special_file_to_fetch_neither_hangs_nor_fills_the_memory(http):
    body = await run(http, "import os; os.mkfifo('f'); os.symlink('/dev/zero', 'z'); print(1)", fetch_files=["f", "z"])
    assert (body["status"], body["files"]) == ("Success", {})


async def test_a_signal_is_a_negative_return_code_with_and_without_fetching(http):
    for fetch in ([], ["x"]):
        assert (await run(http, "import os; os.kill(os.getpid(), 15)", fetch_files=fetch))["run_result"][
            "return_code"
        ] == -15


async def test_large_stdin_arrives_whole_and_ends(http):
    body = await run(http, "import sys; print(len(sys.stdin.read()), repr(sys.stdin.read()))", stdin="é" * 300_000)
    assert body["run_result"]["stdout"] == "300000 ''\n"


async def test_the_recursion_limit_is_that_of_a_script(http):
    body = await run(http, "def f(): f()\nf()")
    assert "[Previous line repeated 996 more times]" in body["run_result"]["stderr"]
    assert await run(http, "def f(): f()\nf()", fetch_files=["x"]) | {"run_result": None} == body | {"run_result": None}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
async def test_paths_that_leave_the_directory_are_refused(http, path):
    for fields in ({"files": {path: ""}}, {"fetch_files": [path]}):
        status, body, _ = await http.send("POST", "/run_code", json={"code": "", "language": "python", **fields})
        assert (status, body["detail"][0]["type"]) == (422, "value_error")


@pytest.mark.parametrize(
    "malformed",
    [
        {"run_timeout": 0}, {"run_timeout": -1}, {"run_timeout": 0.001}, {"memory_limit_MB": 1},
        {"memory_limit_MB": 2**40}, {"files": {"a": "", "a/b": ""}}, {"files": {"a": "", "./a": ""}},
        {"files": {"x" * 256: ""}}, {"files": {"d/" * 600 + "x": ""}}, {"files": {"a/": ""}},
        {"files": {"a": "\u2028"}}, {"files": {"a": "eA==\u00a0"}},
        {"files": {f"f{i}": "" for i in range(20_000)}}, {"files": {f"{i}/b/c/d/e": "" for i in range(1000)}},
        {"files": {"a": "é"}}, {"files": {"a": "x"}}, {"files": {"\0": ""}}, {"fetch_files": ["x" * 300]},
        {"fetch_files": ["a"] * 20_000}, {"compile_timeout": "soon"},
    ],
)  # fmt: skip
async def test_files_and_inputs_that_no_sandbox_accepts_are_refused_before_a_start(http, malformed):
    status, body, _ = await http.send("POST", "/run_code", json={"code": "print(1)", "language": "python", **malformed})
    assert status == 422, body
    assert len(str(body)) < 2000
    assert (await run(http, "print(1)"))["status"] == "Success"


@pytest.mark.parametrize("limits", [{"memory_limit_MB": 32}, {"memory_limit_MB": 0}, {"memory_limit_MB": -5}])
async def test_the_smallest_limits_still_run_python(http, limits):
    assert (await run(http, "print(1)", **limits))["status"] == "Success"


async def test_fifty_threads_at_once_need_no_more_address_space_than_their_stacks(http):
    code = """
import threading
everyone = threading.Barrier(51)
def wait():
    held = [bytearray(1 << 10) for _ in range(100)]
    everyone.wait()
threads = [threading.Thread(target=wait, daemon=True) for _ in range(50)]
for thread in threads:
    thread.start()
everyone.wait()
print(len(threads))
"""
    assert (await run(http, code, memory_limit_MB=768))["run_result"]["stdout"] == "50\n"


async def test_a_time_limit_of_days_is_accepted(http):
    assert (await run(http, "print(1)", run_timeout=1e6))["status"] == "Success"


async def test_the_largest_allowed_number_of_files_arrives(http):
    files = {f"d{i % 32}/f{i}": base64.b64encode(b"%d" % i).decode() for i in range(1024)}
    code = "import glob; print(sum(int(open(p).read()) for p in glob.glob('d*/f*')))"
    assert (await run(http, code, files=files, fetch_files=["d1/f1"]))["run_result"]["stdout"] == f"{1023 * 512}\n"


async def test_a_known_language_that_is_not_installed_is_a_sandbox_error_with_a_remedy(http):
    status, body, _ = await http.send("POST", "/run_code", json={"code": "(displayln 1)", "language": "racket"})
    assert (status, body["status"]) == (200, "SandboxError")
    assert re.search(r"'racket'.*'python'", body["message"])


@pytest.mark.slow
async def test_a_full_server_answers_429(http):
    for seconds in growing(1.0):
        request = {"code": f"import time; time.sleep({seconds})", "language": "python", "run_timeout": 600}
        answers = await asyncio.gather(*[http.send("POST", "/run_code", json=request) for _ in range(20)])
        if 429 in (statuses := {status for status, *_ in answers}):
            break  # else the first had ended before the last were sent
    assert statuses == {200, 429}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "outcome", "error_type", "observation"),
    [
        ("print(2**10)", "ok", None, "1024\n"),
        ("1/0", "model_error", "exception", "ZeroDivisionError: division by zero\n"),
        ("x = (", "model_error", "syntax", "SyntaxError: '(' was never closed\n"),
        ("while True: pass", "model_error", "time_limit", "TimeLimitExceeded"),
        ("while True: print('y' * 99999)", "model_error", "output_flood", "y\n"),
        ("import os; os._exit(3)", "model_error", "exception", ""),
    ],
)
async def test_observations_over_a_backend_are_the_same(http, forwarding, code, outcome, error_type, observation):
    async with Http(forwarding) as front:
        if error_type == "time_limit":
            there, here = [(await side.step(await side.open(), 0, code))[1] for side in (front, http)]
        else:
            there, here = [await side.unless_late(await side.open(), 0, code) for side in (front, http)]
        for body in (there, here):
            assert (body["outcome"], body["signals"]["error_type"]) == (outcome, error_type)
            assert body["observation"].endswith(observation) or error_type == "output_flood"
        assert there["observation"] == here["observation"]
        assert there["signals"]["executed"] == here["signals"]["executed"]


@pytest.mark.slow
async def test_an_unreachable_backend_is_env_error_and_never_a_model_error(tmp_path):
    with env_server(PYTHON, tmp_path, "--isolation", "none", "--no-languages") as (behind, process):
        with env_server(PYTHON, tmp_path, "--backend-url", behind) as (url, _):
            async with Http(url) as http:
                session = await http.open()
                assert (await http.send("GET", "/health"))[1]["isolation"] == "sandboxfusion"
                assert (await http.unless_late(session, 0, "print(1)"))["observation"] == "1\n"
                process.kill()
                await asyncio.to_thread(process.wait)
                _, body, _ = await http.step(session, 9, "print(1)")
                assert body["outcome"] == "env_error" and behind in body["signals"]["error"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere:80"])
def test_without_its_backend_the_server_does_not_start(monkeypatch, url):
    monkeypatch.setattr(sys, "argv", ["python_tir", "--backend-url", url])
    with pytest.raises(SystemExit, match=rf"^python_tir .*{url}"):
        main()
