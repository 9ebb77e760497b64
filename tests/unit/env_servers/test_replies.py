"""Replies of an environment are cut to the size that a trainer reads, through the app of a server."""

from __future__ import annotations

import httpx
import pytest

from env_servers.actions import cut
from env_servers.env import Env, Step
from env_servers.serving import ServingConfig, create_env_app
from openrlhf_tir.protocol import MAX_REPLY_BYTES


class Verbose(Env):
    """Answers with as many characters and signals as its action asks for; its first observation is `task["first"]`."""

    async def reset(self, task, seed):
        return task["first"]

    async def step(self, action, deadline_s):
        characters, signal_characters, signal_count = map(int, action.split())
        signals = {f"s{i}": "s" * signal_characters for i in range(signal_count)} if signal_characters else {}
        return Step("é\x01" * (characters // 2), reward=0.5, signals=signals)


@pytest.fixture
async def http():
    app = create_env_app(Verbose, ServingConfig(env="verbose", action="x"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        yield client


async def opened(http, session="s", first="hello"):
    reply = await http.post("/reset", json={"session_id": session, "task": {"first": first}})
    return reply


@pytest.mark.parametrize("action", ["10 10 1", "3000000 10 1", "3000000 2000000 2", "10 3000000 1", "3000000 2000 900"])
async def test_a_reply_is_cut_to_what_a_trainer_reads_and_keeps_its_reward(http, action):
    await opened(http)
    body = {"session_id": "s", "step_id": 0, "action": action, "deadline_s": 30}
    reply = await http.post("/step", json=body)
    assert reply.status_code == 200 and len(reply.content) <= MAX_REPLY_BYTES
    answer = reply.json()
    assert (answer["outcome"], answer["reward"]) == ("ok", 0.5)
    cut = action.split()[0] == "3000000"
    assert ("left out" in answer["observation"]) == cut and answer["observation"].startswith("é\x01")


async def test_a_first_observation_is_cut_as_well(http):
    reply = await opened(http, first="x" * 3_000_000)
    assert reply.status_code == 200 and len(reply.content) <= MAX_REPLY_BYTES


@pytest.mark.parametrize("session", ["a/b", "a/../b", "a b", "a%2Fb", "?x", "é"])
async def test_a_session_of_any_name_can_be_deleted(http, session):
    await opened(http, session)
    quoted = httpx.URL("http://127.0.0.1/").copy_with(raw_path=b"/session/" + httpx_quote(session))
    assert (await http.request("DELETE", quoted)).json() == {"closed": True}


def httpx_quote(text):
    from urllib.parse import quote

    return quote(text, safe="").encode()


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (None, "127.0.0.1", 200),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", 200),
        ("http://localhost:8000", "localhost:8000", 200),
        ("http://evil.example", "127.0.0.1:8000", 403),
        ("http://127.0.0.1:9000", "127.0.0.1:8000", 403),
        ("http://evil.example:8000", "evil.example:8000", 403),
        ("null", "127.0.0.1:8000", 403),
    ],
)
async def test_a_web_page_from_elsewhere_is_refused_where_there_is_no_token(http, origin, host, status):
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    assert (await http.get("/schema", headers=headers)).status_code == status


def test_a_text_is_cut_to_a_number_of_characters_and_says_how_many_are_left_out():
    assert (cut("abc", 3), cut("", 0)) == ("abc", "")
    assert cut("abcde", 3).startswith("abc.") and " [2 " in cut("abcde", 3)
