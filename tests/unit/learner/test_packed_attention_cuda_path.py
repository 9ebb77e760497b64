"""The CUDA path of packed attention, without a card: its operations are counted on fake tensors, its arguments are
checked against a plain implementation of what torch documents of `varlen_attn`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from openrlhf_tir.learner.attention import packed  # noqa: E402

MAX_OPERATIONS_PER_LAYER = 40
"""Forward and backward together, of the attention of one layer for one row."""


class OperationCounter(TorchDispatchMode):
    """Counts the operations that reach the dispatcher, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def attention_module(heads: int, kv_heads: int) -> torch.nn.Module:
    module = torch.nn.Module()
    module.is_causal = True
    module.num_key_value_groups = heads // kv_heads
    return module


@pytest.fixture
def count_attention_operations(monkeypatch):
    """Names of the operations of one layer's attention for a row of these lengths, forwards and backwards.

    The tensors are "meta": a build of torch without CUDA has no autograd for fake CUDA tensors."""
    monkeypatch.setattr(packed, "_flash_can", lambda query, value, dropout: True)

    def count(lengths: list[int]) -> list[str]:
        tokens = sum(lengths)
        with torch.device("meta"):
            query = torch.empty(1, 8, tokens, 64, dtype=torch.bfloat16, requires_grad=True)
            key = torch.empty(1, 2, tokens, 64, dtype=torch.bfloat16, requires_grad=True)
            value = torch.empty(1, 2, tokens, 64, dtype=torch.bfloat16, requires_grad=True)
            positions = torch.empty(1, tokens, dtype=torch.int64)
            boundaries = torch.empty(len(lengths) + 1, dtype=torch.int32)
            gradient = torch.empty(1, tokens, 8, 64, dtype=torch.bfloat16)
        layout = packed.SequenceLayout(tuple(lengths), (-1,) * len(lengths), boundaries, boundaries, None)
        packed.set_layout(positions, layout)
        with OperationCounter() as counter:
            output, _ = packed.sdpa_packed(
                attention_module(8, 2), query, key, value, None, position_ids=positions, scaling=0.125
            )
            output.backward(gradient)
        assert query.grad.shape == query.shape
        assert key.grad.shape == key.shape
        return counter.names

    return count


def test_a_layer_is_one_attention_call_however_many_sequences_a_row_holds(count_attention_operations):
    few = count_attention_operations([7, 5])
    many = count_attention_operations([3] * 500)
    assert few == many
    assert len(many) <= MAX_OPERATIONS_PER_LAYER
    assert [name for name in many if "_varlen_attn" in name] == [
        "torch_attn._varlen_attn.default",
        "torch_attn._varlen_attn_backward.default",
    ]


def test_a_layer_reads_nothing_from_the_device(count_attention_operations):
    names = count_attention_operations([7, 5, 9])
    assert not [name for name in names if "_local_scalar_dense" in name or "nonzero" in name or "_to_copy" in name]


def test_the_layout_is_read_once_for_all_layers_of_a_row():
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    assert packed.layout_of(positions) is packed.layout_of(positions)
    assert packed.layout_of(positions).boundaries.tolist() == [0, 3, 5]
    assert packed.layout_of(positions.clone()) is not packed.layout_of(positions)


def plain_varlen(query, key, value, ends_q, ends_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """What torch documents of varlen_attn: [T, heads, d] and boundaries -> [T, heads, d]."""
    left, right = window_size
    assert right == 0
    assert enable_gqa == (query.shape[1] != key.shape[1])
    outputs = []
    spans = [zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True) for ends in (ends_q, ends_k)]
    for (begin, end), (begin_k, end_k) in zip(*spans, strict=True):
        assert end - begin <= max_q
        assert end_k - begin_k <= max_k
        q = query[begin:end].transpose(0, 1)
        k = key[begin_k:end_k].transpose(0, 1).repeat_interleave(query.shape[1] // key.shape[1], dim=0)
        v = value[begin_k:end_k].transpose(0, 1).repeat_interleave(query.shape[1] // key.shape[1], dim=0)
        # the last query is beside the last key
        places = torch.arange(end - begin) + (end_k - begin_k) - (end - begin)
        distance = places[:, None] - torch.arange(end_k - begin_k)
        seen = (distance >= 0) if left < 0 else (distance >= 0) & (distance <= left)
        weights = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf).softmax(-1)
        outputs.append((weights @ v).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("shared", [False, True], ids=["whole sequences", "shared prompt"])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_the_flash_call_means_what_the_loop_over_sequences_computes(monkeypatch, window, shared):
    monkeypatch.setattr(packed, "varlen_attn", plain_varlen)
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 4, 12, 8), torch.randn(1, 2, 12, 8), torch.randn(1, 2, 12, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5]])
    if shared:
        positions = torch.tensor([[0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10]])
        packed.set_layout(positions, packed.SequenceLayout.of_segments([5, 1, 6], [-1, 0, 0], positions.device))
    of_layer = {"position_ids": positions, "scaling": 0.5, "sliding_window": window}
    loop, _ = packed.sdpa_packed(attention_module(4, 2), query, key, value, None, **of_layer)
    flash = packed._flash(query, key, value, packed.layout_of(positions), window, 0.5)
    assert torch.allclose(flash, loop, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "head_size", "dropout", "expected"),
    [
        (torch.bfloat16, 64, 0.0, True),
        (torch.float16, 256, 0.0, True),
        (torch.float32, 64, 0.0, False),
        (torch.bfloat16, 320, 0.0, False),
        (torch.bfloat16, 20, 0.0, False),
        (torch.bfloat16, 64, 0.1, False),
    ],
)
def test_flash_attention_computes_only_the_heads_that_it_can(dtype, head_size, dropout, expected):
    with FakeTensorMode(), torch.device("cuda"):
        heads = torch.empty(1, 2, 4, head_size, dtype=dtype)
        assert packed._flash_can(heads, heads, dropout) is expected
    on_cpu = torch.empty(1, 2, 4, head_size, dtype=dtype)
    assert not packed._flash_can(on_cpu, on_cpu, dropout)
