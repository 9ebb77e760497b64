"""When does a reward for every part of a call learn faster than one for all or nothing? python -m
benchmarks.learner.partial_credit [--seeds 20]

A response is k slots, each right with probability sigmoid(theta_i): what is left of `reproduce toolrl` without a
language model. GRPO's advantages (16 groups of 8, divided by the group's standard deviation), the exact score function,
Adam at .05. Told for each k and each share of right slots at the start are the updates until half of the responses are
right in every slot, with both rewards.

    fine     the number of slots that are right
    coarse   1 where all are, else 0

Simulated: no engine, no model; seconds. The last line is one JSON object: ratios fine / coarse."""

from __future__ import annotations

import json
from statistics import mean

import torch

from benchmarks.command import command_parser

GROUPS, SAMPLES, RATE, BETAS, LIMIT = 16, 8, 0.05, (0.9, 0.95), 400
SLOTS, RIGHT = (4, 6), (0.4, 0.3, 0.25, 0.2)


def updates_to_half(slots: int, right: float, fine: bool, seed: int) -> int:
    """LIMIT where it is not reached before."""
    draw = torch.Generator().manual_seed(seed)
    theta_K = torch.full((slots,), right, dtype=torch.float64).logit().requires_grad_()
    adam = torch.optim.Adam([theta_K], RATE, BETAS)
    for update in range(1, LIMIT):
        p_K = theta_K.detach().sigmoid()
        if p_K.prod() >= 0.5:
            return update
        right_GNK = torch.rand((GROUPS, SAMPLES, slots), generator=draw) < p_K
        reward_GN = (right_GNK.sum(-1) if fine else right_GNK.all(-1)).double()
        centred_GN = reward_GN - reward_GN.mean(1, keepdim=True)
        advantage_GN = centred_GN / (reward_GN.std(1, keepdim=True) + 1e-6)
        theta_K.grad = -(advantage_GN[..., None] * (right_GNK.double() - p_K)).mean((0, 1))
        adam.step()
    return LIMIT


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    ratios: dict[str, float] = {}
    for slots in SLOTS:
        for right in RIGHT:
            fine, coarse = (mean(updates_to_half(slots, right, way, seed) for seed in seeds) for way in (True, False))
            ratios[f"{slots}x{right}"] = round(fine / coarse, 2)
            print(
                f"{slots} slots, {right:.0%} of each right, {right**slots:.2%} of the responses: half after {fine:.0f}"
                f" updates with the fine reward, {coarse:.0f} with the coarse one, ratio {fine / coarse:.2f}",
                flush=True,
            )
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
