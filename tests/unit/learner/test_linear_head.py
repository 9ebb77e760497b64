"""The chunked head against the plain formulas: the same numbers and gradients, in float64, whatever the chunks."""

from __future__ import annotations

import math
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from openrlhf_tir.learner import linear_head  # noqa: E402
from openrlhf_tir.learner.linear_head import ScoringHead, chunked_scores  # noqa: E402
from openrlhf_tir.learner.truncation import Truncation  # noqa: E402

T, H, V = 13, 5, 11


def plain(hidden, weight, targets, bias=None, temperature=1.0):
    """log_softmax(h W^T + b) at the targets, and the entropy, in one piece."""
    log_all = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias) / temperature, -1)
    return log_all.gather(-1, targets[..., None]).squeeze(-1), -(log_all.exp() * log_all).sum(-1)


def inputs(dtype=torch.float64, with_bias=True):
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    return random(T, H), random(V, H), random(V) if with_bias else None, torch.randint(V, (T,), generator=generator)


@pytest.fixture(params=[1, 3, 1 << 20], ids=["one token a chunk", "three", "all at once"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_BYTES", 1)
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_TOKENS", {"cpu": request.param})


@pytest.fixture(params=[0, 7, T], ids=["nothing kept", "some", "all"])
def kept(request):
    """`keep_bytes` for the logits of that many tokens in float64."""
    return request.param * V * 8


@pytest.fixture(params=[False, True], ids=["in place", "as compiled on CUDA"])
def one_pass(request, monkeypatch):
    """Whether a chunk is computed by the functions that a CUDA device compiles. Here they run uncompiled."""
    monkeypatch.setattr(linear_head, "is_compiled", lambda *_: request.param)
    monkeypatch.setattr(linear_head, "compiled", lambda function: function)


@pytest.mark.usefixtures("chunks", "one_pass")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_are_those_of_the_plain_formulas(temperature, entropy_grad, with_bias, kept):
    hidden, weight, bias, targets = inputs(with_bias=with_bias)
    up = torch.randn(2, T, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    found, wanted = [], []
    for out, scores in ((found, chunked_scores), (wanted, plain)):
        options = {"entropy_grad": entropy_grad, "keep_bytes": kept} if scores is chunked_scores else {}
        log_probs, entropy = scores(hidden, weight, targets, bias=bias, temperature=temperature, **options)
        loss = (up[0] * log_probs).sum() + ((up[1] * entropy).sum() if entropy_grad else 0.0)
        leaves = [x for x in (hidden, weight, bias) if x is not None]
        out += [log_probs, entropy, *torch.autograd.grad(loss, leaves)]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def left_by(logits_V, target, *, top_k=0, top_p=1.0, min_p=0.0) -> set[int]:
    """What the sampler leaves of one token's vocabulary, by its definition: likeliest first, up to top_k or top_p."""
    probs = torch.softmax(logits_V, -1).tolist()
    left = [i for i in range(len(probs)) if probs[i] >= min_p * max(probs)]
    left = sorted(left, key=lambda i: -probs[i])[: top_k or None]
    total, kept, reached = sum(probs[i] for i in left), set(), 0.0
    for i in left:
        if reached >= top_p:
            break
        kept.add(i)
        reached += probs[i] / total
    return kept | {target}


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize(
    "cut", [{"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.3}, {"top_k": 6, "top_p": 0.8, "min_p": 0.05}], ids=str
)
def test_truncated_scores_are_the_softmax_over_what_the_sampler_leaves(cut, entropy_grad, kept):
    hidden, weight, bias, targets = inputs()
    log_probs, entropy = chunked_scores(
        hidden,
        weight,
        targets,
        bias=bias,
        temperature=0.6,
        truncation=Truncation(**cut),
        entropy_grad=entropy_grad,
        keep_bytes=kept,
    )
    logits = torch.nn.functional.linear(hidden, weight, bias) / 0.6
    left = [left_by(row, int(y), **cut) for row, y in zip(logits.detach(), targets, strict=True)]
    assert all(1 <= len(s) < V for s in left) and len({len(s) for s in left}) > 1 - bool(cut.get("top_k"))
    drop = torch.tensor([[i not in s for i in range(V)] for s in left])
    log_all = torch.log_softmax(logits.masked_fill(drop, -1e30), -1)
    plain_entropy = -(log_all.exp() * log_all).sum(-1)
    plain_log_probs = log_all.gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(log_probs, plain_log_probs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, plain_entropy, rtol=1e-12, atol=1e-12)
    up = torch.randn(2, T, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    leaves = [hidden, weight, bias]
    found = torch.autograd.grad((up[0] * log_probs).sum() + ((up[1] * entropy).sum() if entropy_grad else 0.0), leaves)
    wanted = torch.autograd.grad(
        (up[0] * plain_log_probs).sum() + ((up[1] * plain_entropy).sum() if entropy_grad else 0.0), leaves
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_a_sampled_token_that_newer_weights_would_cut_still_has_a_log_prob():
    """Probabilities 0.9 and 0.1 with top-p 0.8 leave one token; the other, by older weights, has ln 0.1, not -inf."""
    weight = torch.tensor([[math.log(0.9)], [math.log(0.1)]], dtype=torch.float64)
    log_probs, _ = chunked_scores(
        torch.ones(2, 1, dtype=torch.float64), weight, torch.tensor([0, 1]), truncation=Truncation(top_p=0.8)
    )
    assert log_probs.tolist() == pytest.approx([0.0, math.log(0.1)])


def test_a_token_worked_by_hand():
    """Logits 0 and ln 3: probabilities 1/4 and 3/4, entropy 2 ln 2 - 3/4 ln 3."""
    weight = torch.tensor([[0.0], [math.log(3.0)]], dtype=torch.float64)
    log_probs, entropy = chunked_scores(torch.ones(1, 1, dtype=torch.float64), weight, torch.tensor([1]))
    assert log_probs.item() == pytest.approx(math.log(0.75))
    assert entropy.item() == pytest.approx(2 * math.log(2) - 0.75 * math.log(3))


def test_what_is_not_wanted_is_zero_and_has_no_gradient():
    hidden, weight, bias, targets = inputs()
    wanted = torch.arange(T) % 3 == 0
    log_probs, entropy = chunked_scores(hidden, weight, targets, bias=bias, wanted=wanted)
    whole, _ = plain(hidden, weight, targets, bias)
    torch.testing.assert_close(log_probs[wanted], whole[wanted])
    assert not log_probs[~wanted].any() and not entropy[~wanted].any()
    (gradient,) = torch.autograd.grad(log_probs.sum(), hidden)
    assert gradient[wanted].any(-1).all() and not gradient[~wanted].any()


def test_nothing_wanted_still_has_a_backward_pass():
    """Every rank runs as many as the others, also on a dummy row."""
    hidden, weight, bias, targets = inputs()
    log_probs, _ = chunked_scores(hidden, weight, targets, bias=bias, wanted=torch.zeros(T, dtype=torch.bool))
    gradients = torch.autograd.grad(log_probs.sum(), (hidden, weight, bias))
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_kept_logits_change_no_bit_and_a_graph_may_be_gone_through_twice(monkeypatch, dtype, temperature, entropy_grad):
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_BYTES", 1)
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_TOKENS", {"cpu": 3})
    *leaves, targets = inputs(torch.float32)
    leaves = [x.detach().to(dtype).requires_grad_() for x in leaves]
    found = []
    for tokens in (0, 7, T):
        log_probs, entropy = chunked_scores(
            *leaves[:2],
            targets,
            bias=leaves[2],
            temperature=temperature,
            entropy_grad=entropy_grad,
            keep_bytes=tokens * V * dtype.itemsize,
        )
        loss = log_probs.sum() + (entropy.sum() if entropy_grad else 0.0)
        once, twice = (torch.autograd.grad(loss, leaves, retain_graph=again) for again in (True, False))
        found.append([log_probs, entropy, *once, *twice])
    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize(
    ("kept_tokens", "again"), [(0, 1.0), (2, 1.0), (3, 1 - 3 / T), (8, 1 - 6 / T), (T, 0.0), (1 << 20, 0.0)]
)
def test_logits_that_are_kept_are_not_computed_again_whole_chunks_within_the_memory(monkeypatch, kept_tokens, again):
    """In products of [T, H] and [V, H]: logits, the gradient of the hidden states, and logits again where they were not
    kept. (torch's counter knows no product that is added in place, as the gradient of W is.)"""
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_BYTES", 1)
    monkeypatch.setattr(linear_head, "HEAD_CHUNK_TOKENS", {"cpu": 3})
    hidden, weight, _, targets = inputs(with_bias=False)
    with FlopCounterMode(display=False) as counted:
        chunked_scores(hidden, weight, targets, keep_bytes=kept_tokens * V * 8).log_probs.sum().backward()
    assert counted.get_total_flops() / (2 * T * H * V) == pytest.approx(2 + again)


class Saved:
    """A tensor that a graph holds for its backward pass."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("grad", [False, True])
def test_kept_logits_are_held_where_a_backward_pass_will_come_and_no_longer_than_that(grad):
    """What is kept longer would lie beside the activations of the layers, whose backward pass comes next."""
    hidden, weight, _, targets = inputs(with_bias=False)
    made = []

    def save(x):
        saved = Saved(x)
        if x.shape == (T, V):
            made.append(weakref.ref(saved))
        return saved

    with torch.set_grad_enabled(grad), torch.autograd.graph.saved_tensors_hooks(save, lambda saved: saved.x):
        log_probs = chunked_scores(hidden, weight, targets, keep_bytes=1 << 20).log_probs
    assert [ref() is not None for ref in made] == [True] * grad
    if grad:
        log_probs.sum().backward()
        assert made[0]() is None


def test_a_vocabulary_of_152k_costs_no_digits():
    """Sums of as many terms in float32: log-probs and entropies stay within 4e-6 of float64's."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(4, 151_936, generator=generator)
    hidden, targets = torch.eye(4), torch.randint(151_936, (4,), generator=generator)
    log_probs, entropy = chunked_scores(hidden, logits.T.contiguous(), targets)
    exact = plain(hidden.double(), logits.T.double(), targets)
    torch.testing.assert_close(log_probs.double(), exact[0], rtol=0, atol=4e-6)
    torch.testing.assert_close(entropy.double(), exact[1], rtol=0, atol=4e-6)


def test_bf16_is_as_near_to_the_truth_as_the_plain_formulas_are():
    hidden, weight, _, targets = inputs(torch.float32, with_bias=False)
    half = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    exact = [x.detach().double().requires_grad_() for x in half]
    ours = torch.autograd.grad(chunked_scores(*half, targets).log_probs.sum(), half)
    theirs = torch.autograd.grad(plain(*half, targets)[0].sum(), half)
    truth = torch.autograd.grad(plain(*exact, targets)[0].sum(), exact)
    for our, their, true in zip(ours, theirs, truth, strict=True):
        assert (our - true).norm() <= 1.5 * (their - true).norm()


@pytest.mark.parametrize("rows", [1, 3, V])
def test_the_gradient_of_a_bf16_head_is_added_up_in_parts_of_its_rows(monkeypatch, rows):
    """Three rows at a time leave a part of two of the eleven."""
    hidden, weight, _, targets = inputs(torch.float32, with_bias=False)
    leaves = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    products = []
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(linear_head, "SUM_BYTES", rows * H * 4)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", lambda a, b: products.append(matmul(a, b)) or products[-1])
        ours = torch.autograd.grad(chunked_scores(*leaves, targets).log_probs.sum(), leaves)
    assert max(len(product) for product in products[1:]) == rows, "the first is the gradient of the hidden states"
    exact = [x.detach().double().requires_grad_() for x in leaves]
    truth = torch.autograd.grad(plain(*exact, targets)[0].sum(), exact)
    for our, true in zip(ours, truth, strict=True):
        torch.testing.assert_close(our.double(), true, rtol=2e-2, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"entropy_grad": True},
        {"truncation": Truncation(top_k=6, top_p=0.9)},
        {"truncation": Truncation(top_k=6, top_p=0.9), "entropy_grad": True},
        {"keep_bytes": 1 << 20},
    ],
    ids=str,
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_in_bf16_have_few_sizes_on_a_cpu_and_give_what_they_gave(monkeypatch, masked, options, with_bias):
    """oneDNN keeps kernels for each size. The padding changes neither scores nor gradients."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(100, H, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(V, H, generator=generator).bfloat16().requires_grad_()
    bias = torch.randn(V, generator=generator).bfloat16().requires_grad_() if with_bias else None
    leaves = [x for x in (hidden, weight, bias) if x is not None]
    targets = torch.randint(V, (100,), generator=generator)
    wanted = (torch.arange(100) % 3 > 0) if masked else None
    rows = set()
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda h, *rest: rows.add(len(h)) or linear(h, *rest))

    def results(tokens: int):
        scores = chunked_scores(
            hidden[:tokens],
            weight,
            targets[:tokens],
            bias=bias,
            wanted=None if wanted is None else wanted[:tokens],
            **options,
        )
        loss = scores.log_probs.sum() + (scores.entropy.sum() if options.get("entropy_grad") else 0.0)
        return [*scores, *torch.autograd.grad(loss, leaves)]

    padded = {tokens: results(tokens) for tokens in range(70, 100)}
    assert rows <= {64, 96, 128}
    monkeypatch.setattr(linear_head, "CPU_MULTIPLE", 1)
    for tokens, ours in padded.items():
        for one, other in zip(ours, results(tokens), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_a_head_gives_scores_only_while_it_is_asked_to():
    layer = torch.nn.Linear(H, V, bias=False, dtype=torch.float64)
    head, hidden, targets = ScoringHead(layer), torch.randn(2, 3, H, dtype=torch.float64), torch.randint(V, (2, 3))
    assert layer(hidden).shape == (2, 3, V)
    with head.scoring(targets):
        both = layer(hidden)
    log_probs, entropy = plain(hidden, layer.weight, targets)
    torch.testing.assert_close(both, torch.stack([log_probs, entropy], -1))
    assert layer(hidden).shape == (2, 3, V)
