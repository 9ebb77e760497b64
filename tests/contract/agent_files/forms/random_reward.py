"""The form of a reward by chance, 0 or 1 for each query."""

import torch


def reward_func(queries, prompts, labels, **kwargs):
    reward = torch.randint(0, 2, (len(queries),)).float()
    return {"rewards": reward, "scores": reward, "extra_logs": {"random_scores": reward}}
