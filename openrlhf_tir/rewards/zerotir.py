r"""Compute ZeroTIR's reward with all its bonuses, and its metrics.

    valid format and proper stop ──> answer = max(rule, model verdict), else 0
    reward = answer + format reward + overlong + execution penalty + tool bonus + idea bonus

Only the first summand is on by default. The model verdict comes from an OpenAI-compatible server (option
`verifier_url`), which is asked if the rule says no. Without a server it is 0.

`score` applies the rule to plain facts, with the reference's constants in `OFFICIAL` and corrected ones in `FIXED`.
`zerotir` applies it to a trajectory. Source: env/math/math_reward_tir.py; spec section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from ..errors import ConfigError
from ..inert import plain
from ..types import RewardParts, Task, Trajectory
from .checking import library_verdict, model_verdict, text_metrics
from .checking.answer_text import last_boxed, model_text, open_boxed, without_code, without_end_marks
from .checking.code_text import OUTPUT_BLOCK, PYTHON_BLOCK, has_code
from .checking.zerotir_format import TEMPLATES, ZERO_V2, Template, answer_span, has_box
from .context import RewardContext
from .parts import response_parts

PAD = "<|endoftext|>"
"""Padding token of the models that the method trains. The reference removes it from the response before all else."""
STOP_WINDOW = 20
"""Characters at the end of a response in which the reference looks for a stop string."""
QUICK_CHARS = 10_000
"""Length of a text whose repetition is measured in about a millisecond, which is less than a call of another process
takes. (With OMP_NUM_THREADS=1, as in Ray's workers: the library's threads wait for each other on busy cores.)"""
Verdict = float | None
"""1.0: right; 0.0: wrong; None: the verifier failed; -10000.0: a model's reply that says neither."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The settings that the reference reads from environment variables, all off by default."""

    format_reward: bool = False
    overlong: bool = False
    code_execution: bool = False
    shortcut: bool = False
    tool_bonus: float = 0.0
    pattern_bonus: float = 0.0
    loose: bool = False
    official: bool = False
    """True: judge all of the response by the reference's rules, including its slips (OFFICIAL)."""
    max_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Verifier:
    """The model that judges beside the rule. The environment variable `verifier_token_env` has its token, if any."""

    verifier_url: str
    verifier_model: str
    verifier_token_env: str = "TIR_VERIFIER_TOKEN"


FLAGS: dict[str, type] = get_type_hints(Flags)
OF_VERIFIER: dict[str, type] = get_type_hints(Verifier)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in which the reference has a sign bug, typing errors in keywords, and a need for a stop string."""

    template: Template
    keywords: dict[str, tuple[str, ...]]
    eos_is_stop: bool


OFFICIAL = Rules(TEMPLATES["ZERO_TIR"], text_metrics.OFFICIAL_KEYWORDS, eos_is_stop=False)
FIXED = Rules(ZERO_V2, text_metrics.KEYWORDS, eos_is_stop=True)


@dataclass(frozen=True, slots=True)
class Facts:
    """One response.

    Attributes:
        response: Its text. Blocks are counted in it. Padding is removed.
        finish_reason: Why it ended.
        num_tokens: Tokens of the whole response.
        stop_strings: The stop strings of the request.
        ended_by_eos: True if a sampled EOS ended it.
        executions: [n] 1 for each execution of code.
        errors: [n] 1 for each execution that failed.
        graded: The text that is judged; None: all of it.
    """

    response: str
    finish_reason: str
    num_tokens: int
    stop_strings: Sequence[str] = ()
    ended_by_eos: bool = False
    executions: Sequence[int] = ()
    errors: Sequence[int] = ()
    graded: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "response", self.response.replace(PAD, ""))


def official_verdict(answer: str, gold: str | Sequence[str]) -> float:
    r"""Return 1.0 if the answer equals a gold answer as a string, or as Math-Verify reads it in \boxed{}; else 0.0.

    An answer that Math-Verify cannot parse is wrong.
    """
    parsed = library_verdict.parse_boxed(answer)
    if len(parsed) < 2:
        return 0.0
    golds = [gold] if isinstance(gold, str) else gold
    return float(any(parsed[1] == g or library_verdict.verify(library_verdict.parse_boxed(g), parsed) for g in golds))


def finish(facts: Facts, rules: Rules) -> str:
    """Return the finish reason that counts: "truncated" if the response neither stopped properly nor was too long."""
    stopped = any(s in facts.response[-STOP_WINDOW:] for s in facts.stop_strings) or (
        rules.eos_is_stop and facts.ended_by_eos
    )
    return facts.finish_reason if stopped or facts.finish_reason == "length" else "truncated"


class Format(NamedTuple):
    """What the format rule says of one response.

    Attributes:
        text: The text that it was applied to.
        reward: Its reward.
        finish_reason: The finish reason that counts.
        graded_text: The text whose answer is judged; None if the format or the finish reason is wrong.
    """

    text: str
    reward: float
    finish_reason: str
    graded_text: str | None


def check_format(facts: Facts, flags: Flags, rules: Rules) -> Format:
    """Apply the format rule to one response."""
    text = facts.response if facts.graded is None else facts.graded.replace(PAD, "")
    template = rules.template.loose() if flags.loose else rules.template
    valid, reward = template.score(without_end_marks(text))
    reason = finish(facts, rules)
    return Format(text, reward, reason, text.split("</think>")[-1] if valid and reason == "stop" else None)


def score(
    facts: Facts, flags: Flags, rules: Rules, checked: Format, verdicts: tuple[Verdict, Verdict], repeated: float
) -> dict[str, Any]:
    """Return the reference's metrics of one response; "rewards" is the reward.

    Args:
        facts: The response.
        flags: The settings.
        rules: The reference's rules, or the corrected ones.
        checked: What `check_format` says of the response.
        verdicts: Those of the rule and of the model on the graded text. They count only if there is one.
        repeated: text_metrics.repeatness of the response.
    """
    rule, model = (0.0, 0.0) if checked.graded_text is None else verdicts
    answer = max(rule or 0.0, model or 0.0)
    reason = checked.finish_reason
    keywords = text_metrics.keyword_flags(facts.response, rules.keywords)
    runs = sum(facts.executions)
    failures = sum(facts.errors)
    blocks, outputs = (float(len(p.findall(facts.response))) for p in (PYTHON_BLOCK, OUTPUT_BLOCK))
    overlong = text_metrics.soft_overlong(facts.num_tokens, flags.max_tokens)

    bonus = checked.reward if flags.format_reward else 0.0
    if flags.overlong:
        bonus += overlong
    if flags.code_execution and answer > 0.1 and runs > 1 and failures / runs > 0.9:
        bonus -= 0.1
    if flags.shortcut and answer > 0.1 and repeated > 0.1:
        answer = 0.0
    if answer > 0 and blocks and outputs and failures != runs:
        bonus += flags.tool_bonus
    if answer > 0 and keywords["new_idea"]:
        bonus += flags.pattern_bonus

    code = float(has_code(facts.response))
    return {
        "rewards": answer + bonus,
        "answer_rewards": answer,
        "rule_rewards": rule or 0.0,
        "model_rewards": model or 0.0,
        "rule_eval_fails": float(rule is None),
        "model_eval_fails": float(model is None),
        "graded_text": checked.graded_text,
        # 1 means bad. In the reference a good format without a proper stop is bad as well.
        "format_answer": float(checked.graded_text is None),
        "more_boxed": 0.0,  # the reference counts with a greedy pattern, which never matches twice
        "no_boxed": float(not has_box(answer_span(checked.text))),
        "finish_reason": float(reason == "stop"),
        "truncated": float(reason == "length"),
        "other": float(reason not in ("length", "stop")),
        "length_rewards": facts.num_tokens,
        "overlong_punishment": overlong,
        "repeatness": repeated,
        "repetition_penalty": text_metrics.repeated_ngrams(facts.response.split()),
        **keywords,
        "code_rewards": code,
        "code_correct": float(code > 0 and answer > 0),
        "code_count": blocks,
        "output_count": outputs,
        "partial_code_count": float(facts.response.count("```python\n")),
        "code_exection_times": float(runs),
        "code_exection_errors": failures / (1e-10 + runs),
        "code_exection_all_failed": float(failures == runs),  # 1 without any execution: 0 == 0
        "code_exection_last_failed": float(facts.errors[-1]) if facts.errors else 0.0,
        # Recorded by the reference, and always 0 there.
        "diversity_score": 0.0,
        "has_stop_token": 0.0,
    }


async def zerotir(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response. The options are the fields of `Flags` and `Verifier`; reward.format "answer" implies `loose`.

    Returns:
        Its parts are all numbers of `score`, those of `call_facts`, correct and format_ok. `model_rewards` is 1 only
        for answers that the rule rejects and the model accepts: the model is not asked about others.
    """
    flags, verifier = _flags(context)
    errors = [int(c.outcome != "ok") for c in trajectory.calls]
    facts = Facts(
        response=trajectory.text,
        finish_reason=trajectory.finish_reason,
        num_tokens=trajectory.response_tokens,
        # The engine says why it stopped, so that the text need not be searched for a stop string.
        ended_by_eos=trajectory.finish_reason == "stop",
        executions=[1] * len(errors),
        errors=errors,
        stop_strings=[trajectory.stop_reason] if isinstance(trajectory.stop_reason, str) else [],
        graded=None if flags.official else without_code(model_text(trajectory)),
    )

    rules = OFFICIAL if flags.official else FIXED
    checked = check_format(facts, flags, rules)
    verdicts: tuple[Verdict, Verdict] = (0.0, 0.0)
    if checked.graded_text is not None:
        verdicts = await _judge(checked.graded_text, flags, verifier, task, context)
    if len(facts.response) <= QUICK_CHARS:
        repeated = text_metrics.repeatness(facts.response)
    else:
        repeated = await context.run_in_worker(text_metrics.repeatness, facts.response)
    record = score(facts, flags, rules, checked, verdicts, repeated)
    numbers = {k: float(v) for k, v in record.items() if k != "graded_text"}
    correct = numbers["answer_rewards"] > 0.5
    parts = response_parts(trajectory, correct=correct, format_ok=checked.graded_text is not None)
    return RewardParts(numbers["rewards"], correct, {**numbers, **parts})


async def _judge(
    text: str, flags: Flags, verifier: Verifier | None, task: Task, context: RewardContext
) -> tuple[Verdict, Verdict]:
    """Return the verdicts of the rule and of the model on a text. The model is asked only if the rule says no."""
    boxed = open_boxed(text) if flags.official else last_boxed(text)
    if boxed is None:
        return 0.0, 0.0
    if flags.official:
        right = await context.run_in_worker(official_verdict, boxed, task.label) > 0
    else:
        right = await context.equal(boxed, task.label)
    if right or verifier is None:
        return float(right), 0.0
    question = (
        verifier.verifier_url,
        verifier.verifier_model,
        verifier.verifier_token_env,
        plain(task.prompt),
        text,
        task.label,
    )
    deadline_s = context.deadline_s or context.settings.verify_deadline_s
    return 0.0, await context.run_in_worker(model_verdict.verdict, *question, deadline_s)


def _flags(context: RewardContext) -> tuple[Flags, Verifier | None]:
    """Return the settings in a reward's options.

    Raises:
        ConfigError: An option is unknown, or the verifier's URL or model is missing.
    """
    context.check_options(FLAGS | OF_VERIFIER, "reward.name = 'zerotir'")
    options = dict(context.options)
    of_verifier = {name: str(options.pop(name)) for name in OF_VERIFIER.keys() & options.keys()}
    if bool(of_verifier.get("verifier_url")) != bool(of_verifier.get("verifier_model")):
        raise ConfigError(
            "reward.options.verifier_url and reward.options.verifier_model go together: "
            f"{of_verifier}. Give the server's base URL, http://host:port/v1, and the name of the model that it serves."
        )
    settings = Flags(**{"loose": context.format == "answer", **options})
    return settings, Verifier(**of_verifier) if of_verifier.get("verifier_url") else None
