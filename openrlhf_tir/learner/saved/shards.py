"""Read the ZeRO-3 checkpoint of n ranks as one rank of m. Nothing is converted: the files are mapped to memory, and a
rank takes its own elements out of them.

    zero_pp_rank_<r>_mp_rank_00_optim_states.pt    for each sub group a flat tensor of master weights, and one for each
                                                   of Adam's moments: the parts of all its parameters, one after the
                                                   other
    zero_pp_rank_<r>_mp_rank_00_model_states.pt    names and shapes of the parameters in those sub groups; parts of
                                                   frozen parameters; counters

Of a parameter of N elements, rank r of n holds [r p, (r + 1) p) with p = ceil(N / n); elements beyond N are padding.

The grouping of the parameters depends on the number of ranks too, because a sub group has a maximum number of elements
*per rank*. So parameters are found by name.

DeepSpeed's universal checkpoints (0.19.8) would do for an optimizer with one parameter group. With two, they give both
the first one's weight decay, and one shared tensor as step count, to which each group then adds. And every new rank
reads three whole files per parameter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...errors import CheckpointDamaged


class Place(NamedTuple):
    """Where a parameter's part is in the flat tensors of every saved rank."""

    group: int
    """Index of the sub group."""
    offset: int
    """First element in the sub group's flat tensor."""
    numel: int
    """Number of elements of the whole parameter."""


def part_numel(numel: int, ranks: int) -> int:
    """Return the number of elements of one rank's part of a parameter, padding included."""
    return math.ceil(numel / ranks)


def places(shapes: Sequence[Mapping[str, Sequence[int]]], ranks: int) -> dict[str, Place]:
    """Return the place of each parameter by name.

    Args:
        shapes: For each sub group, the shapes of its parameters in the order of their parts.
        ranks: Number of ranks that saved.
    """
    place_of: dict[str, Place] = {}
    for group, members in enumerate(shapes):
        offset = 0
        for name, shape in members.items():
            numel = math.prod(shape)
            place_of[name] = Place(group, offset, numel)
            offset += part_numel(numel, ranks)
    return place_of


def cut(parts: Sequence[torch.Tensor], numel: int, rank: int, ranks: int) -> torch.Tensor:
    """Cut one rank's part of a parameter out of the parts of another number of ranks.

    Args:
        parts: The parts of all saved ranks, each [ceil(numel / len(parts))].
        numel: Number of elements of the parameter.
        rank: The rank that needs its part.
        ranks: Number of ranks now.

    Returns:
        [ceil(numel / ranks)], padded with 0.
    """
    size = part_numel(numel, ranks)
    saved_size = part_numel(numel, len(parts))
    new_part = parts[0].new_zeros(size)
    begin = min(rank * size, numel)
    end = min((rank + 1) * size, numel)
    for r, part in enumerate(parts):
        first = max(begin, r * saved_size)
        last = min(end, (r + 1) * saved_size)
        if first < last:
            new_part[first - begin : last - begin] = part[first - r * saved_size : last - r * saved_size]
    return new_part


class Shards:
    """A checkpoint of `ranks` ranks, as rank `rank` of `world` reads it."""

    def __init__(self, directory: Path, ranks: int, rank: int, world: int) -> None:
        """Map the files of all saved ranks.

        Args:
            directory: The directory of one engine's files.
            ranks: Number of ranks that saved.
            rank: The rank that reads.
            world: Number of ranks now.

        Raises:
            CheckpointDamaged: The file of a saved rank is missing.
        """
        self.rank = rank
        self.world = world
        self.models = [load_mapped(directory, r, "model_states") for r in range(ranks)]
        self.optimizers = [load_mapped(directory, r, "optim_states")["optimizer_state_dict"] for r in range(ranks)]
        self.places = places(self.models[0]["param_shapes"], ranks)

    @property
    def model(self) -> dict[str, Any]:
        """Rank 0's model file, for what is the same on every rank: counters, buffers, state of the schedule."""
        return self.models[0]

    @property
    def optimizer(self) -> dict[str, Any]:
        """Rank 0's optimizer file, for what is the same on every rank."""
        return self.optimizers[0]

    def master(self, name: str) -> torch.Tensor:
        """Return this rank's part of a trained parameter's master weights, [ceil(N / world)] float32."""
        return self.own_part([o["fp32_flat_groups"] for o in self.optimizers], name)

    def moment(self, key: str, name: str) -> torch.Tensor:
        """Return this rank's part of an optimizer state that exists per weight, in the shape of `master`.

        Args:
            key: "exp_avg" or "exp_avg_sq".
            name: The parameter.
        """
        flat = [
            {group: state[key] for group, state in o["optimizer_state_dict"]["state"].items()} for o in self.optimizers
        ]
        return self.own_part(flat, name)

    def state_kinds(self, name: str) -> dict[str, bool]:
        """Return the keys of the optimizer's state for a parameter's sub group.

        Returns:
            For each key whether its state exists per weight (`exp_avg`: True) or once (`step`: False). Empty before
            the optimizer's first step.
        """
        group = self.places[name].group
        weights_shape = self.optimizer["fp32_flat_groups"][group].shape
        states = self.optimizer["optimizer_state_dict"]["state"].get(group, {})
        return {key: torch.is_tensor(value) and value.shape == weights_shape for key, value in states.items()}

    def scalar_state(self, key: str, name: str) -> Any:
        """Return an optimizer state that exists once per sub group, e.g. Adam's step count.

        It is a copy, so that it does not keep the file mapped.
        """
        return copy.deepcopy(self.optimizer["optimizer_state_dict"]["state"][self.places[name].group][key])

    def own_part(self, flat: Sequence[Any], name: str) -> torch.Tensor:
        """Return this rank's part of a parameter's values.

        Args:
            flat: flat[r][g] is the flat tensor of sub group g of saved rank r, in the layout of the master weights.
            name: The parameter.
        """
        place = self.places[name]
        size = part_numel(place.numel, len(flat))
        parts = [groups[place.group][place.offset : place.offset + size] for groups in flat]
        return cut(parts, place.numel, self.rank, self.world)

    def frozen(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and this rank's part of each parameter that is not trained."""
        for name, shape in (self.model.get("frozen_param_shapes") or {}).items():
            parts = [m["frozen_param_fragments"][name].flatten() for m in self.models]
            yield name, cut(parts, math.prod(shape), self.rank, self.world)


def load_mapped(directory: Path, rank: int, kind: str) -> dict[str, Any]:
    """Return the content of a saved rank's file, with its tensors mapped to memory.

    Args:
        directory: The directory of one engine's files.
        rank: The saved rank.
        kind: "model_states" or "optim_states".

    Raises:
        CheckpointDamaged: The file is missing.
    """
    files = sorted(directory.glob(f"*zero_pp_rank_{rank}_mp_rank_00_{kind}.pt"))
    if not files:
        raise CheckpointDamaged(
            f"{directory} has no {kind} of rank {rank}, so it is incomplete. Resume from an older checkpoint.",
            code="file_missing",
        )
    return torch.load(files[0], map_location="cpu", mmap=True, weights_only=False)
