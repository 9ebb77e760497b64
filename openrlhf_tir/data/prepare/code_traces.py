"""Turn worked solutions into demonstrations with code, as ReTool builds its cold start (arXiv 2504.11536).

    row        problem, solution, label
    verified   the solution's own answer is the label, and a model agrees (dual verification)
    rewritten  a model replaces calculations by code and the output that the interpreter shows
    checked    the tags are in order, and the answer is still the label
    written    {"messages": [ReTool's prompt, the rewritten solution]}, which `openrlhf-tir sft` reads

A row that fails a stage is left out and counted by reason. A model that does not reply is an infrastructure failure and
ends the command; replies are kept in a file, so the same command continues from there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataError
from ...rewards.checking import answer_check
from ...rewards.checking.answer_text import last_boxed
from ...rewards.checking.model_verdict import PROMPT as VERDICT_PROMPT
from ...rewards.checking.model_verdict import read as read_verdict
from ..templates import RETOOL, render

REWRITE = """Below is a maths problem and a solution in words. Rewrite the solution so that Python does the calculation.

- Keep the reasoning, its order and its conclusion.
- Where the solution calculates by hand, write a complete program that prints what is needed, in this form:
<code>
```python
# program
```
</code>
- Write what the program prints directly behind it, in this form, and go on with that value:
<interpreter>
output
</interpreter>
- Use programs only where they save calculation; at least one.
- End with the final answer in this form and write nothing behind it:
<answer>
\\boxed{{the final answer}}
</answer>

Problem:
{question}

Solution:
{solution}
"""
"""The prompt of the model, in our words: the paper's is not published."""

_PART = re.compile(r"(<code>|</code>|<interpreter>|</interpreter>|<answer>|</answer>)")
_ORDER = {
    ("text", "<code>"): "code",
    ("code", "</code>"): "ran",
    ("ran", "<interpreter>"): "output",
    ("output", "</interpreter>"): "text",
    ("text", "<answer>"): "answer",
    ("answer", "</answer>"): "end",
}
"""(state, tag) -> the next state."""
_PROGRAM = re.compile(r"\s*```python\n.+?\n```\s*", re.DOTALL)

Ask = Callable[[str], str]
"""Returns a model's reply to a prompt. Raises TirError if there is none."""


class Worked(NamedTuple):
    """A problem with a solution in words."""

    where: str
    question: str
    solution: str
    label: str


def format_fault(trace: str) -> str:
    """Return what is wrong with the form of a rewritten solution; "" if nothing is.

    A program in a python fence is in <code>, its output directly after it in <interpreter>, and the answer in a box in
    <answer> at the end.
    """
    state = "text"
    programs = 0
    for part in _PART.split(trace):
        if _PART.fullmatch(part):
            if (state, part) not in _ORDER:
                return "tags_out_of_order"
            state = _ORDER[state, part]
        elif state == "code":
            if not _PROGRAM.fullmatch(part):
                return "no_program_in_code"
            programs += 1
        elif state == "ran" and part.strip():
            return "text_before_output"
        elif state == "answer" and last_boxed(part) is None:
            return "no_boxed_answer"
        elif state == "end" and part.strip():
            return "text_behind_answer"
    if state != "end":
        return "no_answer"
    return "" if programs else "no_code"


def demonstration(worked: Worked, rewrite: Ask, judge: Ask | None) -> tuple[dict[str, Any] | None, str]:
    """Return a row of messages and "", or None and the reason why there is none.

    Args:
        worked: The problem and its solution.
        rewrite: The model that rewrites.
        judge: The model of the dual verification; None leaves it to the rule.
    """
    own = last_boxed(worked.solution)
    if own is None:
        return None, "solution_without_box"
    if not answer_check.equal(own, worked.label):
        return None, "solution_is_wrong"
    if judge is not None:
        question = VERDICT_PROMPT.format(question=worked.question, answer=worked.solution, gold=worked.label)
        if not read_verdict(judge(question)):
            return None, "model_says_wrong"
    trace = rewrite(REWRITE.format(question=worked.question, solution=worked.solution)).strip()
    if fault := format_fault(trace):
        return None, fault
    if not answer_check.equal(last_boxed(trace) or "", worked.label):
        return None, "answer_changed"
    messages = [
        {"role": "user", "content": render(RETOOL, worked.question)},
        {"role": "assistant", "content": trace},
    ]
    return {"messages": messages, "label": worked.label}, ""


def demonstrations(
    rows: Iterable[Worked], rewrite: Ask, judge: Ask | None, workers: int, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the demonstrations in the order of the rows, `workers` rows at a time. Count the others by reason."""
    waiting = iter(rows)
    with ThreadPoolExecutor(workers) as pool:
        while batch := list(islice(waiting, workers)):
            for row, reason in pool.map(lambda worked: demonstration(worked, rewrite, judge), batch):
                if row is None:
                    left_out[reason] += 1
                else:
                    yield row


class Replies:
    """Replies of models by prompt, in a JSONL file that only grows, so that a second run asks for none of them
    again."""

    def __init__(self, path: Path | None) -> None:
        """Read the file, if there is one.

        Raises:
            DataError: A line is not a reply. Only the last line may be cut, where the command was killed.
        """
        self.path = path
        self.known: dict[str, str] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                self.known[entry["key"]] = entry["reply"]
            except (ValueError, KeyError, TypeError):
                if number < len(lines):
                    raise DataError(
                        f'{path} line {number} is no reply, {{"key", "reply"}}. Correct or remove it.'
                    ) from None

    def of(self, name: str, ask: Ask) -> Ask:
        """Return `ask` with a memory. Replies are kept for each model's `name`."""

        def remembered(prompt: str) -> str:
            key = hashlib.sha256(f"{name}\0{prompt}".encode(errors="surrogatepass")).hexdigest()
            if key not in self.known:
                self.known[key] = ask(prompt)
                if self.path is not None:
                    with self.path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": key, "reply": self.known[key]}) + "\n")
            return self.known[key]

        return remembered
