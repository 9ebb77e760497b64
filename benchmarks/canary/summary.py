"""Judge what was collected with the code that a run uses (weights/verify.py), and what an H100 recorded."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from openrlhf_tir.config.sections.rollout import FP32_TOLERANCE
from openrlhf_tir.weights.verify import Disagreement, Evidence, Reference, disagreement

from .collect import load_lines

CEILING = 0.5
H100 = ((0.0305, 0.153, 0.241), (0.0173, 0.130, 0.217), (0.0137, 0.186, 0.241))
"""Three right pushes of SmolLM2 in bf16 on an H100, 64 sampled tokens each: median, 95 % quantile and largest
difference in nats, as they were recorded."""
H100_LEVELS = ((0.92, 0.070), (0.76, 0.065), (0.63, 0.100))
"""Share of uncertain tokens and level of the same three pushes. The record has no probabilities of the tokens. These
two numbers give a recorded median and 95 % quantile if the differences have the shape of those measured on a CPU."""
SPREAD = 0.9
"""Standard deviation of |engine - learner| / (1 - p) over its mean, as measured in bf16 on a CPU."""


def evidence_of(line: dict[str, Any]) -> Evidence:
    """Return a record's tokens, those of shared beginnings left out as a run leaves them out."""
    engine, learner, previous, sampled = [], [], [], []
    for i, said in enumerate(line["engine"]):
        skipped = max(0, line["shared"][i] - 1)
        forced = line["forced"][i]
        before = np.full(len(said), np.nan)
        if line.get("before"):
            before[:forced] = line["before"][i][:forced]
        engine.append(np.asarray(said)[skipped:])
        learner.append(np.asarray(line["learner"][i])[skipped:])
        previous.append(before[skipped:])
        sampled.append((np.arange(len(said)) >= forced)[skipped:])
    return Evidence(*(np.concatenate(part) for part in (engine, learner, previous, sampled)))


def summary(out: Path) -> dict[str, Any]:
    """Judge every stage in `out`. A figure is None where nothing was collected that it could be of.

    `other_texts` are right pushes that were also scored on the texts of a second round, which the reference has not
    seen. A run pools them with those of the first round; here they are judged alone, which is harsher.
    """
    rights: list[float] = []
    others: list[float] = []
    compute: dict[str, float] = {}
    missed: list[str] = []
    by_read_back = faults = alarms = 0
    seconds: list[float] = []
    stages: dict[str, Any] = {}
    for path in sorted(out.glob("*.jsonl")):
        found = _judged(load_lines(path), fp32=path.name.startswith("fp32"))
        rights += found["excess"]
        others += found["others"]
        seconds += found["seconds"]
        alarms += found["alarms"]
        faults += len(found["faults"])
        for name, (read_back, excess) in found["faults"].items():
            by_read_back += read_back
            if not read_back:
                compute[f"{path.stem} {name}"] = excess
            if not read_back and excess <= 1:
                missed.append(f"{path.stem} {name}")
        stages[path.stem] = found["figures"]
    return {
        "pushes": {name: figures["pushes"] for name, figures in stages.items()},
        "false_alarms": alarms,
        "mutants": faults,
        "mutants_missed": len(missed),
        "missed": missed,
        "mutants_caught_by_read_back": by_read_back,
        "worst_right_over_threshold": _short(max(rights)) if rights else None,
        "weakest_mutant_over_threshold": _short(min(compute.values())) if compute else None,
        "other_texts": {
            "pushes": len(others),
            "false_alarms": sum(over > 1 for over in others),
            "worst_over_threshold": _short(max(others)) if others else None,
        },
        "proof_s_median": _short(median(seconds)) if seconds else None,
        "stages": stages,
        "h100": replay(),
    }


def _judged(lines: list[dict[str, Any]], *, fp32: bool) -> dict[str, Any]:
    """Judge one stage in the order in which it happened, the reference following as in a run."""
    references: dict[int, Reference] = defaultdict(lambda: Reference(CEILING, FP32_TOLERANCE if fp32 else None))
    excess: list[float] = []
    others: list[float] = []
    levels: list[float] = []
    ratios: list[float] = []
    behind: list[float] = []
    seconds: list[float] = []
    faults: dict[str, tuple[bool, float]] = {}
    fault_levels: dict[str, float] = {}
    alarms = 0
    for line in lines:
        reference = references[line["part"]]
        level = disagreement(evidence_of(line))
        if not fp32 and not reference.levels:
            # A run is calibrated on the weights from disk; here on the first push. Only its read-back is judged.
            if not line["fault"]:
                alarms += line["read_back"] is not None
                reference.accepted([level.level])
            continue
        over = reference.tolerance.excess(level)
        if line["fault"]:
            faults[line["fault"]] = (line["read_back"] is not None, over)
            fault_levels[line["fault"]] = level.level
            continue
        excess.append(over)
        levels.append(level.level)
        behind.append(level.behind)
        seconds.append(line["read_back_s"] + line["canary_s"] + line["score_s"])
        if reference.levels:
            ratios.append(level.level / float(np.median(reference.levels)))
        alarms += line["read_back"] is not None or over > 1
        if other := line.get("other"):
            others.append(reference.tolerance.excess(disagreement(evidence_of(other))))
        reference.accepted([level.level])
    figures = {
        "pushes": len(levels),
        "level_median": _short(median(levels)) if levels else None,
        "level_least": _short(min(levels, default=0.0)),
        "level_most": _short(max(levels, default=0.0)),
        "ratio_log_sd": _short(float(np.std(np.log(ratios)))) if len(ratios) > 1 else None,
        "ratio_most": _short(max(ratios, default=0.0)),
        "behind_most": _short(max(behind, default=0.0)),
        "faults": {
            name: {"read_back": seen, "level": _short(fault_levels[name]), "over_threshold": _short(over)}
            for name, (seen, over) in sorted(faults.items())
        },
    }
    return {
        "excess": excess,
        "others": others,
        "seconds": seconds,
        "alarms": alarms,
        "faults": faults,
        "figures": figures,
    }


def replay(trials: int = 20_000) -> dict[str, float]:
    """Simulate pushes with levels fitted to three pushes of an H100, and judge them by the old rule and by this one.

    It is no record of the new rule on a GPU: the shape of the differences is the one measured on a CPU.

    Each text of a push differs like one of the three recorded pushes, chosen at random. This is harsher than a run,
    where the texts stay the same from push to push. The old rule sees 64 tokens, lognormal with the recorded median and
    95 % quantile. This rule sees the uncertain tokens of eight texts, gamma distributed with the recorded push's level.
    """
    rng = np.random.default_rng(0)
    tokens = 400
    spread = {m: np.log(high / m) / 1.645 for m, high, _ in H100}
    shape = SPREAD**-2

    def old_push() -> np.ndarray:
        medians = [H100[i][0] for i in rng.integers(0, len(H100), 8)]
        return np.concatenate([m * np.exp(spread[m] * rng.standard_normal(8)) for m in medians])

    def push(count: int) -> np.ndarray:
        texts = [H100_LEVELS[i] for i in rng.integers(0, len(H100_LEVELS), 8)]
        return np.concatenate([rng.gamma(shape, level / shape, int(share * count / 8)) for share, level in texts])

    old = new = whole = 0
    ratios = []
    for _ in range(trials // 20):
        first = old_push()
        median_limit, high_limit = 4 * np.median(first), 4 * np.quantile(first, 0.95)
        reference = Reference(CEILING)
        reference.accepted([float(push(2 * tokens).mean())])
        for _ in range(20):
            sample = old_push()
            old += np.median(sample) > median_limit or np.quantile(sample, 0.95) > high_limit
            differences = push(tokens)
            level = float(differences.mean())
            ratios.append(level / float(np.median(reference.levels)))
            if reference.tolerance.excess(Disagreement(level, 0.0)) > 1:
                new += 1
                pooled = float(np.concatenate([differences, push(tokens)]).mean())
                whole += reference.tolerance.excess(Disagreement(pooled, 0.0)) > 1
            else:
                reference.accepted([level])
    pushes = trials // 20 * 20
    return {
        "pushes": pushes,
        "old_rule_false_alarms": int(old),
        "first_round_false_alarms": int(new),
        "false_alarms": int(whole),
        "ratio_log_sd": _short(float(np.std(np.log(ratios)))),
        "ratio_most": _short(max(ratios)),
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")
