"""Prompt templates: the text around a problem that a base model sees. It is raw text without chat markup.

A named template is verbatim from its source, unless it says otherwise, with {input} in place of the problem. Any other
template is OpenRLHF's `input_template`: a format string with one {} (a literal brace is doubled), and {name} for each
other column of the row that the prompt should contain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any

from ..config.paths import shown
from ..errors import ConfigError, DataError

ZEROTIR = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant"
    " first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning"
    " process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively,"
    " i.e., <think> reasoning process here </think> <answer> answer here </answer>. In your reasoning-process, You can"
    " use python-code to solve your problem. User: You must put your answer inside <answer> </answer> tags, i.e.,"
    " <answer> answer here </answer>. And your final answer will be extracted automatically by the \\boxed{} tag.\nThis"
    " is the problem:{input}\nAssistant: <think>"
)
"""ZeroTIR's `orz_tir`: Open-Reasoner-Zero's prompt with the sentence about python-code."""

TORL = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it.\nUser: Please"
    " integrate natural language reasoning with programs to solve the problem above, and put your final answer within"
    " \\boxed{}.\n{input}\nAssistant:\n"
)
"""The template that ToRL calls `tir_base_0309`."""

SEARCHR1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new"
    " information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query"
    " </search> and it will return the top searched results between <information> and </information>. You can search as"
    " many times as your want. If you find no further external knowledge needed, you can directly provide the answer"
    " inside <answer> and </answer>, without detailed illustrations."
    " For example, <answer> Beijing </answer>. Question: {input}\n"
)
"""Search-R1's prompt, a user message."""

SEARCHR1_PAGES = SEARCHR1.replace(
    "You can search as many times",
    "To read the document that a result is of, write its number as <open> 1 </open>, and to read on <open> 1 page 2"
    " </open>: the page will be shown between <document> and </document>. You can search as many times",
)
"""Search-R1's prompt with a sentence about opening documents, for `env.options.pages`."""

OTC = SEARCHR1.replace(
    "You can search as many times as your want. If you find",
    "You need to make every search call count and gain helpful results. If you find",
)
"""OTC's prompt for search: its sentence about calls in Search-R1's prompt. Its appendix calls the block
`<observation>`; the environment inserts <information>."""

RETOOL = (
    "Solve the following problem step by step. You now have the ability to selectively write executable Python code to"
    " enhance your reasoning process. The Python code will be executed by an external sandbox, and the output (wrapped"
    " in `<interpreter>output_str</interpreter>`) can be returned to aid your reasoning and help you arrive at the"
    " final answer. The Python code should be complete scripts, including necessary imports. \n"
    "Each code snippet is wrapped with `<code>\n```python\ncode snippet\n```\n</code>`.\n"
    "The last part of your response should be in the following format:\n"
    "<answer>\n\\boxed{'The final answer goes here.'}\n</answer>\n\n"
    "*user question:*\nAnswer the following Math Problem and put the answer in the format of \\boxed{answer}\n\n"
    "{input}\n\n\n"
    "Remember to place the final answer in the last part using the format: \n"
    "<answer>\n\\boxed{'The final answer goes here.'}\n</answer>"
)
"""ReTool's prompt, a user message (evaluation/prompt_template.json). It is the prompt of its demonstrations, so a model
that was fine-tuned on them knows it."""

ARTIST = (
    "Solve the problem below. Think within <think> </think>. Where computing helps, write Python within <python>"
    " </python>: it is run and what it prints comes back within <output> </output>, so print what you want to see."
    " Think on and run more code as often as you need."
    " Give the final answer alone within <answer> </answer>.\n\nProblem: {input}"
)
"""A prompt for ARTIST's mathematics, a user message. The original is not published; this one asks for the tags of its
reward."""

USER_ASSISTANT = "User: {input}\nAssistant:"
"""The template of the toy task."""

TEMPLATES = {
    "artist": ARTIST,
    "otc": OTC,
    "retool": RETOOL,
    "searchr1": SEARCHR1,
    "searchr1_pages": SEARCHR1_PAGES,
    "torl": TORL,
    "user_assistant": USER_ASSISTANT,
    "zerotir": ZEROTIR,
}


def resolve(template: str | None) -> str | None:
    """Return the text of a template's name or text, with {input} or {}; None for no template.

    Raises:
        ConfigError: It is neither a name nor a text with a place for the input.
    """
    if template is None or template in TEMPLATES:
        return TEMPLATES.get(template) if template else None
    if "{input}" in template:
        return template
    try:
        fields = [
            (name, spec, conversion) for _, name, spec, conversion in Formatter().parse(template) if name is not None
        ]
    except ValueError as error:
        raise ConfigError(
            f"data.input_template {shown(template)} is no format string with one {{}} ({error})."
            " Double literal braces: {{}}."
        ) from None
    if not fields:
        raise ConfigError(
            f"data.input_template {shown(template)} has no {{}} where the problem goes. Known names:"
            f" {', '.join(sorted(TEMPLATES))}; or write a text with {{}}."
        )
    inputs = [name for name, _, _ in fields if not name]
    if len(inputs) != 1 or any(
        spec or conversion or (name and not name.isidentifier()) for name, spec, conversion in fields
    ):
        raise ConfigError(
            f"data.input_template {shown(template)} is not a format string with one {{}} for the problem and {{name}}"
            " for other columns of the row. Double literal braces: {{}}."
        )
    return template


def columns_of(template: str | None) -> list[str]:
    """Return the other columns of the row that a resolved template names, each once."""
    if template is None or "{input}" in template:
        return []
    return list(dict.fromkeys(name for _, name, _, _ in Formatter().parse(template) if name))


def texts_of(template: str | None, columns: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the text of each column that a resolved template names: text as it is, other values as JSON.

    Raises:
        DataError: The row has no such column, or null in it.
    """
    texts = {}
    for name in columns_of(template):
        value = columns.get(name)
        if value is None:
            known = ", ".join(columns) or "none"
            raise DataError(
                f"{where} has no value in column {name!r}, which input_template puts into the prompt. Its other"
                f" columns: {known}. Fill it in, remove the row, or take {{{name}}} out of the template."
            )
        texts[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return texts


def render(template: str | None, text: str, columns: Mapping[str, str] | None = None) -> str:
    """Put `text`, and the texts of the columns that it names, into a resolved template. None leaves `text` as it is."""
    if template is None:
        return text
    if "{input}" in template:
        return template.replace("{input}", text)
    return template.format(text, **(columns or {}))
