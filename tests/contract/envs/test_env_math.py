"""The maths server over HTTP: verdicts, a thousand a second, and an expression that hangs."""

from __future__ import annotations

import asyncio
import time

import pytest

from ..env_process import Http, env_server

HANGS = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with env_server("env_servers.math", tmp_path_factory.mktemp("math"), "--verify-timeout", "1", "--workers", "2") as (url, _):
        yield url


@pytest.fixture
async def http(url):
    async with Http(url) as http:
        yield http


async def verify(http, answer, gold):
    status, body, _ = await http.send("POST", "/verify", json={"answer": answer, "gold": gold})
    assert status == 200, body
    return body["equal"], body["how"]


@pytest.mark.parametrize(
    ("answer", "gold", "verdict"),
    [
        ("42", "42", (True, "exact")),
        ("0.5", r"\frac{1}{2}", (True, "exact")),
        ("41", "42", (False, "exact")),
        ("", "42", (False, "exact")),
        (r"\sqrt{8}", r"2\sqrt2", (True, "symbolic")),
        (r"\{1, 2\}", r"\{2, 1\}", (True, "symbolic")),
        (r"x \in (-1, 2]", "(-1, 2]", (True, "symbolic")),
        (r"\frac{", "3", (False, "symbolic")),
    ],
)
async def test_verdicts_say_how_they_came_about(http, answer, gold, verdict):
    assert await verify(http, answer, gold) == verdict


async def test_a_thousand_numerals_take_less_than_a_second(http):
    items = [{"answer": str(i), "gold": str(i - i % 2)} for i in range(2000)]
    start = time.perf_counter()
    _, body, _ = await http.send("POST", "/verify", json=items)
    assert time.perf_counter() - start < 2.0
    assert [r["equal"] for r in body] == [i % 2 == 0 for i in range(2000)]


async def test_a_thousand_requests_of_one_numeral_each_take_about_a_second(http):
    """Patience for a machine under load; `benchmarks.env_servers` measures."""
    start = time.perf_counter()
    for first in range(0, 1000, 50):
        assert all(await asyncio.gather(*[verify(http, str(i), f"{i}.0") for i in range(first, first + 50)]))
    assert time.perf_counter() - start < 8.0


async def test_more_hanging_expressions_than_workers_keep_no_numeral_waiting(http):
    sessions = [await http.open({"label": "7"}) for _ in range(3)]
    hanging = [*(verify(http, HANGS, str(k)) for k in range(3)), *(http.step(s, 0, HANGS, deadline_s=120) for s in sessions)]
    hanging = [asyncio.create_task(h) for h in hanging]
    await http.until_running(6)
    assert await verify(http, "7", "7.0") == (True, "exact")
    assert (await http.step(await http.open({"label": "7"}), 0, "7.0"))[1]["reward"] == 1.0
    assert not all(h.done() for h in hanging), "the numerals waited until every hanging expression had used up its CPU"
    verdicts = await asyncio.gather(*hanging)
    assert verdicts[:3] == [(False, "timeout")] * 3
    assert [body["signals"]["how"] for _, body, _ in verdicts[3:]] == ["timeout"] * 3


async def test_a_hanging_expression_costs_its_cpu_and_nobody_else(http):
    await asyncio.gather(*(verify(http, r"\sqrt{8}", r"2\sqrt2") for _ in range(4)))  # successors of workers that other tests have killed are up
    hanging = asyncio.create_task(verify(http, HANGS, "7"))
    assert await verify(http, "7", "7.0") == (True, "exact")
    assert await verify(http, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")
    assert not hanging.done()
    assert await hanging == (False, "timeout")
    assert await verify(http, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")


async def test_a_client_that_hangs_up_takes_its_checks_along(http):
    """A hundred deadlines, one after the other on two workers; none is waited for."""
    asking = asyncio.create_task(http.send("POST", "/verify", json=[{"answer": HANGS, "gold": str(i)} for i in range(100)]))
    await http.until_running(1)
    asking.cancel()
    await http.until_running(0)
    assert await verify(http, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")


async def test_an_answer_is_one_step_with_a_reward(http):
    right, wrong = [await http.step(await http.open({"label": "42"}), 0, a) for a in ("42.0", "41")]
    assert (right[1]["reward"], right[1]["done"], right[1]["signals"]["how"]) == (1.0, True, "exact")
    assert (wrong[1]["reward"], wrong[1]["done"], wrong[1]["outcome"]) == (0.0, True, "ok")


async def test_a_task_without_a_label_is_a_fault_and_never_a_wrong_answer(http):
    status, body, _ = await http.send("POST", "/reset", json={"task": {}, "seed": 0})
    assert status == 422
    assert 'task["label"]' in body["detail"]


@pytest.mark.parametrize("wrong", [{}, {"answer": 1, "gold": "1"}, [{"answer": "1"}], "1"])
async def test_a_malformed_question_is_refused(http, wrong):
    assert (await http.send("POST", "/verify", json=wrong))[0] == 422
