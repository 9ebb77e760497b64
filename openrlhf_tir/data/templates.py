"""Prompt templates: a problem's text -> what a base model sees. Raw text, no chat markup.

A named template is verbatim from its source, with {input} where the problem goes. Any other template is OpenRLHF's
`input_template`: a format string with one {} (a literal brace is doubled).
"""

from __future__ import annotations

from string import Formatter

from ..config.paths import shown
from ..errors import ConfigError

ZEROTIR = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant first thinks about the reasoning process "
    "in the mind and then provides the User with the answer. The reasoning process is enclosed within <think> </think> and answer is enclosed within <answer> "
    "</answer> tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>. In your reasoning-process, You can use "
    "python-code to solve your problem. User: You must put your answer inside <answer> </answer> tags, i.e., <answer> answer here </answer>. And your final "
    "answer will be extracted automatically by the \\boxed{} tag.\nThis is the problem:{input}\nAssistant: <think>"
)
"""ZeroTIR's `orz_tir`: Open-Reasoner-Zero's prompt plus the sentence about python-code."""

TORL = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it.\n"
    "User: Please integrate natural language reasoning with programs to solve the problem above, and put your final answer within \\boxed{}.\n"
    "{input}\nAssistant:\n"
)
"""ToRL's `tir_base_0309`."""

USER_ASSISTANT = "User: {input}\nAssistant:"
"""The template of the toy task."""

TEMPLATES = {"zerotir": ZEROTIR, "torl": TORL, "user_assistant": USER_ASSISTANT}


def resolve(template: str | None) -> str | None:
    """A template's name or text -> text with {input} or {}. Raises ConfigError where neither a name nor a place for the input is found."""
    if template is None or template in TEMPLATES:
        return TEMPLATES.get(template) if template else None
    if "{input}" in template:
        return template
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(template) if name is not None]
    except ValueError as e:
        raise ConfigError(f"data.input_template {shown(template)} is no format string with one {{}} ({e}). Double literal braces: {{{{}}}}.") from None
    if not fields:
        raise ConfigError(
            f"data.input_template {shown(template)} has no {{}} where the problem goes. Known names: {', '.join(sorted(TEMPLATES))}; or write a text with {{}}."
        )
    if fields != [("", "", None)]:
        raise ConfigError(f"data.input_template {shown(template)} is no format string with one {{}} and nothing in it. Double literal braces: {{{{}}}}.")
    return template


def render(template: str | None, text: str) -> str:
    """Put `text` into a resolved template; None leaves it alone."""
    if template is None:
        return text
    if "{input}" in template:
        return template.replace("{input}", text)
    return template.format(text)
