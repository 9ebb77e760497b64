"""User code that failed: a defect has a line and a traceback, an outage is none, and what does not end is ended."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import signal
import ssl
import threading
import time
import urllib.error
from types import SimpleNamespace

import aiohttp
import httpx
import pytest
import requests

from openrlhf_tir.user_code.failures import (
    Overrun,
    described,
    is_denied,
    is_outage,
    suspended_at,
    thread_at,
    traceback_of,
    user_code_errors,
)
from openrlhf_tir.user_code.loop_watch import LoopWatch
from openrlhf_tir.user_code.plugins import raised_at


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (OSError(errno.ENETUNREACH, "network is unreachable"), True),
        (FileNotFoundError("data.json"), False),
        (OSError(errno.ENAMETOOLONG, "a name that a model wrote"), False),
        (http.client.IncompleteRead(b"{"), True),
        (http.client.BadStatusLine("no status"), True),
        (http.client.InvalidURL("a URL that a model wrote"), False),
        (KeyError("x"), False),
        (AssertionError(), False),
    ],
)
def test_a_service_that_does_not_answer_is_an_outage_and_a_wrong_path_is_none(error, outage):
    assert is_outage(error) is outage


def answered(status: int) -> list[Exception]:
    """Return the errors of the common libraries for an answer with an HTTP status."""
    of_requests = requests.Response()
    of_requests.status_code = status
    of_httpx = httpx.Response(status, request=httpx.Request("GET", "http://a"))
    return [
        requests.HTTPError("no", response=of_requests),
        httpx.HTTPStatusError("no", request=of_httpx.request, response=of_httpx),
        aiohttp.ClientResponseError(None, (), status=status),
        urllib.error.HTTPError("http://a", status, "no", None, None),
    ]


@pytest.mark.parametrize(("status", "outage"), [(200, True), (429, True), (503, True), (400, False), (404, False)])
def test_an_answer_that_refuses_the_request_is_no_outage_and_one_that_fails_or_cannot_be_read_is_one(status, outage):
    assert [is_outage(error) for error in answered(status)] == [outage] * 4


def test_an_answer_that_httpx_cannot_read_is_an_outage_as_well():
    with pytest.raises(json.JSONDecodeError) as of_answer:
        httpx.Response(502, text="<html>502 Bad Gateway").json()
    with pytest.raises(json.JSONDecodeError) as of_text:
        json.loads("<html>a text that a model wrote")
    assert is_outage(of_answer.value) and not is_outage(of_text.value)


@pytest.mark.parametrize(("status", "denied"), [(401, True), (407, True), (400, False), (403, False), (404, False)])
def test_access_is_denied_by_a_status_that_no_request_could_have_avoided(status, denied):
    assert [is_denied(error) for error in answered(status)] == [denied] * 4
    assert not is_denied(SystemError(status)) and not is_denied(requests.ConnectionError())


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (requests.ConnectionError(), True),
        (requests.exceptions.SSLError(), True),
        (requests.exceptions.MissingSchema(), False),
        (requests.exceptions.JSONDecodeError("no", "<html>502 Bad Gateway", 0), True),
        (json.JSONDecodeError("no", "a text that a model wrote", 0), False),
        (httpx.ReadTimeout("late"), True),
        (httpx.UnsupportedProtocol("htp"), False),
        (httpx.InvalidURL("no"), False),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.InvalidURL("http://["), False),
        (urllib.error.URLError(ConnectionRefusedError()), True),
        (ssl.SSLCertVerificationError(), True),
    ],
)
def test_a_url_that_cannot_be_read_is_no_outage_and_an_answer_that_cannot_be_read_is_one(error, outage):
    assert is_outage(error) is outage


@pytest.mark.parametrize(("status", "outage"), [(None, True), (429, True), (503, True), (400, False), (401, False)])
def test_a_language_models_server_that_does_not_answer_openais_client_is_an_outage_and_a_wrong_key_is_none(
    status, outage
):
    openai = pytest.importorskip("openai")
    if status:
        reply = SimpleNamespace(status_code=status, headers={}, request=None)
        error = openai.APIStatusError("no", response=reply, body=None)
    else:
        error = openai.APIConnectionError(request=None)
        error.__cause__ = ConnectionRefusedError()
    assert is_outage(error) is outage


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(1), Overrun()])
def test_an_error_whose_message_cannot_be_printed_is_still_described_by_its_type(raised):
    class Silent(Exception):
        def __str__(self):
            raise raised

    assert described(Silent()).startswith("Silent: ")
    assert described(KeyError("x")) == "KeyError: 'x'"


def test_of_a_group_of_errors_the_first_one_is_told_and_all_must_be_outages():
    down, bug = ConnectionRefusedError(), KeyError("k")
    assert "KeyError: 'k'" in described(ExceptionGroup("tasks", [bug, down]))
    assert is_outage(ExceptionGroup("tasks", [down, down])) and not is_outage(ExceptionGroup("tasks", [bug, down]))
    with pytest.raises(KeyError) as caught:
        {}["k"]
    with pytest.raises(ExceptionGroup) as group:
        raise ExceptionGroup("tasks", [caught.value])
    assert raised_at(group.value, __file__) == f"{__file__}:{caught.tb.tb_lineno}"


def test_the_line_that_another_thread_executes_is_known():
    started, go_on = threading.Event(), threading.Event()

    def work():
        started.set()
        go_on.wait()

    thread = threading.Thread(target=work)
    second = threading.Thread(target=work)
    thread.start()
    started.wait()
    try:
        assert thread_at(__file__) in [f"{__file__}:{work.__code__.co_firstlineno + n}" for n in (1, 2)]
        assert thread_at("another.py") is None
        started.clear()
        second.start()
        started.wait()
        assert thread_at(__file__) is None, "of two threads nothing says which one is meant"
    finally:
        go_on.set()
        thread.join()
        if second.ident is not None:
            second.join()


@pytest.fixture
def sigint_handler():
    """A function that sets the handler of SIGINT until the test is over."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def is_own(kind):
    """Return whether user_code_errors catches an exception that is raised."""
    try:
        raise kind
    except user_code_errors():
        return True
    except BaseException:
        return False


def test_an_interrupt_is_user_codes_own_only_where_it_cannot_be_ctrl_c(sigint_handler):
    sigint_handler(signal.default_int_handler)
    assert not is_own(KeyboardInterrupt)
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.append(is_own(KeyboardInterrupt)))
    thread.start()
    thread.join(60)
    assert in_thread == [True], "Ctrl-C is raised in the main thread"
    sigint_handler(signal.SIG_IGN)
    assert is_own(KeyboardInterrupt), "as in a worker, which ignores SIGINT"


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (ValueError, True),
        (SystemExit, True),
        (Overrun, True),
        (pytest.fail.Exception, True),
        (asyncio.CancelledError, True),
        (GeneratorExit, False),
    ],
)
def test_whatever_user_code_raises_is_its_own(kind, own):
    assert is_own(kind) is own


async def test_a_cancellation_is_not_the_users_where_an_event_loop_runs():
    assert not is_own(asyncio.CancelledError)


def test_the_traceback_begins_in_the_users_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def outer():\n    return inner()\n\ndef inner():\n    return {}['x']\n")
    scope: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(KeyError) as raised:
        scope["outer"]()
    shown = traceback_of(raised.value, str(file))
    assert shown.count("File ") == 2 and f'{file}", line 2' in shown and f'{file}", line 5' in shown


async def test_where_a_suspended_coroutine_waits_is_known():
    async def waits():
        await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    line = waits.__code__.co_firstlineno + 1
    assert suspended_at(task.get_coro(), __file__) == f"{__file__}:{line}"
    assert suspended_at(task.get_coro(), "another.py") is None
    task.cancel()


def blocks():
    while True:
        time.sleep(0.01)


async def test_what_blocks_the_loop_in_a_watched_file_is_interrupted_where_it_runs():
    watch = LoopWatch([__file__])
    watch.start()
    try:
        with pytest.raises(Overrun) as raised, watch.allows(0.2):
            blocks()
        assert "blocks" in {frame.name for frame in raised.traceback}
        with watch.allows(0.2):
            await asyncio.sleep(0.6)  # who awaits blocks nobody
    finally:
        watch.stop()


async def test_after_an_interrupt_each_answer_is_sent_before_the_next_call_blocks():
    watch = LoopWatch([__file__])
    events = []

    async def answered(number):
        await watch.turn()
        events.append(f"call {number}")
        try:
            with watch.allows(0.2):
                blocks()
        except Overrun:
            pass
        await asyncio.sleep(0)  # as an answer that is sent takes some rounds of the loop
        await asyncio.sleep(0)
        events.append(f"sent {number}")

    watch.start()
    try:
        await answered(0)
        await asyncio.gather(*(answered(number) for number in (1, 2, 3)))
    finally:
        watch.stop()
    assert events == [f"{event} {number}" for number in range(4) for event in ("call", "sent")]
