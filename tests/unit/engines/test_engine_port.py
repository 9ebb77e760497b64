"""Both engines have all that a rollout actor and its HTTP service need of one, by name and by signature; neither vLLM
nor a model is loaded."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import httpx
import pytest

from openrlhf_tir.cluster.service import RolloutService
from openrlhf_tir.config import Config
from openrlhf_tir.engines.start import LatestStats
from openrlhf_tir.engines.torch_engine import TorchEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.errors import EngineError
from openrlhf_tir.ports import RolloutEngine
from openrlhf_tir.rollout.serving.app import build_app


class Llm:
    """What VllmEngine asks of AsyncLLM when it is built."""

    model_config = SimpleNamespace(get_vocab_size=lambda: 320, max_model_len=384)


def torch_engine() -> TorchEngine:
    config = SimpleNamespace(vocab_size=320, max_position_embeddings=512, tie_word_embeddings=True)
    model = SimpleNamespace(
        float=lambda: model, eval=lambda: model, generation_config=SimpleNamespace(eos_token_id=2), config=config
    )
    return TorchEngine(model, SimpleNamespace(tokenizer=SimpleNamespace(eos_token_id=2)))


def engines() -> list[RolloutEngine]:
    return [VllmEngine(Llm(), "model", LatestStats(), 0, Config()), torch_engine()]


def members(protocol: type) -> dict[str, object]:
    return {name: value for base in protocol.__mro__ for name, value in vars(base).items() if not name.startswith("_")}


@pytest.mark.parametrize("engine", engines(), ids=lambda e: type(e).__name__)
def test_an_engine_has_all_of_the_port(engine):
    wanted = members(RolloutEngine).keys() | RolloutEngine.__annotations__.keys()
    missing = [name for name in wanted if not hasattr(engine, name)]
    assert not missing and isinstance(engine, RolloutEngine)
    assert engine.broken is None and engine.version == 0


@pytest.mark.parametrize("engine_class", [VllmEngine, TorchEngine])
def test_its_methods_take_what_the_port_says(engine_class):
    methods = {
        name: m for name, m in members(RolloutEngine).items() if inspect.isfunction(m) or isinstance(m, classmethod)
    }
    assert {"generate", "alive", "update_weights", "start"} <= methods.keys()
    for name in methods:
        wanted, found = (inspect.signature(getattr(c, name)).parameters.values() for c in (RolloutEngine, engine_class))
        assert [(p.name, p.kind, p.default) for p in found] == [(p.name, p.kind, p.default) for p in wanted], name
        asynchronous = inspect.iscoroutinefunction(getattr(RolloutEngine, name))
        assert inspect.iscoroutinefunction(getattr(engine_class, name)) == asynchronous, name


class Figures:
    def stats(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("engine", engines(), ids=lambda e: type(e).__name__)
async def test_the_health_of_an_actor_is_answered_whichever_engine_it_has(engine):
    actor = SimpleNamespace(engine=engine, request_queue=Figures(), envs=Figures(), agents=Figures(), name="rollout-0")
    app = build_app(RolloutService(actor), token=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://actor") as http:
        assert (await http.get("/health")).json() == {
            "status": "ok",
            "detail": None,
            "actor": "rollout-0",
            "version": 0,
        }
        engine.broken = "weight push failed"
        assert (await http.get("/health")).json()["status"] == "broken"
    with pytest.raises(EngineError, match="weight push failed"):
        await engine.alive()
