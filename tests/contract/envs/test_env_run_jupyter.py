"""/run_jupyter over HTTP as a SandboxFusion client uses it: cells of one interpreter."""

from __future__ import annotations

import asyncio
import base64
import shutil

import pytest

from env_servers.python_tir.run_jupyter import NO_WARM

from ..env_process import Http, growing

pytestmark = [
    pytest.mark.extended,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="sessions with state need bubblewrap"),
]


@pytest.fixture
async def http(python_server):
    async with Http(python_server[0]) as http:
        yield http


PATIENCE = {"cell_timeout": 600, "total_timeout": 600}
"""Seconds for what is not to be stopped: this machine may be slow, or stall."""


async def run(http: Http, *cells: str, **fields) -> dict:
    status, body, _ = await http.send("POST", "/run_jupyter", json={"cells": list(cells), **PATIENCE, **fields})
    assert status == 200, body
    return body


async def test_cells_share_an_interpreter_and_a_last_expression_is_displayed(http):
    body = await run(http, 'a = "hello"', "a", "print(a)", "None", "1;")
    assert (body["status"], body["driver"]["status"], body["driver"]["return_code"]) == ("Success", "Finished", 0)
    shown = [(c["stdout"], c["display"], c["error"]) for c in body["cells"]]
    assert shown == [
        ("", [], []),
        ("", [{"text/plain": "'hello'"}], []),
        ("hello\n", [], []),
        ("", [], []),
        ("", [], []),
    ]


async def test_a_cell_that_raises_has_an_error_and_the_next_cell_runs(http):
    body = await run(
        http,
        'a = "hello"',
        'import sys\nn = sys.stderr.write("oh\\n")',
        "def f():\n    assert False, a\nf()",
        "print(a)",
        "x = (",
    )
    _, with_stderr, failed, after, syntax = body["cells"]
    assert (with_stderr["stderr"], after["stdout"], failed["stdout"], failed["stderr"]) == ("oh\n", "hello\n", "", "")
    (error,) = failed["error"]
    assert (error["ename"], error["evalue"]) == ("AssertionError", "hello")
    assert (
        "".join(error["traceback"])
        == 'Traceback (most recent call last):\n  File "<cell 3>", line 3, in <module>\n    f()\n'
        '  File "<cell 3>", line 2, in f\n    assert False, a\nAssertionError: hello\n'
    )
    assert syntax["error"][0]["ename"] == "SyntaxError"
    assert body["status"] == "Success"


async def test_an_exception_whose_text_exits_is_an_error(http):
    body = await run(http, "class E(Exception):\n    def __str__(self):\n        raise SystemExit\nraise E", "3")
    assert [[error["ename"] for error in cell["error"]] for cell in body["cells"]] == [["E"], []]


async def test_rich_values_awaits_and_exits(http):
    class_ = "class R:\n    def _repr_html_(self): return '<b>x</b>'\n    def __repr__(self): return 'R'\nR()"
    body = await run(
        http, class_, "display(1, 'two')", "import asyncio\nawait asyncio.sleep(0, 7)", "raise SystemExit(3)", "_ + 1"
    )
    assert [c["display"] for c in body["cells"]] == [
        [{"text/plain": "R", "text/html": "<b>x</b>"}], [{"text/plain": "1"}, {"text/plain": "'two'"}],
        [{"text/plain": "7"}], [], [{"text/plain": "8"}],
    ]  # fmt: skip
    assert body["cells"][3]["error"][0]["ename"] == "SystemExit"


@pytest.mark.slow
async def test_a_figure_is_displayed_as_a_picture(http):
    pytest.importorskip("matplotlib")
    body = await run(http, "import matplotlib.pyplot as plt", "plt.plot([1, 2], [2, 3]); plt.show()")
    assert base64.b64decode(body["cells"][1]["display"][0]["image/png"]).startswith(b"\x89PNG")


async def test_files_are_passed_in_and_returned(http):
    files = {"in/a.bin": base64.b64encode(b"\x00\xff").decode(), "absent": None}
    body = await run(
        http,
        "open('out', 'wb').write(open('in/a.bin', 'rb').read() * 3)",
        files=files,
        fetch_files=["out", "nothing", "in"],
    )
    assert (body["status"], body["files"]) == ("Success", {"out": base64.b64encode(b"\x00\xff" * 3).decode()})


async def test_requests_share_nothing(http):
    await run(http, "x = 1\nopen('left', 'w').close()")
    body = await run(http, "'x' in globals(), __import__('os').listdir('.')")
    assert body["cells"][0]["display"] == [{"text/plain": "(False, [])"}]


async def test_out_of_time_is_failed_with_the_cells_so_far(http):
    for limit in ("cell_timeout", "total_timeout"):
        for seconds in growing(3.0):
            cells = ("print(1)", "print(2, flush=True)\nwhile True: pass", "print(3)")
            body = await run(http, *cells, **{limit: seconds})
            if [c["stdout"] for c in body["cells"]] == ["1\n", "2\n"]:
                break
        assert (body["status"], body["driver"]["status"], body["driver"]["return_code"]) == (
            "Failed",
            "TimeLimitExceeded",
            None,
        )
        assert [c["stdout"] for c in body["cells"]] == ["1\n", "2\n"]


@pytest.mark.parametrize(
    ("cell", "return_code", "stderr"),
    [("import os; os._exit(3)", 3, ""), ("while True: print('y' * 99999)", -9, "OutputLimitExceeded\n")],
)
async def test_code_that_ends_its_interpreter_fails_the_request_and_nobody_else(http, cell, return_code, stderr):
    body = await run(http, cell, "print(1)")
    assert (body["status"], body["driver"]["return_code"], body["driver"]["stderr"]) == ("Failed", return_code, stderr)
    assert len(body["cells"]) == 1
    assert (await run(http, "print(1)"))["cells"][0]["stdout"] == "1\n"


@pytest.mark.parametrize(
    "cell",
    [
        "import sys; sys.modules.pop('_cells')",
        "import _cells; _cells.tell = lambda mark: print(mark + '{]')",
        "import sys; sys.stdout = None",
    ],
)
async def test_code_that_tampers_with_its_interpreter_fools_only_itself(http, cell):
    body = await run(http, cell, "print(1)", cell_timeout=10, total_timeout=45)
    assert body["status"] in ("Success", "Failed")
    assert (await run(http, "6 * 7"))["cells"][0]["display"] == [{"text/plain": "42"}]


async def test_characters_without_utf8_encoding_are_replaced(http):
    body = await run(http, "'\\ud800'", "raise ValueError('\\udfff')")
    assert [len(c["display"] + c["error"]) for c in body["cells"]] == [1, 1]


async def test_a_client_that_disconnects_ends_its_interpreter(http):
    asking = asyncio.create_task(run(http, "import time; time.sleep(600)"))
    await http.until_running(1)
    asking.cancel()
    await http.until_running(0)
    metrics = (await http.send("GET", "/metrics"))[1]
    assert "env_notebooks 0.0" in metrics


async def test_a_full_server_answers_429(http):
    for seconds in growing(0.3):
        request = {"cells": [f"import time; time.sleep({seconds})"], **PATIENCE}
        answers = await asyncio.gather(*[http.send("POST", "/run_jupyter", json=request) for _ in range(20)])
        if 429 in (statuses := {status for status, *_ in answers}):
            break  # else the first had ended before the last were sent
    assert statuses == {200, 429}


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"cells": "print(1)"},
        {"cells": [1]},
        {"cells": ["1"], "kernel": "ir"},
        {"cells": ["1"], "total_timeout": 0},
        {"cells": ["1"] * 300},
    ],
)
async def test_a_malformed_request_is_refused(http, malformed):
    assert (await http.send("POST", "/run_jupyter", json=malformed))[0] == 422


async def test_a_server_without_warm_workers_refuses_cells_with_the_reason(cold_server):
    async with Http(cold_server) as http:
        body = await run(http, "1")
    assert (body["status"], body["message"]) == ("SandboxError", NO_WARM)
