"""Routing replay: a mixture's routers choose the experts that they are given, and their weights stay the learner's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from miniatures.toy.model import build_mixture, build_model
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.learner.packing import OWN_EXPERTS, Row, collate
from openrlhf_tir.learner.routing_replay import RoutingReplay, find_routers

TOKENS = 12


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 90, (1, TOKENS), generator=torch.Generator().manual_seed(0))


def chosen_experts(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """[tokens, layers, k]: what the routers choose in a forward pass."""
    chosen: dict[int, torch.Tensor] = {}
    hooks = [
        router.register_forward_hook(lambda module, args, output, layer=layer: chosen.update({layer: output[2]}))
        for layer, router in find_routers(model).items()
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack([chosen[layer] for layer in sorted(chosen)], dim=1)


def gradients(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(ids).logits.log_softmax(-1)[0, :, 5].sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_the_routers_choose_the_given_experts_in_every_layer(ids):
    model = build_mixture(0)
    replay = RoutingReplay(model)
    given = torch.stack([(torch.arange(TOKENS * 3).view(TOKENS, 3) + shift) % 8 for shift in (1, 4)], -1).short()
    replay.use(given)
    assert torch.equal(chosen_experts(model, ids), given.long())
    replay.use(None)
    assert torch.equal(chosen_experts(model, ids), chosen_experts(build_mixture(0), ids))


def test_a_token_without_given_experts_gets_the_routers_own(ids):
    model = build_mixture(0)
    own = chosen_experts(model, ids)
    replay = RoutingReplay(model)
    given = own.short()
    given[5:] = OWN_EXPERTS
    given[2, 1] = torch.tensor([0, 7])
    replay.use(given)
    chosen = chosen_experts(model, ids)
    assert chosen[2, 1].tolist() == [0, 7]
    assert torch.equal(chosen[:2], own[:2])
    replay.use(torch.full_like(given, OWN_EXPERTS))
    assert torch.equal(chosen_experts(model, ids), own)


def test_the_gradient_is_that_of_plain_routing_where_the_experts_are_the_routers_own(ids):
    model = build_mixture(0)
    plain = gradients(model, ids)
    own = chosen_experts(model, ids)
    RoutingReplay(model).use(own.short())
    replayed = gradients(model, ids)
    assert replayed.keys() == plain.keys()
    assert all(torch.allclose(replayed[name], plain[name], atol=1e-6) for name in plain)
    assert plain["model.layers.0.mlp.gate.weight"].abs().max() > 0


def test_the_gates_weights_are_the_learners_own_at_the_given_experts():
    """Two experts of eight at random: their weights are the softmax over all experts, of these two, normalised."""
    model = build_mixture(0)
    router = find_routers(model)[0]
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    replay = RoutingReplay(model)
    replay.use(torch.tensor([[[6, 1]], [[0, 2]], [[3, 4]]], dtype=torch.int16).expand(3, 3, 2))
    _, weights, experts = router(hidden)
    logits = hidden @ router.weight.T
    expected = logits.gather(-1, experts).softmax(-1)
    assert experts.tolist() == [[6, 1], [0, 2], [3, 4]]
    assert torch.allclose(weights, expected, atol=1e-6)
    weights[:, 0].sum().backward()
    assert router.weight.grad[6].abs().max() > 0
    assert router.weight.grad[5].abs().max() < 1e-6


def test_the_experts_stay_for_layers_that_are_computed_again_in_the_backward_pass(ids):
    model = build_mixture(0).train()
    given = torch.zeros(TOKENS, 3, 2, dtype=torch.int16)
    given[..., 1] = 5
    replay = RoutingReplay(model)
    replay.use(given)
    kept = gradients(model, ids)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    recomputed = gradients(model, ids)
    assert all(torch.allclose(recomputed[name], kept[name], atol=1e-6) for name in kept)


def test_a_router_with_groups_of_experts_keeps_its_own_arithmetic():
    """DeepSeek-V3 scores by a sigmoid, adds a bias to the choice alone, and chooses groups before experts."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=8, n_routed_experts=8, num_experts_per_tok=2, n_group=4, topk_group=2, routed_scaling_factor=2.5
    )
    router = DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    router.e_score_correction_bias.zero_()
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([router])})
    replay = RoutingReplay(model)
    hidden = torch.randn(2, 8, generator=torch.Generator().manual_seed(1))
    replay.use(torch.tensor([[[7, 0]], [[3, 5]]], dtype=torch.int16))
    _, weights, experts = router(hidden)
    scores = (hidden @ router.weight.T).sigmoid().gather(-1, torch.tensor([[7, 0], [3, 5]]))
    assert experts.tolist() == [[7, 0], [3, 5]]
    assert torch.allclose(weights, 2.5 * scores / scores.sum(-1, keepdim=True), atol=1e-5)


def test_an_expert_of_a_group_that_the_learner_would_not_choose_keeps_its_weight():
    """DeepSeek-V2 masks the scores of all other groups with 0 before it takes the weights from them."""
    from transformers import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = DeepseekV2Config(
        hidden_size=4,
        num_attention_heads=2,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=1.0,
    )
    router = DeepseekV2TopkRouter(config)
    # The logits are the first hidden value times 8, 7, ..., 1, so the router itself chooses experts 0 and 1.
    router.weight.data = torch.zeros(8, 4).index_copy(1, torch.tensor([0]), torch.arange(8.0, 0.0, -1.0)[:, None])
    hidden = torch.tensor([[0.5, 0.0, 0.0, 0.0]] * 2)
    replay = RoutingReplay(in_layer(router))
    replay.use(torch.tensor([[[6, 5]], [[OWN_EXPERTS, OWN_EXPERTS]]], dtype=torch.int16))
    _, weights, experts = router(hidden)
    scores = (torch.arange(8.0, 0.0, -1.0) * 0.5).softmax(0)
    assert experts.tolist() == [[6, 5], [0, 1]]
    assert torch.allclose(weights, torch.stack([scores[[6, 5]], scores[[0, 1]]]))


def in_layer(router: torch.nn.Module) -> torch.nn.Module:
    """A model whose layer 0 has this router and nothing else."""
    return torch.nn.ModuleDict({"layers": torch.nn.ModuleList([router])})


def gpt_oss() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

    config = GptOssConfig(hidden_size=4, num_local_experts=6, num_experts_per_tok=2)
    return GptOssTopKRouter(config), (torch.randn(3, 4),)


def afmoe() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Its linear layer is a module within the router, and a bias of the choice comes from outside."""
    from transformers import AfmoeConfig
    from transformers.models.afmoe.modeling_afmoe import AfmoeTokenChoiceRouter

    config = AfmoeConfig(hidden_size=4, num_experts=6, num_experts_per_tok=2)
    return AfmoeTokenChoiceRouter(config), (torch.randn(1, 3, 4), torch.zeros(6))


def gemma4() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """It reads all of its sizes from the configuration."""
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRouter

    config = Gemma4TextConfig(hidden_size=4, num_experts=6, top_k_experts=2)
    return Gemma4TextRouter(config), (torch.randn(3, 4),)


@pytest.mark.parametrize("build", [gpt_oss, afmoe, gemma4])
def test_routers_of_other_forms_choose_the_given_experts_too(build):
    router, arguments = build()
    RoutingReplay(in_layer(router)).use(torch.tensor([[[5, 1]], [[0, 2]], [[3, 4]]], dtype=torch.int16))
    _, weights, experts = router(*arguments)
    assert experts.tolist() == [[5, 1], [0, 2], [3, 4]]
    assert weights.shape == (3, 2) and weights.isfinite().all()


def test_a_model_without_routers_is_refused():
    with pytest.raises(ConfigError, match=r"rollout\.routing_replay"):
        RoutingReplay(build_model(0))


def test_a_layer_whose_experts_are_chosen_without_topk_is_refused_when_the_model_is_loaded():
    """Phi-3.5-MoE chooses by a function of its own; DeepSeek-V4 has layers that choose by the token's id."""

    class HashRouter(torch.nn.Module):
        num_experts = 8

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden.argmax(-1)

    class HashExperts(torch.nn.Module):
        pass

    model = build_mixture(0)
    model.model.layers[1].mlp.gate = HashRouter()
    with pytest.raises(ConfigError, match=r"\[1\].*rollout\.routing_replay"):
        RoutingReplay(model)
    alone = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Sequential(HashRouter(), HashExperts())])})
    with pytest.raises(ConfigError, match=r"rollout\.routing_replay"):
        RoutingReplay(alone)


@pytest.mark.parametrize("shape", [(TOKENS, 3, 3), (TOKENS - 1, 3, 2)])
def test_a_replay_that_would_do_nothing_is_an_error(ids, shape):
    """Another number of experts for a token, or of tokens: the router never makes such a choice."""
    model = build_mixture(0)
    RoutingReplay(model).use(torch.zeros(shape, dtype=torch.int16))
    with pytest.raises(ConfigError, match=r"^[^:]* 0 .*rollout\.routing_replay"):
        model(ids)


def test_a_micro_batch_has_the_experts_of_its_rows_and_the_routers_own_where_they_are_missing():
    known = np.arange(2 * 1 * 2, dtype=np.uint8).reshape(2, 1, 2)
    rows = [Row(np.array([7, 8, 9]), experts=known), Row(np.array([4, 5]))]
    micro = collate(rows, {}, "cpu")
    assert micro.experts is not None
    assert micro.experts[:, :, 0].tolist() == [[[0, 1], [2, 3], [-1, -1]], [[-1, -1]] * 3]
    assert collate([Row(np.array([4, 5]))], {}, "cpu").experts is None


def test_the_experts_of_tokens_that_a_row_no_longer_has_are_left_out():
    """Whether the row is the longest of its micro batch or not."""
    row = Row(np.array([7, 8]), experts=np.ones((4, 1, 2), np.uint8))
    for width, rows in ((2, [row]), (3, [row, Row(np.array([7, 8, 9]))])):
        micro = collate(rows, {}, "cpu")
        assert micro.experts is not None and micro.experts.shape == (len(rows), width, 1, 2)
        assert micro.experts[0, :, 0, 0].tolist() == [1, 1, OWN_EXPERTS][:width]
