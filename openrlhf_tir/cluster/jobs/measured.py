"""The results of an evaluation, as a row of metrics.jsonl and in the run's summary."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel

from ...observability.report.summary import EnvScores, Scores


@dataclass(slots=True, kw_only=True)
class EnvResult:
    """Figures of one environment of several, over its valid samples.

    Attributes:
        accuracy: Share of samples that are correct.
        code_ratio: Share of samples that called a tool; None where no call can be made.
        samples: Number of valid samples.
        failed: Number of samples that infrastructure lost. They are not part of the shares.
        calls: Calls per response.
        pass_at: k, from 2 to n -> pass@k, the mean over the problems with at least k valid samples.
    """

    accuracy: float
    code_ratio: float | None
    samples: int
    failed: int
    calls: float = 0.0
    pass_at: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class EvalResult(EnvResult):
    """Figures of an evaluation, over all valid samples.

    Attributes:
        format_ok: Share of samples with the right format; NaN if the reward does not report it.
        code_correct: Share of samples with a call that are correct.
        response_tokens: Tokens per response, with those of tools.
        pass_hat: k, from 2 to n -> pass^k, the same mean.
        by_kind: Kind of problem -> its accuracy and code ratio.
        parts: `reward/PART` -> its mean over the samples of the groups that have it.
        by_env: Environment -> its figures; {} if all problems are of one.
    """

    format_ok: float
    code_correct: float
    response_tokens: float = 0.0
    pass_hat: dict[int, float] = field(default_factory=dict)
    by_kind: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    by_env: dict[str, EnvResult] = field(default_factory=dict)


def scores(sampled: EvalResult, greedy: EvalResult) -> Scores:
    """Return the scores as the run's summary holds them, with the environments that both evaluations have."""
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
    """Return the figures as metrics.jsonl holds them, without those that are None."""
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
    """Both evaluations of one model, as a run keeps them in base.json.

    Attributes:
        scores: The scores for the run's summary.
        row: The row for metrics.jsonl: `evaluation_row`, and the accuracy of the greedy responses.
    """

    scores: Scores
    row: dict[str, float]

    @classmethod
    def of(cls, sampled: EvalResult, greedy: EvalResult) -> HeldOut:
        """Return both evaluations in this form."""
        summary_scores = scores(sampled, greedy)
        by_env = {
            f"eval/{env}/greedy_accuracy": env_scores.greedy_accuracy for env, env_scores in summary_scores.envs.items()
        }
        row = evaluation_row(sampled) | {"eval/greedy_accuracy": summary_scores.greedy_accuracy} | by_env
        if len(greedy.by_kind) > 1:
            row |= {f"eval/kind/{kind}/greedy_accuracy": accuracy for kind, (accuracy, _) in greedy.by_kind.items()}
        return cls(scores=summary_scores, row=row)
