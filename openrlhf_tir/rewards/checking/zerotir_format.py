r"""Compute ZeroTIR's format score. Four templates share one rule.

Source: env/common/zero_template_format_score.py.

    no <answer>...</answer>                     missing        (-3)
    no \boxed{} in it                           unboxed        (-2)
    a tag not exactly once                      -1
    more than 5 tokens after </answer>          trailing       (-0.5, or +0.5 by a sign bug of the reference's ZERO_TIR)

The validity always counts, the reward only if the format reward is on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .answer_text import MAX_TRAILING, count_words


def answer_span(response: str) -> str:
    """Return the text from the first <answer> to the last </answer>; "" if there is no such block."""
    _, opening, remainder = response.partition("<answer>")
    block, closing, _ = remainder.rpartition("</answer>")
    return opening + block + closing if opening and closing else ""


def has_box(block: str) -> bool:
    r"""Return True if there is a \boxed{ and a closing brace after it.

    As in the reference's greedy pattern, the brace may follow a later </answer>.
    """
    return "}" in block.partition("\\boxed{")[2]


@dataclass(frozen=True, slots=True)
class Template:
    """What a prompt template demands, and what each violation costs."""

    tags: tuple[str, ...] = ("</think>", "<answer>", "</answer>")
    boxed: bool = True
    missing: float = -3.0
    unboxed: float = -2.0
    miscounted: float = -1.0
    trailing: float = -0.5

    def loose(self) -> Template:
        """Return the template without </think>, which is the reference's USE_TIR_FORMAT_LOOSE."""
        return replace(self, tags=("<answer>", "</answer>"))

    def score(self, response: str) -> tuple[bool, float]:
        """Return whether a response is valid, and its format reward."""
        block = answer_span(response)
        if not block:
            return False, self.missing
        if self.boxed and not has_box(block):
            return False, self.unboxed
        if any(response.count(tag) != 1 for tag in self.tags):
            return False, self.miscounted
        if count_words("".join(response.split("</answer>")[1:])) > MAX_TRAILING:
            return False, self.trailing
        return True, 0.0


ZERO_V2 = Template()
ZERO_TIR = replace(ZERO_V2, trailing=0.5)
TEMPLATES: dict[str, Template] = {
    "ZERO_V2": ZERO_V2,
    "ZERO_TIR": ZERO_TIR,
    "ZERO_TIR_LOOSE": ZERO_TIR.loose(),
    "think_answer_pattern": replace(ZERO_V2, boxed=False, missing=-2.0),
}
"""The reference's templates."""
