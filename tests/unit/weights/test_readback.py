"""The read-back on small modules, without an engine. vLLM's layers are made without its process groups."""

import logging

import pytest
import torch

pytest.importorskip("vllm")

from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from openrlhf_tir.weights import bits
from openrlhf_tir.weights import readback as readback_module
from openrlhf_tir.weights.readback import ReadBack, checksum

pytestmark = pytest.mark.slow  # importing vLLM's layers

CPU = torch.device("cpu")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(3, 3, bias=False)
        self.norm = torch.nn.LayerNorm(3)
        self.experts = Experts()


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = torch.nn.Parameter(torch.ones(2, 3, 3))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.visual = torch.nn.ModuleDict({"patch": torch.nn.Linear(3, 3)})


def sent_to(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a learner without a visual part sends, so far as the modules are not fused."""
    held = model.state_dict()
    return {name: t.clone() for name, t in held.items() if "experts" not in name and "visual" not in name}


def fused(kind: type, tp_size: int, **sizes: object) -> torch.nn.Module:
    """A fused layer of one rank of `tp_size`, with a weight of 4 rows."""
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.weight = torch.nn.Parameter(torch.arange(8.0).reshape(4, 2))
    layer.tp_size, layer.tp_rank, layer.output_size_per_partition = tp_size, 0, 4
    layer.quant_method = UnquantizedLinearMethod()
    for name, value in sizes.items():
        setattr(layer, name, value)
    return layer


def test_a_right_push_has_no_fault_and_a_changed_element_names_its_tensor():
    model = Model()
    sent = sent_to(model)
    assert ReadBack(model).compare(sent.items()).fault is None
    with torch.no_grad():
        model.layers[1].up.weight[2, 1] += 1
    assert ReadBack(model).compare(sent.items()).differing == ("layers.1.up.weight",)


def test_a_layer_that_was_left_out_is_missing_but_not_what_the_learner_has_no_tensor_for():
    model = Model()
    sent = sent_to(model)
    del sent["layers.1.up.weight"]
    assert ReadBack(model).compare(sent.items()).missing == ("layers.1.up",), "neither experts nor the visual part"


def test_a_layer_beside_a_tensor_that_could_not_be_placed_is_not_missing():
    model = Model()
    sent = sent_to(model)
    del sent["layers.1.up.weight"]
    sent["layers.1.experts.0.up_proj.weight"] = torch.ones(3, 3)
    report = ReadBack(model).compare(sent.items())
    assert report.unread == ("layers.1.experts.0.up_proj.weight",) and report.fault is None


def test_expert_tensors_that_are_sent_one_by_one_are_unread_and_no_fault():
    model = Model()
    sent = sent_to(model)
    for layer in (0, 1):
        for expert in (0, 1):
            sent[f"layers.{layer}.experts.{expert}.up_proj.weight"] = torch.ones(3, 3)
    report = ReadBack(model).compare(sent.items())
    assert len(report.unread) == 4 and report.fault is None


@pytest.mark.parametrize("kind", [QKVParallelLinear, MergedColumnParallelLinear])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_tensor_that_the_checkpoint_has_fused_is_compared_only_where_one_rank_holds_all_of_it(kind, tp_size):
    model = torch.nn.Module()
    model.proj = fused(kind, tp_size)
    sent = torch.arange(8.0 * tp_size).reshape(4 * tp_size, 2)
    report = ReadBack(model).compare([("proj.weight", sent + 1)])
    assert (report.differing, report.unread) == ((("proj.weight",), ()) if tp_size == 1 else ((), ("proj.weight",)))
    assert not report.missing


def test_tensors_that_loading_transforms_are_found_once_on_the_load_from_disk_and_said_once(caplog):
    model = Model()
    disk = sent_to(model)
    disk["layers.0.up.weight"] = disk["layers.0.up.weight"].t()  # square: only the values tell
    readback = ReadBack(model)
    with caplog.at_level(logging.INFO, logger=readback_module.__name__):
        assert readback.check_itself(disk.items()) == ("layers.0.up.weight",)
        for _ in range(2):
            report = readback.compare(disk.items())
            assert report.unread == ("layers.0.up.weight",) and report.fault is None
    assert sum("layers.0.up.weight" in record.getMessage() for record in caplog.records) == 1
    with torch.no_grad():
        model.layers[1].up.weight[0, 0] += 1
    assert readback.compare(disk.items()).differing == ("layers.1.up.weight",), "the others are still proved"


def test_without_a_load_from_disk_only_plain_model_types_are_read_back():
    for kind, unread in (("gpt_neox", 6), ("llama", 0)):
        model = Model()
        model.config = type("Config", (), {"model_type": kind})()
        readback = ReadBack(model)
        readback.check_itself(None)
        sent = sent_to(model)
        with torch.no_grad():
            model.layers[0].up.weight += 1
        report = readback.compare(sent.items())
        assert (len(report.unread), report.fault is None) == (unread, kind == "gpt_neox")


def test_a_load_that_nothing_of_is_found_again_proves_nothing_about_the_read_back():
    model = Model()
    readback = ReadBack(model)
    readback.check_itself((name, tensor + 1) for name, tensor in sent_to(model).items())
    assert readback.compare(sent_to(model).items()).fault is None


def test_a_tensor_of_another_shape_is_unread():
    model = Model()
    sent = sent_to(model)
    sent["layers.0.up.weight"] = torch.ones(9)
    readback = ReadBack(model)
    readback.note(sent.items())
    assert readback.compare(sent.items()).unread == readback.compare_noted().unread == ("layers.0.up.weight",)


@pytest.mark.parametrize("noted", [False, True])
def test_weights_that_are_not_finite_are_held_as_sent_and_finite_ones_in_their_place_differ(noted):
    model = Model()
    with torch.no_grad():
        model.layers[0].up.weight[1, 1] = float("nan")
    sent = sent_to(model)

    def compared():
        readback = ReadBack(model)
        if not noted:
            return readback.compare(sent.items())
        readback.note(sent.items())
        return readback.compare_noted()

    assert compared().fault is None
    sent["layers.0.up.weight"] = torch.zeros(3, 3)
    assert compared().differing == ("layers.0.up.weight",)


def hashed(tensor, dtype) -> list[int]:
    _, checksum_of_values = checksum(tensor, CPU, dtype)
    return checksum_of_values.tolist()


@pytest.mark.parametrize("block", [1, 4, 1 << 22])
def test_comparison_and_checksums_do_not_depend_on_the_size_of_blocks_and_see_an_exchange(monkeypatch, block):
    tensor = torch.arange(30.0).reshape(10, 3)
    whole = hashed(tensor, torch.bfloat16)
    monkeypatch.setattr(bits, "MAX_BLOCK_ELEMENTS", block)
    assert hashed(tensor, torch.bfloat16) == whole
    assert hashed(tensor.flip(0), torch.bfloat16) != whole
    sums = bits.position_sums(bits.blocks(tensor, CPU, torch.float32), CPU)
    exchanged = bits.position_sums(bits.blocks(tensor.flip(0), CPU, torch.float32), CPU)
    assert sums[0] == exchanged[0] and sums[1] != exchanged[1]
    zeros = [hashed(torch.tensor([zero, 1.0]), torch.float32) for zero in (0.0, -0.0)]
    assert zeros[0] == zeros[1]


def test_both_sides_of_a_checksum_are_told_by_the_models_device(monkeypatch):
    """A broadcast over gloo brings CPU tensors to a model on a GPU."""
    asked = []
    real = readback_module.checksum

    def spy(tensor, device, dtype):
        asked.append(device)
        return real(tensor, CPU, dtype)

    monkeypatch.setattr(readback_module, "checksum", spy)
    model = Model()
    readback = ReadBack(model)
    readback._device = torch.device("cuda", 0)
    readback.note(sent_to(model).items())
    assert readback.compare_noted().fault is None
    assert set(asked) == {torch.device("cuda", 0)} and len(asked) == 12


def test_on_a_gpu_all_tensors_are_compared_where_they_are_and_only_what_differs_is_compared_again(monkeypatch):
    """The host does not wait for each tensor. Other bits may be equal values, which the exact comparison knows."""
    model = Model()
    readback = ReadBack(model)
    readback._device = torch.device("cuda", 0)  # the tensors themselves are on the CPU, both sides of them
    exactly: list[str] = []
    real = ReadBack._verdict

    def verdict(self, name, *arguments):
        exactly.append(name)
        return real(self, name, *arguments)

    monkeypatch.setattr(ReadBack, "_verdict", verdict)
    sent = {name: tensor.clone() for name, tensor in sent_to(model).items()}
    report = readback.compare(sent.items())
    assert (report.fault, report.unread, exactly) == (None, (), []) and report.tensors == len(sent)
    assert report.nbytes == sum(tensor.nbytes for tensor in sent.values())
    with torch.no_grad():
        model.layers[0].up.weight[0, 1] = 0.0
        model.layers[1].up.weight[2, 2] += 1
    sent["layers.0.up.weight"][0, 1] = -0.0
    assert readback.compare(sent.items()).differing == ("layers.1.up.weight",)
    assert exactly == ["layers.0.up.weight", "layers.1.up.weight"]
    sent["layers.0.up.weight"] = torch.ones(9)  # another shape
    assert readback.compare(sent.items()).unread == ("layers.0.up.weight",)


def test_checksums_on_a_gpu_are_compared_there_and_read_once(monkeypatch):
    model = Model()
    readback = ReadBack(model)

    def sums_on_the_device(tensor, _, dtype):
        return tuple(tensor.shape), bits.position_sums(bits.blocks(tensor, CPU, dtype), CPU)

    monkeypatch.setattr(readback_module, "checksum", sums_on_the_device)
    readback._device = torch.device("cuda", 0)
    sent = sent_to(model)
    readback.note(sent.items())
    assert readback.compare_noted().fault is None
    readback.note(sent.items())
    with torch.no_grad():
        model.layers[1].up.weight[[0, 1]] = model.layers[1].up.weight[[1, 0]]
    assert readback.compare_noted().differing == ("layers.1.up.weight",)


class Packs(UnquantizedLinearMethod):
    """A linear method that computes with a copy of its own, `layer.packed`, and counts the rows it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def apply(self, layer, x, bias=None):
        self.rows.append(len(x))
        return x @ layer.packed.t()


def packed_model(width: int = 20) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model with one layer whose weight is packed and emptied, as vLLM does on a CPU, and what was sent to it."""
    layer = RowParallelLinear.__new__(RowParallelLinear)
    torch.nn.Module.__init__(layer)
    layer.tp_size, layer.tp_rank, layer.input_size_per_partition = 1, 0, width
    layer.params_dtype = torch.float32
    layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    layer.quant_method = Packs()
    layer.cpu_linear = True
    sent = torch.arange(3.0 * width).reshape(3, width)
    layer.packed = sent.clone()
    model = torch.nn.Module()
    model.proj = layer
    return model, {"proj.weight": sent}


@pytest.mark.parametrize("noted", [False, True])
def test_a_packed_copy_is_read_at_one_of_eight_columns_and_all_of_it_in_eight_pushes(noted):
    model, sent = packed_model()
    readback = ReadBack(model)

    def differs() -> bool:
        if not noted:
            return readback.compare(sent.items()).differing == ("proj.weight",)
        readback.note(sent.items())
        return readback.compare_noted().differing == ("proj.weight",)

    def differs_at(start: int) -> bool:
        readback._compared = start
        return differs()

    assert not any(differs() for _ in range(8)) and not readback.compare(sent.items()).unread
    assert set(model.proj.quant_method.rows) <= {2, 3}, "of 20 columns"
    model.proj.packed[1, 6] += 1
    found = [differs() for _ in range(16)]
    first = found.index(True)
    assert first < 8 and all(found[first:]), "a repeated push is read where the fault was seen"
    model.proj.packed[:] = sent["proj.weight"].roll(1, 0)
    assert all(differs_at(start) for start in range(8)), "rows that are shifted"
    model.proj.packed[:] = sent["proj.weight"]
    model.proj.packed[:, 1:16] = 0
    assert all(differs_at(start) for start in range(8)), "fifteen neighbouring columns"
    model.proj.packed[:] = sent["proj.weight"]
    model.proj.packed[:, ::2] -= 1
    assert all(differs_at(start) for start in range(8)), "every other column"


def fused_packed_model(width: int = 20) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A model with gate and up fused in one packed layer, and what was sent to it."""
    layer = MergedColumnParallelLinear.__new__(MergedColumnParallelLinear)
    torch.nn.Module.__init__(layer)
    layer.tp_size, layer.tp_rank, layer.output_sizes, layer.input_size_per_partition = 1, 0, [3, 3], width
    layer.params_dtype = torch.float32
    layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    layer.quant_method = Packs()
    layer.cpu_linear = True
    layer.packed = torch.arange(6.0 * width).reshape(6, width)
    model = torch.nn.Module()
    model.packed_modules_mapping = {"gate_up": ["gate", "up"]}
    model.gate_up = layer
    gate, up = layer.packed.clone().split(3)
    return model, {"gate.weight": gate, "up.weight": up}


@pytest.mark.parametrize("noted", [False, True])
def test_what_is_fused_in_a_packed_layer_is_read_once_a_comparison_and_afresh_in_the_next(noted):
    model, sent = fused_packed_model()
    readback = ReadBack(model)

    def differing() -> tuple[str, ...]:
        if not noted:
            return readback.compare(sent.items()).differing
        readback.note(sent.items())
        return readback.compare_noted().differing

    assert differing() == ()
    assert len(model.gate_up.quant_method.rows) == 1
    model.gate_up.packed[4] += 1
    assert differing() == ("up.weight",)
    assert differing() == ("up.weight",)
    model.gate_up.packed[4] -= 1
    assert differing() == ()
    assert len(model.gate_up.quant_method.rows) == 4


def test_a_packed_row_that_is_not_finite_is_held_as_sent_whichever_columns_are_read():
    model, sent = packed_model()
    sent["proj.weight"][1, 3] = float("inf")
    model.proj.packed[1, 3] = float("inf")
    readback = ReadBack(model)
    assert [readback.compare(sent.items()).fault for _ in range(8)] == [None] * 8
    model.proj.packed[1, 3] = 0.0
    assert all(readback.compare(sent.items()).differing for _ in range(8))
