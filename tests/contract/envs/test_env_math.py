"""The maths server over HTTP: verdicts, and expressions that hang."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_tir.errors import TaskRefused
from openrlhf_tir.rollout.environment_client.client import EnvClient

from ..env_process import Http, env_server

pytestmark = pytest.mark.slow  # it waits for servers

HANGS = r"\sum_{k=1}^{9999} \sum_{j=1}^{9999} \frac{1}{k+j^2}"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with env_server(
        "env_servers.math", tmp_path_factory.mktemp("math"), "--verify-timeout", "0.7", "--workers", "2"
    ) as (
        url,
        _,
    ):
        yield url


@pytest.fixture
async def http(url):
    async with Http(url) as http:
        yield http


@pytest.fixture(scope="module")
def patient_url(tmp_path_factory):
    with env_server(
        "env_servers.math",
        tmp_path_factory.mktemp("patient"),
        "--verify-timeout",
        "3600",
        "--verify-deadline",
        "7200",
        "--workers",
        "2",
    ) as (url, _):
        yield url


@pytest.fixture
async def patient(patient_url):
    """A server that gives an expression an hour: what hangs there has not ended when something else has."""
    async with Http(patient_url) as http:
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
async def test_a_verdict_names_the_method_that_decided_it(http, answer, gold, verdict):
    assert await verify(http, answer, gold) == verdict


async def test_numerals_of_one_request_or_of_many_need_no_worker(http):
    """`exact` is said by the check that runs in the server itself; `benchmarks.env_servers` counts them a second."""
    _, body, _ = await http.send(
        "POST", "/verify", json=[{"answer": str(i), "gold": str(i - i % 2)} for i in range(2000)]
    )
    assert [(r["equal"], r["how"]) for r in body] == [(i % 2 == 0, "exact") for i in range(2000)]
    assert set(await asyncio.gather(*[verify(http, str(i), f"{i}.0") for i in range(50)])) == {(True, "exact")}


@pytest.mark.slow
async def test_hanging_expressions_use_up_their_cpu_and_are_not_equal(http):
    """More than there are workers; afterwards there are as many as before."""
    session = await http.open({"label": "7"})
    *verdicts, (_, body, _) = await asyncio.gather(
        *(verify(http, HANGS, str(k)) for k in range(2)), http.step(session, 0, HANGS)
    )
    assert verdicts == [(False, "timeout")] * 2
    assert body["signals"]["how"] == "timeout"
    assert await verify(http, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")


async def test_numerals_do_not_wait_for_hanging_expressions(patient):
    sessions = [await patient.open({"label": "7"}) for _ in range(3)]
    hanging = [
        *(verify(patient, HANGS, str(k)) for k in range(3)),
        *(patient.step(s, 0, HANGS, deadline_s=600) for s in sessions),
    ]
    hanging = [asyncio.create_task(h) for h in hanging]
    await patient.until_running(6)
    assert await verify(patient, "7", "7.0") == (True, "exact")
    assert (await patient.step(await patient.open({"label": "7"}), 0, "7.0"))[1]["reward"] == 1.0
    assert not any(h.done() for h in hanging)
    await gone(patient, hanging, sessions)


@pytest.mark.slow
async def test_a_hanging_expression_occupies_one_worker_only(patient):
    hanging = asyncio.create_task(verify(patient, HANGS, "7"))
    await patient.until_running(1)
    assert await verify(patient, "7", "7.0") == (True, "exact")
    assert await verify(patient, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")
    assert not hanging.done()
    await gone(patient, [hanging], [])


async def gone(http, asking, sessions) -> None:
    """Whoever asked hangs up, and what was asked ends with it."""
    for task in asking:
        task.cancel()
    for session in sessions:
        await http.send("DELETE", f"/session/{session}")
    await http.until_running(0)


async def test_the_checks_of_a_client_that_disconnects_are_cancelled(http):
    """A hundred deadlines, one after the other on two workers; none is waited for."""
    asking = asyncio.create_task(
        http.send("POST", "/verify", json=[{"answer": HANGS, "gold": str(i)} for i in range(100)])
    )
    await http.until_running(1)
    asking.cancel()
    await http.until_running(0)
    assert await verify(http, r"\sqrt{8}", r"2\sqrt2") == (True, "symbolic")


async def test_an_answer_is_one_step_with_a_reward(http):
    right, wrong_step = [await http.step(await http.open({"label": "42"}), 0, a) for a in ("42.0", "41")]
    assert (right[1]["reward"], right[1]["done"], right[1]["signals"]["how"]) == (1.0, True, "exact")
    assert (wrong_step[1]["reward"], wrong_step[1]["done"], wrong_step[1]["outcome"]) == (0.0, True, "ok")


async def test_a_task_without_a_label_is_a_fault_and_never_a_wrong_answer(http):
    status, body, _ = await http.send("POST", "/reset", json={"task": {}, "seed": 0})
    assert status == 422
    assert 'task["label"]' in body["detail"]


async def test_a_row_that_the_server_refuses_fails_as_one_that_no_other_try_would_mend(url):
    async with EnvClient({"math": url}) as client, client.session("math", {}) as session:
        with pytest.raises(TaskRefused, match="label"):
            await session.reset()


@pytest.mark.parametrize("malformed", [{}, {"answer": 1, "gold": "1"}, [{"answer": "1"}], "1"])
async def test_a_malformed_question_is_refused(http, malformed):
    assert (await http.send("POST", "/verify", json=malformed))[0] == 422


async def test_the_api_describes_itself(http):
    """As a client generator reads it."""
    _, api, _ = await http.send("GET", "/openapi.json")
    assert {"/reset", "/step", "/step_batch", "/session/{session_id}", "/health", "/schema", "/verify"} <= set(
        api["paths"]
    )
    assert set(api["components"]["schemas"]["StepRequest"]["required"]) == {
        "session_id",
        "step_id",
        "action",
        "deadline_s",
    }
