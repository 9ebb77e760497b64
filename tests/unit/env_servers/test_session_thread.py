"""An object of TRL's form has one thread for all of its methods, and `close` is called in it when its session ends."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager

import httpx
import pytest

from env_servers.admission import CapacityFull
from env_servers.own import foreign_tools
from env_servers.own.session_thread import SessionThread
from env_servers.serving import ServingConfig, create_env_app
from openrlhf_tir.user_code.plugins import ENVIRONMENT, load

SHOP = '''
import sqlite3
import threading

SEEN = []
RELEASE = threading.Event()


class Shop:
    def __init__(self):
        self.database = sqlite3.connect(":memory:")
        self._note("init")

    def reset(self, n: int = 0, wrong: bool = False, leaves: str = "", **row) -> None:
        self.n, self.leaves = n, leaves
        self.database.execute("create table sold (amount int)")
        self._note("reset")
        if wrong:
            raise KeyError("a column is missing")

    def sell(self, amount: int, thread: int = 0, function: int = 0) -> str:
        """Sell something.

        Args:
            amount: How many.
            thread: A name that the server uses as well.
            function: Another one.
        """
        self._note("sell")
        if amount < 0:
            nothing_of_that_name
        if amount == 99:
            RELEASE.wait(60)
        self.database.execute("insert into sold values (?)", (amount,))
        return str(self.database.execute("select sum(amount) from sold").fetchone()[0])

    def get_reward(self) -> float:
        self._note("get_reward")
        return float(self.database.execute("select count(*) from sold").fetchone()[0])

    def close(self) -> None:
        self._note("close")
        self.database.close()
        if self.leaves == "raises":
            raise ValueError("already closed")
        if self.leaves == "exits":
            raise SystemExit(3)
        if self.leaves == "hangs":
            RELEASE.wait(60)

    def _note(self, method):
        SEEN.append((getattr(self, "n", None), method, threading.get_ident()))
'''


class Server:
    def __init__(self, app, http, seen, release):
        self.app = app
        self.http = http
        self.seen = seen
        self.release = release

    async def open(self, session="s", **row):
        return await self.http.post("/reset", json={"session_id": session, "task": {"label": "", "extra": row}})

    async def sell(self, session="s", step_id=0, deadline_s=20.0, **arguments):
        action = json.dumps([{"name": "sell", "arguments": arguments}])
        request = {"session_id": session, "step_id": step_id, "action": action, "deadline_s": deadline_s}
        return (await self.http.post("/step", json=request)).json()

    async def delete(self, session="s"):
        return (await self.http.delete(f"/session/{session}")).json()

    def calls(self, n=0):
        return [method for seen_n, method, _ in self.seen if seen_n == n]

    async def until_closed(self):
        async with asyncio.timeout(20):
            while not any(method == "close" for _, method, _ in self.seen):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(tmp_path, **config):
    (tmp_path / "shop.py").write_text(SHOP)
    cls = load(ENVIRONMENT, f"{tmp_path / 'shop.py'}:Shop")
    module = cls.environment.reset.__globals__
    module["SEEN"].clear()  # the object that was made to read its tools
    app = create_env_app(cls, ServingConfig(env="shop", action="calls", workers=64, **config))
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
            try:
                yield Server(app, http, module["SEEN"], module["RELEASE"])
            finally:
                module["RELEASE"].set()


def session_threads():
    return [thread for thread in threading.enumerate() if thread.name == "session"]


async def test_all_methods_of_a_session_run_in_its_own_thread_which_ends_with_it(tmp_path):
    before = session_threads()
    async with serving(tmp_path) as server:
        sessions = range(40)
        await asyncio.gather(*(server.open(f"s{n}", n=n) for n in sessions))
        for step_id in range(3):
            replies = await asyncio.gather(*(server.sell(f"s{n}", step_id, amount=n) for n in sessions))
            assert [reply["observation"] for reply in replies] == [str(n * (step_id + 1)) for n in sessions]
            assert {(reply["outcome"], reply["reward"]) for reply in replies} == {("ok", 1.0)}
        await asyncio.gather(*(server.delete(f"s{n}") for n in sessions))
        threads = [{ident for seen_n, _, ident in server.seen if seen_n == n} for n in sessions]
        assert {len(own) for own in threads} == {1} and len(set.union(*threads)) == len(sessions)
        assert {method for _, method, _ in server.seen} == {"init", "reset", "sell", "get_reward", "close"}
        mine = [thread for thread in session_threads() if thread not in before]
        for thread in mine:
            thread.join(10)
        assert not any(thread.is_alive() for thread in mine)


@pytest.mark.parametrize("end", ["deleted", "step raised", "reset raised", "expired", "server stopped"])
async def test_close_is_called_once_however_the_session_ends(tmp_path, end):
    async with serving(tmp_path, session_ttl_s=0.2 if end == "expired" else 60.0) as server:
        opened = await server.open(wrong=end == "reset raised")
        assert opened.status_code == (500 if end == "reset raised" else 200)
        if end == "step raised":
            assert "code_defect" in (await server.sell(amount=-1))["signals"]
        if end in ("deleted", "step raised"):
            assert await server.delete() == {"closed": True}
        if end == "expired":
            await server.until_closed()
    assert server.calls().count("close") == 1


@pytest.mark.parametrize(
    ("leaves", "raised", "logged"), [("raises", "ValueError", "ValueError"), ("exits", "SystemExit", "Exited")]
)
async def test_what_close_raises_is_a_defect_and_costs_neither_a_reply_nor_the_server(
    tmp_path, caplog, leaves, raised, logged
):
    async with serving(tmp_path) as server:
        await server.open(leaves=leaves)
        assert (await server.sell(amount=1))["outcome"] == "ok"
        reply = await server.delete()
        line = next(n for n, text in enumerate(SHOP.splitlines(), 1) if f"raise {raised}" in text)
        assert reply["closed"] and reply["signals"]["code_defect"] == f"{tmp_path / 'shop.py'}:{line}"
        (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
        assert record.exc_info[0].__name__ == logged
        assert (await server.open("other")).status_code == 200


async def test_what_close_raises_behind_a_failed_reset_hides_nothing_of_the_reset(tmp_path):
    async with serving(tmp_path) as server:
        reply = await server.open(wrong=True, leaves="raises")
        assert "KeyError" in reply.json()["detail"] and server.calls() == ["reset", "close"]


@pytest.mark.parametrize("leaves", ["", "raises"])
async def test_a_hanging_call_times_out_and_close_comes_behind_it(tmp_path, caplog, leaves):
    async with serving(tmp_path) as server:
        await server.open(leaves=leaves)
        reply = await server.sell(deadline_s=0.3, amount=99)
        line = SHOP.splitlines().index("            RELEASE.wait(60)") + 1
        assert reply["outcome"] == "timeout" and reply["signals"]["waits_at"] == f"{tmp_path / 'shop.py'}:{line}"
        async with asyncio.timeout(foreign_tools.CLOSE_S / 2):
            assert await server.delete() == {"closed": True}
        assert "close" not in server.calls()
        server.release.set()
        await server.until_closed()
        async with asyncio.timeout(20):
            while leaves == "raises" and not any(record.exc_info for record in caplog.records):
                await asyncio.sleep(0.01)
    assert len([record for record in caplog.records if record.exc_info]) == (leaves == "raises")


async def test_a_close_that_hangs_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_tools, "CLOSE_S", 0.1)
    async with serving(tmp_path) as server:
        reply = await server.open(wrong=True, leaves="hangs")
        assert reply.status_code == 500 and "KeyError" in reply.json()["detail"]


async def test_arguments_of_a_tool_may_have_the_names_that_the_server_uses(tmp_path):
    async with serving(tmp_path) as server:
        await server.open()
        assert (await server.sell(amount=2, thread=1, function=1))["observation"] == "2"


async def test_a_system_without_room_for_a_thread_is_full_and_that_is_no_defect_of_the_class(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    async with serving(tmp_path) as server:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert (await server.open()).status_code == 429
            with pytest.raises(CapacityFull):
                SessionThread().submit(int)
        assert (await server.open()).status_code == 200
