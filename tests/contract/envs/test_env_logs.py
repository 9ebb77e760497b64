"""What a server logs, as a collector reads it."""

from __future__ import annotations

import json
import logging

import pytest

from env_servers.logs import JsonLines, Text

from ..env_process import Http, env_server


@pytest.mark.slow
async def test_a_line_of_json_logs_is_one_event_with_its_fields(tmp_path):
    with env_server("env_servers.echo", tmp_path, "--log-level", "info", "--log-format", "json") as (url, process):
        async with Http(url) as http:
            session = await http.open({"delay_s": 0.2})
            await http.step(session, 0, "hi")
            await http.step(session, 1, "fail")
            await http.step(session, 2, "late", deadline_s=0.05)
        process.terminate()
        lines = [json.loads(line) for line in process.stderr.read().splitlines() if line.startswith("{")]
    events = [(e["level"], e.get("step"), e.get("outcome")) for e in lines if e["logger"] == "env_servers.serving"]
    assert events == [
        ("info", 0, "ok"),
        ("error", 1, None),
        ("warning", 1, "env_error"),
        ("warning", 2, "timeout"),
    ]
    assert {e["message"] for e in lines if "outcome" in e} == {"step"}
    assert {e["session"] for e in lines if "session" in e} == {session}
    assert "RuntimeError: " in next(e["traceback"] for e in lines if "traceback" in e)


def test_fields_follow_the_message_and_a_traceback_follows_them():
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": "step %d", "args": (3,), "session": "a", "created": 0.0, "msecs": 7}
    )
    vars(record).pop("_ray_timestamp_ns", None)  # Ray, once imported, marks every record of its process
    assert json.loads(JsonLines().format(record)) == {
        "time": "1970-01-01T00:00:00.007Z",
        "level": "info",
        "logger": "x",
        "message": "step 3",
        "session": "a",
    }
    assert Text().format(record).endswith("INFO step 3 session=a")
