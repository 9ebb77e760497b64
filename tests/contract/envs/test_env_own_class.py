"""An environment class in a file of one's own: the server that a run starts for `env.file`."""

from __future__ import annotations

import subprocess
import sys

from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.config.settings import load
from openrlhf_tir.envs.client import EnvClient

from ..docs.docs_blocks import block


async def test_a_run_starts_the_server_of_a_class_and_its_word_arrives(tmp_path):
    (tmp_path / "guess.py").write_text(block("environments.md", "python", "class GuessEnv"))
    cfg = load(None, {"env.name": "guess", "env.file": f"{tmp_path}/guess.py:GuessEnv", "run_dir": str(tmp_path)})
    async with env_urls(cfg) as urls:
        client = EnvClient.of(cfg.env, urls, token=None, owner="test")
        async with client.session("guess", {"high": 1, "label": "-"}, seed=0) as session:
            assert await session.reset() == "I think of a number between 1 and 1."
            reply = await session.step("1", step_id=0)
        await client.close()
    assert (reply.observation, reply.reward, reply.done) == ("Correct.", 1.0, True)


def test_a_file_without_the_class_is_one_line(tmp_path):
    (tmp_path / "guess.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "env_servers.own", f"{tmp_path}/guess.py:GuessEnv", "--name", "guess"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.strip().endswith("has no 'GuessEnv'. It defines: nothing.") and "Traceback" not in done.stderr
