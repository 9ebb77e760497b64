"""Minerva's normalisation of answers, in the two dialects of ToRL and of DAPO's scorer (used by ReTool's recipe).

Source: Lewkowycz et al. 2022, appendix D; ToRL's torl_eval.py; verl's math_dapo.py. It is here to reproduce their
verdicts, with its faults ("an " vanishes from words, "km" from names). This project itself uses `answer_check`.
"""

from __future__ import annotations

import re

_COMMON = (
    ("an ", ""), (".$", "$"), ("\\$", ""), (r"\ ", ""), (" ", ""), ("mbox", "text"),
    (",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}"),
)  # fmt: skip
_DAPO = (_COMMON[0], ("a ", ""), *_COMMON[1:])
_TORL = (
    *_COMMON, ("\\left", ""), ("\\right", ""), ("∶", ":"), ("，", ","), ("$", ""), ("\\approx", "="), ("\\simeq", "="),
    ("\\sim", "="), ("^\\prime", "'"), ("^{\\prime}", "'"), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"),
    ("^\\circ", ""), ("%", ""), ("√", "\\sqrt"), ("∞", "\\infty"), ("∪", "\\cup"),
)  # fmt: skip
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}",
    "\\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', "\\dots",
)  # fmt: skip
_UNWRAPPED = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),
    *((re.compile(rf"\\{name}\{{(.*?)\}}"), r"\1") for name in ("text", "textbf", "overline")),
    (re.compile(r"\\boxed\{(.*)\}"), r"\1"),
    (re.compile(r"frac([^{])(.)"), r"frac{\1}{\2}"),
    (re.compile(r"sqrt([^{])"), r"sqrt{\1}"),
)


def _rewrite(text: str, substitutions: tuple[tuple[str, str], ...]) -> str:
    for before, after in substitutions:
        text = text.replace(before, after)
    for unit in _REMOVED:
        text = text.replace(unit, "")
    for pattern, replacement in _UNWRAPPED:
        text = pattern.sub(replacement, text)
    text = text.replace("$", "")
    return text.replace(",", "") if text.replace(",", "").isdigit() else text


def _undelimited(text: str) -> str:
    r"""Return a text without \( \) or \[ \] around it."""
    text = text[2:] if text.startswith(("\\(", "\\[")) else text
    return text[:-2] if text.endswith(("\\)", "\\]")) else text


def normalise_torl(text: str) -> str:
    """Return ToRL's normal form of an answer."""
    return _undelimited(_rewrite(_undelimited(text.strip()), _TORL)).strip()


def normalise_dapo(text: str) -> str:
    """Return DAPO's normal form of an answer. Of an equation only the last side counts."""
    return _rewrite(text.split("=")[-1], _DAPO).strip()
