"""A remote reward in OpenRLHF's form (docs/openrlhf_files.md): 1 where the label is the last number of the response."""

import re

import torch


def reward_func(queries, prompts, labels, **kwargs):
    answers = [re.findall(r"-?\d+", query[len(prompt) :]) for query, prompt in zip(queries, prompts, strict=True)]
    right = torch.tensor(
        [float(bool(found) and found[-1] == label.strip()) for found, label in zip(answers, labels, strict=True)]
    )
    return {
        "rewards": right,
        "scores": right,
        "extra_logs": {"numbers": torch.tensor([float(len(found)) for found in answers])},
    }
