"""Rows of sandboxfusion.jsonl: requests to our own /run_code, and the status rule by itself.

Paths in tracebacks are not compared (rows have <TMP>), nor is execution_time. A row that expects output to be lost
above the pipe's size cannot be checked: ours is read while the code runs.
"""

from __future__ import annotations

import re
import shutil
from functools import cache
from typing import Any

from fastapi.testclient import TestClient

from env_servers.python_tir.env import PythonEnv
from env_servers.python_tir.isolation.bare import BareSandbox
from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.languages import Languages
from env_servers.python_tir.run_code import CommandRunResult, add_run_code, parse_run_status
from env_servers.serving import ServingConfig, create_env_app

from ._compare import mismatches, same

PIPE_BYTES = 65536
FILE = re.compile(r'File "/[^"]*/main\.py"')


def check(row: dict, compat: bool) -> list[str] | None:
    if row["path"] == "parse_run_status":
        status, message = parse_run_status(_part(row["compile"]), _part(row["run"]))
        return mismatches({"status": status, "message": message}, row["expected"])
    if row["path"] != "/run_code":
        return None
    want = row["expected"]
    reply = _client().post(row["path"], json=row["request"])
    if reply.status_code != want["http_status"]:
        return [f"HTTP {reply.status_code} is not {want['http_status']}: {reply.text[:300]}"]
    if reply.status_code == 422:
        detail = reply.json()["detail"]
        return mismatches(
            {"detail_types": [d["type"] for d in detail], "detail_locs": [d["loc"] for d in detail]}, want["json"]
        )
    got = reply.json()
    if row.get("compat_only") and _lost_output(got, want["json"]):
        return None
    return [f"{path}: {a!r} is not {b!r}" for path, a, b in _differences(got, want["json"])]


@cache
def _client() -> TestClient:
    sandbox = BwrapSandbox() if shutil.which("bwrap") else BareSandbox()
    config = ServingConfig(env="python_tir", action="Python")
    app = create_env_app(lambda: PythonEnv(sandbox), config)
    add_run_code(app, sandbox, Languages(sandbox, {}))
    return TestClient(app)


def _part(values: list | None) -> CommandRunResult | None:
    return None if values is None else CommandRunResult(status=values[0], return_code=values[1], stderr=values[2])


def _lost_output(got: dict, want: dict) -> bool:
    """The reference timed out on output that filled its pipe; ours arrived."""
    timed_out = (want.get("run_result") or {}).get("status") == "TimeLimitExceeded"
    return timed_out and len(got["run_result"]["stdout"]) + len(got["run_result"]["stderr"]) > PIPE_BYTES


def _differences(got: Any, want: Any, path: str = "reply") -> list[tuple[str, Any, Any]]:
    """Where `got` lacks something of `want`: a field, a value, the length and start of a long text."""
    if isinstance(want, dict) and "long_string_len" in want:
        fits = isinstance(got, str) and len(got) == want["long_string_len"] and got.startswith(want["starts"])
        return [] if fits else [(path, f"{len(got or '')} characters", want)]
    if isinstance(want, dict) and isinstance(got, dict) and path != "reply.files":
        return [d for key, value in want.items() for d in _differences(got.get(key), value, f"{path}.{key}")]
    if isinstance(want, str) and isinstance(got, str):
        got = FILE.sub('File "<TMP>"', got)
    return [] if same(got, want) else [(path, got, want)]
