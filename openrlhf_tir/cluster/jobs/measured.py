"""Measured: what an evaluation found -> a row of metrics.jsonl, and what the run's summary holds of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from ...report.summary import EnvScores, Scores


@dataclass(slots=True)
class EnvResult:
    """What an evaluation found in one environment of several, over its valid samples."""

    accuracy: float
    code_ratio: float | None
    """None where no call can be made."""
    calls: float
    samples: int
    failed: int
    pass_at: dict[int, float] = field(default_factory=dict)
    """k, from 2 to n -> pass@k over this environment's problems."""


@dataclass(slots=True)
class EvalResult:
    """Fractions over all valid samples. `failed` counts those lost to infrastructure, no part of the fractions."""

    accuracy: float
    code_ratio: float | None
    """None where no call can be made."""
    format_ok: float
    """NaN where the reward says nothing of it."""
    code_correct: float
    samples: int
    failed: int
    calls: float = 0.0
    """Calls per response."""
    response_tokens: float = 0.0
    """Tokens per response, those of tools included."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """k, from 2 to n -> pass@k, the mean over the problems with at least k valid samples."""
    pass_hat: dict[int, float] = field(default_factory=dict)
    """The same of pass^k."""
    by_kind: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Kind of problem -> its accuracy and code ratio."""
    parts: dict[str, float] = field(default_factory=dict)
    """`reward/PART`: its mean over the samples of the groups that have it."""
    by_env: dict[str, EnvResult] = field(default_factory=dict)
    """Environment -> its own figures; empty where all tasks are of one."""


def scores(sampled: EvalResult, greedy: EvalResult) -> Scores:
    """As the run's summary holds them; by environment those that both evaluations have."""
    envs = {
        env: EnvScores(
            accuracy=figures.accuracy,
            code_ratio=figures.code_ratio,
            calls=figures.calls,
            greedy_accuracy=greedy.by_env[env].accuracy,
        )
        for env, figures in sampled.by_env.items()
        if env in greedy.by_env
    }
    return Scores(accuracy=sampled.accuracy, code_ratio=sampled.code_ratio, greedy_accuracy=greedy.accuracy, envs=envs)


def evaluation_row(sampled: EvalResult) -> dict[str, float]:
    """As metrics.jsonl has it; without what is None."""
    row = {"eval/accuracy": sampled.accuracy, "eval/code_ratio": sampled.code_ratio, "eval/calls": sampled.calls}
    row |= {"eval/response_tokens": sampled.response_tokens}
    row |= {f"eval/pass_at_{k}": value for k, value in sampled.pass_at.items()}
    row |= {f"eval/pass_hat_{k}": value for k, value in sampled.pass_hat.items()}
    row |= {f"eval/{part}": mean for part, mean in sampled.parts.items()}
    if len(sampled.by_kind) > 1:
        row |= {f"eval/kind/{kind}/accuracy": accuracy for kind, (accuracy, _) in sampled.by_kind.items()}
    row |= {"eval/failed_samples": float(sampled.failed)}
    for env, figures in sampled.by_env.items():
        row |= {
            f"eval/{env}/accuracy": figures.accuracy,
            f"eval/{env}/code_ratio": figures.code_ratio,
            f"eval/{env}/calls": figures.calls,
            **{f"eval/{env}/pass_at_{k}": value for k, value in figures.pass_at.items()},
        }
    return {name: value for name, value in row.items() if value is not None}


class HeldOut(BaseModel):
    """Both evaluations of one model, as a run keeps them: base.json is one."""

    scores: Scores
    """For the run's summary."""
    row: dict[str, float]
    """For metrics.jsonl: `evaluation_row`, and what is right of the greedy responses."""

    @classmethod
    def of(cls, sampled: EvalResult, greedy: EvalResult) -> HeldOut:
        told = scores(sampled, greedy)
        by_env = {f"eval/{env}/greedy_accuracy": of_env.greedy_accuracy for env, of_env in told.envs.items()}
        row = evaluation_row(sampled) | {"eval/greedy_accuracy": told.greedy_accuracy} | by_env
        if len(greedy.by_kind) > 1:
            row |= {f"eval/kind/{kind}/greedy_accuracy": accuracy for kind, (accuracy, _) in greedy.by_kind.items()}
        return cls(scores=told, row=row)
