"""Losses from papers' formulas alone, in plain float64 PyTorch, token by token: what the learner's must equal."""

from __future__ import annotations

import math

import torch


def ppo_token(log_pi, log_old, adv, low, high, dual=None):
    ratio = torch.exp(log_pi - log_old)
    inside = 1 - low <= ratio.item() <= 1 + high
    bad = adv < 0
    free = inside or (ratio.item() > 1 if bad else ratio.item() < 1)  # the minimum takes what is worse
    value = ratio * adv if free else torch.tensor(((1 - low) if bad else (1 + high)) * adv, dtype=torch.float64)
    return -torch.maximum(value, torch.tensor(dual * adv, dtype=torch.float64)) if dual and adv < 0 else -value


def cispo_token(log_pi, log_old, adv, low, high):
    weight = min(max(math.exp(log_pi.item() - log_old), 1 - low), 1 + high)
    return -weight * adv * log_pi


def pg_token(log_pi, log_old, adv, low, high):
    return -adv * log_pi


TOKEN = {"ppo": ppo_token, "cispo": cispo_token, "pg": pg_token}


def gspo_rows(log_pi, log_old, adv, mask, low, high):
    """Per row: the mean over its tokens of the clipped objective with the row's geometric mean ratio."""
    rows = []
    for r in range(len(mask)):
        at = [t for t in range(mask.shape[1]) if mask[r, t]]
        ratio = torch.exp(sum(log_pi[r, t] - log_old[r, t] for t in at) / len(at))
        clipped = torch.clamp(ratio, 1 - low, 1 + high)
        rows.append(sum(-torch.minimum(ratio * adv[r, t], clipped * adv[r, t]) for t in at) / len(at))
    return rows


def is_weight(kind, log_old, log_mu, bounds):
    """tis: clamp(s); icepop: s inside the band, else 0. One token."""
    s = math.exp(log_old - log_mu)
    if kind == "tis":
        return min(max(s, bounds[0]), bounds[1])
    return s if bounds[0] <= s <= bounds[1] else 0.0


def aggregated(per_token, mask, mode, constant=None):
    """per_token[r][t] of a whole update -> its loss. mask [b, L] are weights."""
    rows = [
        [(per_token[r][t], float(mask[r, t])) for t in range(mask.shape[1]) if mask[r, t]] for r in range(len(mask))
    ]
    rows = [row for row in rows if row]
    if mode == "token-mean":
        return sum(w * x for row in rows for x, w in row) / sum(w for row in rows for _, w in row)
    if mode == "seq-mean-token-mean":
        return sum(sum(w * x for x, w in row) / sum(w for _, w in row) for row in rows) / len(rows)
    return sum(sum(w * x for x, w in row) / constant for row in rows) / len(rows)
