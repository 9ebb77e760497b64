import torch


def reward_func(queries, prompts, labels, **kwargs):
    return torch.zeros(len(queries))
