"""What this project relies on in openrlhf, so that an upgrade fails here and says where."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import version

import pytest


def test_openrlhf_is_the_pinned_version():
    assert version("openrlhf") == "0.11.2"


@pytest.fixture(scope="module")
def adapter():
    from openrlhf_tir.learner import openrlhf_adapter

    return openrlhf_adapter


def parameters(f) -> set[str]:
    return set(inspect.signature(f).parameters)


@pytest.mark.slow
def test_models_and_losses_take_the_arguments_we_pass(adapter):
    assert parameters(adapter.Actor.__init__) >= {
        "attn_implementation",
        "param_dtype",
        "ds_config",
        "packing_samples",
        "use_liger_kernel",
    }
    assert parameters(adapter.PolicyLoss.__init__) >= {
        "clip_eps_low", "clip_eps_high", "dual_clip", "token_level_loss", "policy_loss_type",
        "is_correction_level", "is_correction_mode", "is_correction_gating", "is_correction_threshold",
    }  # fmt: skip
    scaling = {"dp_size", "batch_num_tokens", "global_batch_size"}
    assert parameters(adapter.PolicyLoss.forward) >= {
        "log_probs",
        "old_log_probs",
        "advantages",
        "action_mask",
        "rollout_log_probs",
        *scaling,
    }
    assert list(inspect.signature(adapter.SFTLoss.forward).parameters)[1:3] == ["per_token_logps", "loss_mask"]
    assert parameters(adapter.SFTLoss.forward) >= scaling
    assert parameters(adapter.aggregate_loss) >= {"loss", "loss_mask", *scaling}


@pytest.mark.slow
def test_the_strategy_takes_the_arguments_we_pass(adapter):
    strategy = adapter.DeepspeedStrategy
    assert parameters(strategy.__init__) >= {"seed", "max_norm", "zero_stage", "args"}
    assert list(inspect.signature(strategy.get_ds_train_config).parameters) == ["self", "optim_dict", "max_norm"]
    assert list(inspect.signature(strategy.backward).parameters)[:4] == ["self", "loss", "model", "_optimizer"]
    assert list(inspect.signature(strategy.optimizer_step).parameters)[:4] == [
        "self",
        "_optimizer",
        "model",
        "_scheduler",
    ]
    assert parameters(strategy.get_grad_norm) == {"self", "model"}


@pytest.mark.slow
def test_the_flash_attn_stubs_are_gone_after_the_import(adapter):
    from transformers.utils import is_flash_attn_2_available

    if not is_flash_attn_2_available():
        assert not [name for name in sys.modules if name.startswith("flash_attn")]


@pytest.mark.slow
def test_the_dtype_table_is_put_back(adapter):
    with adapter._loading_rules():
        assert adapter.openrlhf_utils.convert_to_torch_dtype("fp32") is adapter.torch.float32
    with pytest.raises(ValueError, match="Invalid param_dtype"):
        adapter.openrlhf_utils.convert_to_torch_dtype("fp32")
