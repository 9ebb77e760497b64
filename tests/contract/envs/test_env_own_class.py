"""An environment class in a file of one's own: the server that a run starts for `env.file`."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys

import pytest

from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.config.own_files import freeze
from openrlhf_tir.config.settings import load
from openrlhf_tir.rollout.environment_client.client import EnvClient
from openrlhf_tir.user_code.plugins import ENVIRONMENT
from openrlhf_tir.user_code.plugins import load as load_plugin

from ..docs.docs_blocks import block
from ..env_process import Http


@pytest.mark.slow
async def test_a_run_starts_the_server_of_an_environment_class(tmp_path):
    (tmp_path / "guess.py").write_text(block("environments.md", "python", "class GuessEnv"))
    cfg = load(None, {"env.name": "guess", "env.file": f"{tmp_path}/guess.py:GuessEnv", "run_dir": str(tmp_path)})
    async with env_urls(cfg) as urls:
        client = EnvClient.of(cfg.environments, urls, owner="test")
        async with client.session("guess", {"high": 1, "label": "-"}, seed=0) as session:
            assert await session.reset() == "I think of a number between 1 and 1."
            reply = await session.step("1", step_id=0)
        await client.close()
    assert (reply.observation, reply.reward, reply.done) == ("Correct.", 1.0, True)


async def test_each_session_of_the_pages_database_has_its_own_which_its_end_closes(tmp_path, monkeypatch):
    (tmp_path / "sql.py").write_text(block("environments.md", "python", "class Database"))
    cls = load_plugin(ENVIRONMENT, f"{tmp_path}/sql.py:Database")
    task = {"label": "", "extra": {"tables": "create table fruit (name); insert into fruit values ('pear')"}}

    async def query(env, sql):
        return await env.step(json.dumps([{"name": "query", "arguments": {"sql": sql}}]), 5.0)

    envs = [cls(), cls()]
    for env in envs:
        assert await env.reset(task, seed=0) == ""
    assert (await query(envs[0], "delete from fruit")).observation == "no rows"
    assert (await query(envs[1], "select name from fruit")).observation == "('pear',)"
    for wrong in ("selct", f"attach '{tmp_path}/x.db' as x"):
        assert (await query(envs[1], wrong)).signals["error_type"] == "refused"
    assert not (tmp_path / "x.db").exists()
    closed = []

    def close(self):
        shipped_close(self)
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            self.connection.execute("select 1")
        closed.append(self)

    shipped_close = cls.environment.close
    monkeypatch.setattr(cls.environment, "close", close)
    for env in envs:
        await env.close()
    assert len(closed) == 2


BAD = """
from env_servers.env import Env

class Bad(Env):
    def __init__(self, replies, high: int = 1):
        self.replies, self.high = replies, high

    async def reset(self, task, seed):
        return None if task.get("silent") else f"up to {self.high}"

    async def step(self, action, deadline_s):
        return self.replies[action]
"""


@pytest.mark.slow
async def test_keywords_of_an_environment_class_are_options_and_its_results_are_checked(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    cfg = load(
        None,
        {
            "env.file": f"{tmp_path}/bad.py",
            "env.server_options": {"replies": {"x": None}, "high": 7, "max_sessions": 1},
            "run_dir": str(tmp_path),
        },
    )
    cfg = freeze(cfg, tmp_path / "own")
    (copy,) = (tmp_path / "own").iterdir()
    async with env_urls(cfg) as urls, Http(urls["python_tir"][0]) as http:
        status, body, _ = await http.send("POST", "/reset", json={"task": {"silent": True}})
        assert status == 500 and body["detail"].startswith(f"env_error: {copy}:8: Bad.reset ")
        assert "None (NoneType)" in body["detail"]
        _, opened, _ = await http.send("POST", "/reset", json={})
        assert opened["observation"] == "up to 7"
        _, reply, _ = await http.step(opened["session_id"], 0, "x")
        assert reply["outcome"] == "env_error"
        assert reply["signals"]["code_defect"] == f"{copy}:11"
        assert re.match(r"Bad\.step .*None \(NoneType\).* env_servers\.env\.Step", reply["signals"]["error"])
        assert (await http.send("POST", "/reset", json={}))[0] == 429, "max_sessions is the server's"


@pytest.mark.slow
def test_a_file_without_the_class_is_refused_in_one_line(tmp_path):
    (tmp_path / "guess.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "env_servers.own", f"{tmp_path}/guess.py:GuessEnv", "--name", "guess"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/guess.py" in last and "'GuessEnv'" in last
