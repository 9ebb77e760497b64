"""What leaves a learner's GPU while engines sample on it, and what DeepSpeed is told. Without a GPU: its engines are
stand-ins, its calls the real ones."""

from __future__ import annotations

import inspect

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import PipelineError
from openrlhf_tir.learner.device_states import DeviceStates

pytestmark = pytest.mark.slow  # importing torch and DeepSpeed


class Engine:
    """A DeepSpeedEngine's two calls, and what is below them."""

    def __init__(self, name: str, events: list) -> None:
        import torch

        self.name, self.events = name, events
        self.weight = torch.nn.Parameter(torch.arange(4.0))
        self.adam = torch.optim.AdamW([self.weight])
        self.weight.grad = torch.ones(4)
        self.adam.step()
        self.optimizer = type("Zero", (), {"optimizer": self.adam})()

    def offload_states(self, *, include):
        from deepspeed.runtime.zero.offload_states import offload_adam_states

        self.events.append((self.name, "offload", sorted(state.name for state in include)))
        offload_adam_states(self.adam, "cpu")

    def reload_states(self):
        from deepspeed.runtime.zero.offload_states import reload_adam_states

        self.events.append((self.name, "reload"))
        reload_adam_states(self.adam, "cpu")


@pytest.fixture
def moved(monkeypatch):
    """(the states of a policy and a critic, what happened to them)."""
    events: list = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda: events.append("synchronize"))
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: events.append("empty cache"))
    monkeypatch.setattr("torch.distributed.barrier", lambda: events.append("barrier"))
    engines = {name: Engine(name, events) for name in ("zero", "critic")}
    return DeviceStates(lambda: engines, "cuda:0"), engines, events


LEAVES = ["contiguous_grad_buffer", "hp_params", "lp_grads", "optim_states"]
"""Not lp_params: the weights are pushed, scored with, saved and exported while engines sample."""
SETTLED = ["synchronize", "empty cache", "barrier"]


def test_all_of_policy_and_critic_but_the_weights_leaves_and_comes_back_once(moved):
    states, _, events = moved
    for call in (states.offload, states.offload, states.onload, states.onload):
        call()
    assert events == [
        *(("zero", "offload", LEAVES), ("critic", "offload", LEAVES), *SETTLED),
        *(*SETTLED, ("zero", "reload"), ("critic", "reload"), *SETTLED),
    ]


def test_a_checkpoint_holds_the_moments_once_whether_they_are_offloaded_or_were(moved):
    states, engines, _ = moved
    adam = engines["zero"].adam
    never = {key: value.clone() for key, value in adam.state_dict()["state"][0].items()}
    for call in (states.offload, states.onload, states.offload):
        call()
        assert adam.state_dict()["state"][0].keys() > never.keys(), (
            "DeepSpeed's host copies are in the optimiser's state"
        )
        with states.without_host_copies():
            kept = adam.state_dict()["state"][0]
            assert kept.keys() == never.keys() and all((kept[key] == never[key]).all() for key in never)
    states.onload()  # the copies were put back, else DeepSpeed would miss them


def test_a_step_while_the_states_are_away_is_a_bug_that_says_so(moved):
    states, _, _ = moved
    states.require_on_device("A step")
    states.offload()
    with pytest.raises(PipelineError):
        states.require_on_device("A step")
    states.onload()
    states.require_on_device("A step")


def test_on_a_cpu_nothing_moves_and_the_order_of_the_calls_is_checked_all_the_same():
    states = DeviceStates(lambda: pytest.fail("the engines are left alone"), "cpu")
    states.offload()
    with pytest.raises(PipelineError):
        states.require_on_device("A step")
    states.onload()
    states.require_on_device("A step")


def test_the_calls_are_the_installed_deepspeeds():
    from deepspeed import DeepSpeedEngine
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    inspect.signature(DeepSpeedEngine.offload_states).bind(
        None, include=[OffloadStateTypeEnum[name] for name in LEAVES]
    )
    inspect.signature(DeepSpeedEngine.reload_states).bind(None)
    assert {state.name for state in OffloadStateTypeEnum} - set(LEAVES) == {"lp_params"}
    assert "FusedAdam" in inspect.getsource(DeepSpeedZeroOptimizer_Stage3.offload_states), (
        "other optimisers may be allowed now: see get_ds_train_config"
    )


@pytest.mark.parametrize(
    ("colocated", "device", "offload", "torchs"),
    [
        (True, "cuda:0", False, False),
        (True, "cpu", False, True),
        (False, "cuda:0", False, True),
        (True, "cuda:0", True, False),
    ],
)
def test_on_a_shared_gpu_the_optimiser_is_the_one_that_deepspeed_moves(colocated, device, offload, torchs):
    from openrlhf_tir.learner.openrlhf_adapter import ZeroStrategy

    cfg = Config(train={"colocate_all": colocated}, pipeline={"mode": "sync"}, ds={"adam_offload": offload})
    strategy = ZeroStrategy(cfg)
    strategy.device, strategy.world_size = device, 1
    made = strategy.get_ds_train_config({"type": "AdamW", "params": {"lr": 1e-6}}, max_norm=1.0)
    assert made["optimizer"]["params"].get("torch_adam", False) is torchs
