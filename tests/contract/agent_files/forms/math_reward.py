"""The form of a reward for mathematics: an "Answer:" line before a box, compared by OpenRLHF's own grader."""

import re

import torch
from openrlhf.utils import extract_boxed_answer, grade_answer


def answer_of(response):
    lines = re.findall(r"Answer:\s*(.+?)(?:\n|$)", response, re.IGNORECASE)
    return lines[-1].strip() if lines else extract_boxed_answer(response)


def reward_func(queries, prompts, labels, **kwargs):
    answers = [answer_of(query[len(prompt) :]) for query, prompt in zip(queries, prompts, strict=True)]
    right = torch.tensor([float(grade_answer(answer, label)) for answer, label in zip(answers, labels, strict=True)])
    return {"rewards": right, "scores": right, "extra_logs": {"math_accuracy": right.mean()}}
