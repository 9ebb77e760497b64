"""Agent files in worker processes that start at once, and end with their test."""

from __future__ import annotations

import os
import sys

import pytest

from openrlhf_tir.config.settings import load
from openrlhf_tir.rollout.protocols.agent_file.agent_file import AgentFile
from tests.conftest import REPO
from tests.unit.rollout.protocols.agent_file.agent_fakes import Scripted, write
from tests.unit.rollout.test_episode import CharCodec

TRANSFORMERS = '''
class _Ids(list):
    def tolist(self):
        return list(self)


class AutoTokenizer:
    """Characters, in the form in which agent files ask."""

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def __call__(self, text, add_special_tokens, return_tensors):
        return {"input_ids": [_Ids(ord(c) for c in text)]}

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))
'''


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A worker that starts at once: the real transformers take seconds of CPU to import."""
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick/transformers.py").write_text(TRANSFORMERS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'quick'}{os.pathsep}{REPO}", prepend=os.pathsep)


@pytest.fixture
async def agent_of(tmp_path):
    """Starts an agent file, and ends what it has started."""
    started = []

    async def start(text, codec=None, *, model="", **settings):
        codec = codec or CharCodec()
        given = {
            "run_dir": str(tmp_path / "run"),
            "train.agent_func_path": write(tmp_path, text),
            "data.max_len": 200,
            "rollout.max_new_tokens": 64,
        }
        cfg = load(None, given | settings)
        engine = Scripted(codec)
        started.append(AgentFile(cfg, model, engine, codec, "rollout-0", sys.maxunicode + 1))
        await started[-1].start()
        return started[-1], engine

    yield start
    for agent in started:
        await agent.stop()
