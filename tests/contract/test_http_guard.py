"""The HTTP guard on real sockets: who sends slowly, too much, too often, or leaves, harms nobody else."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from asyncio.trsock import TransportSocket
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
from fastapi import FastAPI, Request, Response

from openrlhf_tir.http_guard import connections as guarded_connections
from openrlhf_tir.http_guard import guard as guard_module
from openrlhf_tir.http_guard.connections import ConnectionLimits
from openrlhf_tir.http_guard.guard import BodyLimits, Guard

from .env_process import Http, env_server, growing
from .in_process import Wire, serving, until

PATIENT = ConnectionLimits(header_timeout_s=60, idle_timeout_s=60, write_timeout_s=60)
MUCH = 16 << 20
"""Bytes, several times what the kernel holds for a client that does not read."""
HEADER = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


def guarded(connections: ConnectionLimits = PATIENT, **limits) -> FastAPI:
    app = FastAPI()
    app.state.connections = connections
    app.state.go_on = asyncio.Event()
    app.state.at_wait = app.state.at_much = 0

    def guard(inner) -> Guard:
        app.state.guard = Guard(inner, token=None, limits=BodyLimits(**limits))
        return app.state.guard

    app.add_middleware(guard)
    app.middleware_stack = app.build_middleware_stack()  # not with the first request: `held` may be asked before

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    @app.get("/wait")
    async def wait() -> Response:
        app.state.at_wait += 1
        await app.state.go_on.wait()
        return Response(b"done")

    @app.get("/much")
    async def much() -> Response:
        app.state.at_much += 1
        return Response(b"x" * MUCH)

    return app


def held(app: FastAPI) -> int:
    """Bytes of bodies that the guard counts."""
    return app.state.guard._held


def _peeked(connection: TransportSocket) -> bytes | None:
    """The first byte that waits to be read, b"" at the end of the stream; None: nothing came in a tenth of a second."""
    readable = select.poll()  # select() takes no number above 1,023, which a process of many tests may reach
    readable.register(connection, select.POLLIN)
    if not readable.poll(100):
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as copy:
        return copy.recv(1, socket.MSG_PEEK)


# The deadline of a header begins with the connection: this process may miss a short one before it has sent a byte, and
# is then, rightly, not answered at all. So each of these tests tries longer ones as well.


@pytest.mark.parametrize("begins", [b"", b"G", b"GET /wait HTTP/1.1\r\nHost: x\r\n"])
async def test_a_request_header_that_does_not_come_ends_the_connection(begins):
    for timeout_s in growing(0.1):
        async with serving(guarded(replace(PATIENT, header_timeout_s=timeout_s))) as port:
            wire = await Wire.to(port)
            await wire.say(begins)
            if (answered := (await wire.rest()).startswith(b"HTTP/1.1 408")) == bool(begins):
                break
    assert answered == bool(begins)


async def _trickle(wire: Wire, gone: asyncio.Event) -> None:
    wire.writer.write(b"GET /wait HTTP/1.1\r\n")
    while not gone.is_set():
        wire.writer.write(b"X-Y: z\r\n")
        await asyncio.sleep(0.02)


async def test_a_header_that_trickles_is_no_sign_of_life():
    for timeout_s in growing(0.3):
        async with serving(guarded(replace(PATIENT, header_timeout_s=timeout_s))) as port:
            wire, gone = await Wire.to(port), asyncio.Event()
            trickling = asyncio.create_task(_trickle(wire, gone))
            answer = await wire.rest()
            gone.set()
            await trickling
        if answer:
            break
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("begins", [b"GET /wait HTTP/1.1\r\n", HEADER + b"half"])
async def test_who_goes_on_sending_still_reads_why_the_connection_ends(begins, monkeypatch):
    # the second that the server lingers is not to be over before this process has read
    monkeypatch.setattr(guarded_connections, "LINGER_S", 60.0)
    monkeypatch.setattr(guard_module, "LINGER_S_OF_A_SLOW_CLIENT", 60.0)
    for timeout_s in growing(0.1):
        limits = replace(PATIENT, header_timeout_s=timeout_s)
        async with serving(guarded(limits, body_timeout_s=0.1)) as port:
            wire = await Wire.to(port)
            wire.writer.transport.pause_reading()
            wire.writer.write(begins)
            while (first := await asyncio.to_thread(_peeked, wire.writer.get_extra_info("socket"))) is None:
                pass
            if not first:
                continue  # closed before a byte had come
            # a closed socket is reset by the first; the transport gives up at the next, and reads no more
            for _ in range(3):
                await wire.say(b"X-Y: z\r\n")
                await asyncio.sleep(0.05)
            wire.writer.transport.resume_reading()
            assert await wire.status() == 408
            return
    raise AssertionError("closed without an answer")


async def test_a_second_request_that_trickles_is_ended_as_the_first_would_be():
    answer = b""
    for timeout_s in growing(0.2):
        async with serving(guarded(replace(PATIENT, header_timeout_s=timeout_s))) as port:
            wire = await Wire.to(port)
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await wire.ask("POST", "/echo", {})
                assert await wire.status() == 200
                await wire.say(b"GET /wa")
                answer = await wire.rest()
                break
    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_body_that_stalls_is_408_and_a_connection_without_a_next_request_is_closed():
    async with serving(guarded(replace(PATIENT, idle_timeout_s=0.1), body_timeout_s=0.1)) as port:
        stalls, idle = await Wire.to(port), await Wire.to(port)
        await stalls.say(HEADER + b"half")
        assert await stalls.status() == 408
        assert await stalls.rest() == b""
        await idle.ask("POST", "/echo", {})
        assert await idle.status() == 200
        assert await idle.rest() == b""


async def test_an_answer_may_take_longer_than_any_deadline_for_the_request():
    for timeout_s in growing(0.05):
        app = guarded(ConnectionLimits(header_timeout_s=timeout_s, idle_timeout_s=timeout_s), body_timeout_s=timeout_s)
        async with serving(app) as port:
            wire = await Wire.to(port)
            wire.writer.write(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda wire=wire, app=app: app.state.at_wait or wire.reader.at_eof())
            if not app.state.at_wait:
                continue  # it came too late
            await asyncio.sleep(3 * timeout_s)
            app.state.go_on.set()
            assert await wire.status() == 200
            return
    raise AssertionError("the request was never answered")


async def test_at_the_cap_who_waits_longest_without_a_request_makes_room():
    async with serving(guarded(replace(PATIENT, max_connections=2))) as port:
        first, second, third = [await Wire.to(port) for _ in range(3)]
        assert await first.rest() == b""
        for wire in (second, third):
            await wire.ask("POST", "/echo", {})
            assert await wire.status() == 200


async def test_when_every_connection_is_being_answered_another_one_is_told_to_come_again():
    app = guarded(replace(PATIENT, max_connections=2))
    async with serving(app) as port:
        busy = [await Wire.to(port) for _ in range(2)]
        for wire in busy:
            await wire.ask("GET", "/wait")
        await until(lambda: app.state.at_wait == 2)
        late = await Wire.to(port)
        await late.ask("POST", "/echo", {})
        assert (await late.status(), b"retry-after: 1" in late.head.lower()) == (429, True)
        assert await late.rest() == b""
        app.state.go_on.set()
        assert [await wire.status() for wire in busy] == [200, 200]


def accepted(port: int) -> int:
    """The connections that a server of this process holds."""
    own = psutil.Process().net_connections("tcp")
    return sum(c.laddr.port == port and c.status != psutil.CONN_LISTEN for c in own)


async def test_a_client_that_does_not_read_is_cut():
    app = guarded(replace(PATIENT, write_timeout_s=0.2))
    async with serving(app) as port:
        wire = await Wire.to(port)
        wire.writer.transport.pause_reading()
        await wire.ask("GET", "/much")
        await until(lambda: app.state.at_much)
        await until(lambda: not accepted(port))
        wire.writer.transport.resume_reading()
        assert len(await wire.rest()) < MUCH


async def test_bodies_of_all_requests_together_have_a_limit_that_comes_free_again():
    app = guarded(held_bytes=150)
    async with serving(app) as port:
        first, second = await Wire.to(port), await Wire.to(port)
        await first.say(HEADER + b"x" * 90)
        await until(lambda: held(app) == 90)
        await second.say(HEADER + b"y" * 90)
        assert (await second.status(), b"retry-after: 1" in second.head.lower()) == (429, True)
        await first.say(b"x" * 10)
        assert (await first.status(), first.body) == (200, b"x" * 100)
        await until(lambda: held(app) == 0)
        third = await Wire.to(port)
        await third.say(HEADER + b"z" * 100)
        assert (await third.status(), third.body) == (200, b"z" * 100)


async def test_who_leaves_in_the_middle_of_a_body_is_forgotten():
    app = guarded(held_bytes=150)
    async with serving(app) as port:
        for _ in range(5):
            wire = await Wire.to(port)
            await wire.say(HEADER + b"x" * 90)
            await until(lambda: held(app) >= 90)
            wire.leave()
            await until(lambda: held(app) == 0)
        wire = await Wire.to(port)
        await wire.say(HEADER + b"z" * 100)
        assert await wire.status() == 200


@pytest.mark.slow
async def test_six_hundred_connections_that_never_finish_a_request_are_closed_and_memory_stays_bounded(tmp_path):
    def resident_mib(pid: int) -> int:
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) >> 10 for line in f if line.startswith("VmHWM"))

    with env_server("env_servers.echo", tmp_path, "--header-timeout", "5", "--body-timeout", "5") as (url, process):
        before, port = resident_mib(process.pid), int(url.rsplit(":", 1)[1])
        wires = [await Wire.to(port) for _ in range(600)]
        big = (
            b"POST /step HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n"
            + b"x" * (1 << 20)
        )
        for i, wire in enumerate(wires):
            with suppress(ConnectionError):  # it was closed already
                await wire.say([b"", b"POST /step HTTP/1.1\r\nHost", big][i % 3])
        async with Http(url) as http:
            assert (await http.send("GET", "/health"))[0] == 200
            await asyncio.gather(*[wire.rest() for wire in wires])
            assert (await http.send("GET", "/health"))[0] == 200
        grown = resident_mib(process.pid) - before
    print(f"memory grew by {grown} MiB")
    assert grown < 420, "256 MiB of bodies, and what the parsers hold"


async def test_nobody_waits_behind_who_never_finishes():
    async with serving(guarded()) as port:
        idle = [await Wire.to(port) for _ in range(200)]
        for wire in idle:
            await wire.say(HEADER)
        wire = await Wire.to(port)
        await wire.ask("POST", "/echo", {"a": 1})
        assert await wire.status() == 200
        for wire in idle:
            wire.leave()
