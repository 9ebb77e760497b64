"""A worker's part of a push through shared memory: written in place, and layer by layer where that turns out wrong."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from openrlhf_tir.pushes import Item  # noqa: E402
from openrlhf_tir.weights import file_backend  # noqa: E402
from openrlhf_tir.weights.file_backend import FileWeightTransferEngine, WorkerExtension  # noqa: E402
from openrlhf_tir.weights.ipc.exposer import Exposer  # noqa: E402
from openrlhf_tir.weights.ipc.importer import plain_buckets  # noqa: E402
from openrlhf_tir.weights.readback import ReadBack  # noqa: E402

pytestmark = pytest.mark.slow  # importing vLLM's layers
CPU = torch.device("cpu")
WIDTH = 8


class Model(torch.nn.Module):
    """Two layers. Its loader writes into the parameters; in place it may fail or write the second layer wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.in_place_is = "right"
        self.layer_by_layer = False
        self.loads: list[str] = []

    def load_weights(self, weights) -> None:
        way = "layers" if self.layer_by_layer else "in place"
        self.loads.append(way)
        if way == "in place" and self.in_place_is == "impossible":
            raise KeyError("weight_loader")
        for name, tensor in weights:
            parameter = self.get_parameter(name)
            parameter.copy_(tensor)
            if way == "in place" and self.in_place_is == "wrong" and name == "second.weight":
                parameter.copy_(tensor.t())


class Worker(WorkerExtension):
    """vLLM's worker as far as the extension sees it."""

    vllm_config = None
    rank = 0

    def __init__(self, model: Model) -> None:
        self._weight_update_active = False
        engine = FileWeightTransferEngine.__new__(FileWeightTransferEngine)
        engine.model, engine.device, engine.vllm_config, engine.model_config = model, CPU, None, None
        engine.__dict__["readback"] = ReadBack(model)
        engine.can_load_in_place = True
        self.weight_transfer_engine = engine

    def start_weight_update(self) -> None:
        assert not self._weight_update_active
        self.weight_transfer_engine.start_weight_update()
        self._weight_update_active = True

    def finish_weight_update(self) -> None:
        assert self._weight_update_active
        self.weight_transfer_engine.finish_weight_update()
        self._weight_update_active = False


@pytest.fixture
def model(monkeypatch) -> Model:
    made = Model()

    def layers(value: bool):
        def switch(*_) -> None:
            made.layer_by_layer = value

        return switch

    monkeypatch.setattr(file_backend, "set_current_vllm_config", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(file_backend, "initialize_layerwise_reload", layers(True))
    monkeypatch.setattr(file_backend, "finalize_layerwise_reload", layers(False))
    return made


class Learner:
    def __init__(self) -> None:
        self.exposer = Exposer(CPU)
        self.pushes = 0

    def expose(self, seed: int, buckets: int = 1) -> tuple[str, list, dict[str, torch.Tensor]]:
        """Return the push, its buckets as plain values, and the weights by name."""
        generator = torch.Generator().manual_seed(seed)
        weights = {f"{layer}.weight": torch.randn(WIDTH, WIDTH, generator=generator) for layer in ("first", "second")}
        items = [Item(name, "F32", (WIDTH, WIDTH)) for name in weights]
        parts = [items] if buckets == 1 else [[item] for item in items]
        self.exposer.reserve(parts)
        filled = [self.exposer.fill(n, part, [(i.name, weights[i.name]) for i in part]) for n, part in enumerate(parts)]
        self.pushes += 1
        return f"push{self.pushes}", plain_buckets(filled), weights


def holds(model: Model, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(model.get_parameter(name), tensor) for name, tensor in weights.items())


@pytest.mark.parametrize(
    ("in_place_is", "first", "second"),
    [
        ("right", ["in place"], []),  # the second push repeats the copies of the first
        ("impossible", ["in place", "layers"], ["layers"]),
        ("wrong", ["in place", "layers"], ["layers"]),
    ],
)
def test_weights_go_in_place_as_long_as_the_read_back_finds_them_there(model, in_place_is, first, second):
    model.in_place_is = in_place_is
    worker, learner = Worker(model), Learner()
    for seed, ways in ((1, first), (2, second)):
        model.loads.clear()
        push, buckets, weights = learner.expose(seed)
        assert worker.map_exposed(buckets) == ""
        parts, report = worker.load_exposed(push, buckets, 0)
        assert set(parts) == {"begin", "load", "read_back"} and report[:4] == [2, (), (), ()]
        assert model.loads == ways and holds(model, weights) and not worker._weight_update_active


def test_a_push_ends_with_freed_memory_given_back_where_the_model_is_on_a_cpu(model, monkeypatch):
    given_back = []
    monkeypatch.setattr(file_backend, "give_back_freed", lambda: given_back.append(True))
    engine = Worker(model).weight_transfer_engine
    engine.read_back()
    assert given_back == [True]
    engine.device = torch.device("cuda")
    engine.read_back()
    assert given_back == [True]


def test_a_wrong_load_layer_by_layer_is_reported_and_not_repeated(model):
    worker, learner = Worker(model), Learner()
    worker.weight_transfer_engine.can_load_in_place = False
    real = Model.load_weights

    def wrong(weights) -> None:
        real(model, weights)
        model.first.weight[0, 0] += 1

    model.load_weights = wrong
    push, buckets, _ = learner.expose(1)
    _, report = worker.load_exposed(push, buckets, 0)
    assert report[1] == ("first.weight",) and model.loads == ["layers"]


def test_copies_are_repeated_only_between_the_same_addresses(model):
    """Another learner has buffers of its own: the loader is asked again."""
    worker = Worker(model)
    for learner, loads in ((Learner(), 1), (Learner(), 1)):
        model.loads.clear()
        for seed in (1, 2, 3):
            push, buckets, weights = learner.expose(seed)
            push += f" of {id(learner)}"
            assert worker.map_exposed(buckets) == ""
            assert worker.load_exposed(push, buckets, 0)[1][1] == () and holds(model, weights)
        assert len(model.loads) == loads


def test_a_repeated_copy_that_goes_astray_is_seen_by_the_read_back_and_the_layers_are_loaded(model):
    worker, learner = Worker(model), Learner()
    push, buckets, _ = learner.expose(1)
    worker.load_exposed(push, buckets, 0)
    model.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)  # the copies go where nothing computes any more
    worker.weight_transfer_engine.__dict__["readback"] = ReadBack(model)
    push, buckets, weights = learner.expose(2)
    _, report = worker.load_exposed(push, buckets, 0)
    assert report[1] == () and holds(model, weights) and model.loads == ["in place", "layers"]


@pytest.mark.parametrize("transforms", ["adds", "converts", "leaves out"])
def test_a_loader_that_does_more_than_copy_is_asked_in_every_push(model, transforms):
    def load_weights(weights) -> None:
        model.loads.append(transforms)
        for name, tensor in weights:
            if transforms == "adds":
                tensor = tensor + 0
            if transforms == "converts":
                tensor = tensor.double()
            if transforms != "leaves out" or name == "first.weight":
                model.get_parameter(name).copy_(tensor)
            else:
                model.get_parameter(name).zero_().add_(tensor)

    model.load_weights = load_weights
    worker, learner = Worker(model), Learner()
    for seed in (1, 2):
        push, buckets, weights = learner.expose(seed)
        assert worker.load_exposed(push, buckets, 0)[1][1] == () and holds(model, weights)
    assert model.loads == [transforms] * 2
    assert worker.weight_transfer_engine.can_load_in_place, "no push was repaired"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_push_in_two_calls_is_read_back_by_checksums_and_may_begin_again(model, in_place):
    worker, learner = Worker(model), Learner()
    worker.weight_transfer_engine.can_load_in_place = in_place
    push, buckets, weights = learner.expose(1, buckets=2)
    _, nothing = worker.load_exposed(push, buckets[:1], 1)
    assert nothing is None and worker._weight_update_active
    # The learner is lost here. Another one begins from the start.
    push, buckets, weights = learner.expose(2, buckets=2)
    assert worker.load_exposed(push, buckets[:1], 1)[1] is None
    _, report = worker.load_exposed(push, buckets[1:], 0)
    assert report[:4] == [2, (), (), ()] and holds(model, weights) and not worker._weight_update_active
    push, buckets, weights = learner.expose(3)
    assert worker.load_exposed(push, buckets, 0)[1][:4] == [2, (), (), ()] and holds(model, weights)


def test_memory_that_changes_while_it_is_loaded_is_an_error_even_if_the_model_holds_the_same(model):
    worker, learner = Worker(model), Learner()
    push, buckets, _ = learner.expose(1)
    assert worker.map_exposed(buckets) == ""
    learner.exposer._slots[0][2] += 1
    [(_, _, digest, _)] = buckets
    with pytest.raises(Exception, match=digest[:12]):
        worker.load_exposed(push, buckets, 0)
    assert digest[:12] in worker.map_exposed(buckets)


def test_a_fault_of_mapping_is_an_answer_and_never_raised(model):
    worker, learner = Worker(model), Learner()
    _, buckets, _ = learner.expose(1)
    assert "elsewhere" in worker.map_exposed([[*buckets[0][:3], {"elsewhere": b""}]])
    assert worker.map_exposed([["nonsense"]])
