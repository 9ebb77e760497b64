"""BFCL's own driver on our endpoint: `bfcl generate` asks the served model, `bfcl evaluate` judges what it said, and our grader says the same.

TIR_BFCL_VENV names an environment with the whole package (python -m venv DIR && DIR/bin/pip install bfcl-eval==2026.3.23 soundfile).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import pytest_asyncio

from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.config import Config
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.evaluation.suites import find, rows_of
from openrlhf_tir.serving.app import build_app, serve
from tests.contract.adapters.test_bfcl_driver import MODEL, VENV, bfcl, failed, ours, package_data

from ..support.sessions_actor import Actor
from ..support.tiny_model import save_tiny

pytestmark = [
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(VENV is None, reason="TIR_BFCL_VENV is not set: it names a virtual environment with bfcl-eval and all that it needs"),
]
CONTEXT = 6144
"""A character a token. The driver asks for as many as are left, up to 4,096."""
ASKED = {"simple_python": "bfcl_simple", "irrelevance": "bfcl_irrelevance"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(tmp_path_factory):
    """(the model's directory, base URL). Without a token, which the driver does not send when it asks whether the server is up."""
    model = save_tiny(tmp_path_factory.mktemp("model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    cfg = Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 128, "max_num_seqs": 8},
        ds={"param_dtype": "fp32"},
        data={"max_len": CONTEXT},
        rollout={"max_new_tokens": 256},
    )
    engine = await VllmEngine.start(str(model), cfg)
    server, port = await serve(build_app(RolloutService(Actor(engine, cfg)), token=None, vllm_app=await engine.openai_app(cfg)))
    yield model, f"http://127.0.0.1:{port}/v1"
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    await engine.stop()


async def test_the_packages_driver_asks_our_endpoint_and_our_grader_agrees_with_it(served, tmp_path, monkeypatch):
    model, url = served
    ids = {category: [f"{category}_{i}" for i in range(3)] for category in ASKED}
    (tmp_path / "test_case_ids_to_generate.json").write_text(json.dumps(ids))
    monkeypatch.setenv("REMOTE_OPENAI_BASE_URL", url)
    words = ["generate", "--model", MODEL, "--run-ids", "--skip-server-setup", "--local-model-path", str(model), "--num-threads", "2"]
    await asyncio.to_thread(bfcl, tmp_path, *words)
    await asyncio.to_thread(bfcl, tmp_path, "evaluate", "--model", MODEL, "--test-category", ",".join(ASKED), "--partial-eval")
    judged = []
    for category, suite in ASKED.items():
        found = find(suite, package_data())
        rows = dict(zip((json.loads(line)["id"] for line in found.path.read_text().splitlines()), rows_of(found), strict=True))
        said = said_by(tmp_path, category)
        assert sorted(said) == ids[category] and all(said.values())
        wrong = failed(tmp_path, category)
        judged += [(ours(rows[name], text), name not in wrong) for name, text in said.items()]
    assert len(judged) == 6 and all(a == b for a, b in judged), judged


def said_by(project: Path, category: str) -> dict[str, str]:
    (path,) = (project / "result").rglob(f"BFCL_v4_{category}_result.json")
    return {row["id"]: row["result"] for row in map(json.loads, path.read_text().splitlines())}
