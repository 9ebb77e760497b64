"""Shards: the ZeRO-3 checkpoint of n ranks, read by one rank of m. Nothing is converted: a rank takes its own elements
out of files mapped to memory.

    zero_pp_rank_<r>_mp_rank_00_optim_states.pt    per sub group one flat tensor of master weights, one of each of
                                                   Adam's moments: the parts of all its parameters, one behind the
                                                   other
    zero_pp_rank_<r>_mp_rank_00_model_states.pt    the names and shapes in those sub groups; parts of parameters that
                                                   are not trained; counters

    part of rank r of n of a parameter of N elements:  [r p, (r + 1) p), p = ceil(N / n); what is beyond N is padding

How parameters are grouped depends on the number of ranks too (a sub group has at most so many elements *per rank*), so
they are found by name.

DeepSpeed's universal checkpoints (0.19.8) would do as well for an optimiser of one group of parameters. Of two, they
give both the first one's weight decay and one count of steps, a tensor that each group then adds to; and every new rank
reads three files per parameter whole."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...errors import CheckpointDamaged


class Place(NamedTuple):
    """Where a parameter is in the flat tensors of every saved rank."""

    group: int
    offset: int
    numel: int
    """How many elements the whole parameter has."""


def part_numel(numel: int, ranks: int) -> int:
    """Elements of one rank's part, padding included."""
    return math.ceil(numel / ranks)


def places(shapes: Sequence[Mapping[str, Sequence[int]]], ranks: int) -> dict[str, Place]:
    """shapes: those of each sub group, in the order of their parts."""
    found: dict[str, Place] = {}
    for group, members in enumerate(shapes):
        offset = 0
        for name, shape in members.items():
            numel = math.prod(shape)
            found[name] = Place(group, offset, numel)
            offset += part_numel(numel, ranks)
    return found


def cut(parts: Sequence[torch.Tensor], numel: int, rank: int, ranks: int) -> torch.Tensor:
    """parts: a parameter's, of all saved ranks, each [ceil(numel / len(parts))]. Returns the part [ceil(numel / ranks)]
    of `rank` of `ranks`, padded with 0."""
    size, saved = part_numel(numel, ranks), part_numel(numel, len(parts))
    out = parts[0].new_zeros(size)
    begin, end = min(rank * size, numel), min((rank + 1) * size, numel)
    for r, part in enumerate(parts):
        first, last = max(begin, r * saved), min(end, (r + 1) * saved)
        if first < last:
            out[first - begin : last - begin] = part[first - r * saved : last - r * saved]
    return out


class Shards:
    """The checkpoint in `directory`, of `ranks` ranks. `rank` of `world` is who reads."""

    def __init__(self, directory: Path, ranks: int, rank: int, world: int) -> None:
        """Raises CheckpointDamaged when a saved rank's file is not there."""
        self.rank, self.world = rank, world
        self.models = [mapped(directory, r, "model_states") for r in range(ranks)]
        self.optimisers = [mapped(directory, r, "optim_states")["optimizer_state_dict"] for r in range(ranks)]
        self.places = places(self.models[0]["param_shapes"], ranks)

    @property
    def model(self) -> dict[str, Any]:
        """What is the same on every rank: counters and the schedule's state."""
        return self.models[0]

    @property
    def optimiser(self) -> dict[str, Any]:
        """What is the same on every rank of the optimiser's file, from rank 0's."""
        return self.optimisers[0]

    def master(self, name: str) -> torch.Tensor:
        """This rank's part of a trained parameter's master weights, [ceil(N / world)] float32."""
        return self.of([o["fp32_flat_groups"] for o in self.optimisers], name)

    def moment(self, which: str, name: str) -> torch.Tensor:
        """The rank's part of what is kept beside every weight, `exp_avg` or `exp_avg_sq`, in the shape of `master`."""
        return self.of(
            [{g: state[which] for g, state in o["optimizer_state_dict"]["state"].items()} for o in self.optimisers],
            name,
        )

    def kept(self, name: str) -> dict[str, bool]:
        """What the optimiser keeps for a parameter's sub group: name -> whether for every weight (`exp_avg`), or once
        (`step`). Empty before its first step."""
        group = self.places[name].group
        weights = self.optimiser["fp32_flat_groups"][group].shape
        kept = self.optimiser["optimizer_state_dict"]["state"].get(group, {})
        return {which: torch.is_tensor(value) and value.shape == weights for which, value in kept.items()}

    def state(self, which: str, name: str) -> Any:
        """What it keeps once, Adam's count of its steps; a copy, which does not keep the file mapped."""
        return copy.deepcopy(self.optimiser["optimizer_state_dict"]["state"][self.places[name].group][which])

    def of(self, flat: Sequence[Any], name: str) -> torch.Tensor:
        """flat[r][g]: the flat tensor of sub group g of saved rank r, laid out as the master weights are."""
        place = self.places[name]
        size = part_numel(place.numel, len(flat))
        return cut(
            [groups[place.group][place.offset : place.offset + size] for groups in flat],
            place.numel,
            self.rank,
            self.world,
        )

    def frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, this rank's part) of parameters that are not trained."""
        for name, shape in (self.model.get("frozen_param_shapes") or {}).items():
            yield (
                name,
                cut(
                    [m["frozen_param_fragments"][name].flatten() for m in self.models],
                    math.prod(shape),
                    self.rank,
                    self.world,
                ),
            )


def mapped(directory: Path, rank: int, what: str) -> dict[str, Any]:
    """Return a saved rank's file, `model_states` or `optim_states`, mapped to memory. Raises CheckpointDamaged."""
    found = sorted(directory.glob(f"*zero_pp_rank_{rank}_mp_rank_00_{what}.pt"))
    if not found:
        raise CheckpointDamaged(
            f"{directory} has no {what} of rank {rank}: it is not whole. Resume from an older checkpoint."
        )
    return torch.load(found[0], map_location="cpu", mmap=True, weights_only=False)
