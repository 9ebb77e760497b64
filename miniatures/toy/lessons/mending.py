r"""SkyRL's: a repository of one file with one function in it, one token of which is wrong. Rows as env_servers/swe
takes them, the repository in each.

    weight  by             text
    0       prompt         User: f(x) in /tmp/f/f.py should be x*372.\nAssistant:
    1       the model      <function=execute_bash>\n<parameter=command>cat f.py</parameter>\n</function>
    0       environment    \nUser: EXECUTION RESULT of [execute_bash]:\ndef f(x):\n    return x*519\n[...\nAssistant:
    1       the model      <function=str_replace_editor>... str_replace ... x*519 ... x*372 ...</function>
    0       environment    \nUser: EXECUTION RESULT of [str_replace_editor]:\nThe file /tmp/f/f.py has been edited.
                           ...\nAssistant:
    1       the model      <function=finish>\n</function>

The tool ratio is how often the file is read first. Else what is to be replaced is a guess, which the editor refuses,
and the model finishes: what stands in the file cannot be known otherwise, since its wrong number is one of nine
hundred. The chat is the toy tokenizer's template; calls and results are SkyRL's."""

from __future__ import annotations

import difflib
import operator
from random import Random
from typing import Any, NamedTuple

from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.rollout.protocols.skyrl import SkyRL

from ...rows import Split, split_of
from ..cold_start import Schedule, Stage
from ..traces import GUESS, prompt_of, trace_of
from . import Lesson

REPO, FILE = "f", "f.py"
PATH = f"/tmp/{REPO}/{FILE}"
TURNS = 3
SHOWN = 40
"""Characters of a result that are shown (env.output_max_tokens): the file, and two words of what is said about the
command that read it."""
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
NUMBERS = range(100, 1000)
OF_OPERATOR = 0.2
"""How often the operator is what is wrong, and not the number."""
READS = 0.25
AT = (0, 1, 7)
"""Arguments that tell every two of these functions apart."""


class Formula(NamedTuple):
    sign: str
    number: int

    @property
    def text(self) -> str:
        return f"x{self.sign}{self.number}"

    @property
    def file(self) -> str:
        return f"def f(x):\n    return {self.text}\n"

    @property
    def question(self) -> str:
        return f"f(x) in {PATH} should be {self.text}."

    @property
    def tests(self) -> str:
        wanted = [OPERATORS[self.sign](x, self.number) for x in AT]
        return f"from f import f\n\n\ndef test_f():\n    assert [f(x) for x in {list(AT)}] == {wanted}\n"

    @property
    def split(self) -> Split:
        return split_of(self.text)


def draw_formula(rng: Random, split: Split) -> Formula:
    while True:
        formula = Formula(rng.choice([*OPERATORS]), rng.choice(NUMBERS))
        if formula.split == split:
            return formula


def broken(right: Formula, rng: Random) -> Formula:
    """With one token another."""
    if rng.random() < OF_OPERATOR:
        return right._replace(sign=rng.choice([sign for sign in OPERATORS if sign != right.sign]))
    return right._replace(number=rng.choice([number for number in NUMBERS if number != right.number]))


def call(name: str, **arguments: str) -> str:
    parameters = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{parameters}</function>"


READ, FINISH = call("execute_bash", command=f"cat {FILE}"), call("finish")
EDITED = f"The file {PATH} has been edited. Here's the result of running `cat -n` on a snippet of {PATH}:"


def edit(old: str, new: str) -> str:
    return call("str_replace_editor", command="str_replace", path=PATH, old_str=old, new_str=new)


def seen(file: str) -> str:
    """What bash says of `cat`."""
    return f"{file}[Current working directory: /tmp/{REPO}]\n[Command finished with exit code 0]"


def refused(old: str) -> str:
    return f"ERROR:\nNo replacement was performed, old_str `{old}` did not appear verbatim in {PATH}."


def answered(name: str, observation: str) -> str:
    """The result of a call as the chat template shows it."""
    turns = SkyRL(max_calls=TURNS)
    turns.name = name
    (message,) = turns.replies(observation[:SHOWN])
    return f"\nUser: {message['content']}\nAssistant:"


def mending(wrong: Formula, right: Formula) -> SftRow:
    """Read, replace, finish."""
    return trace_of(
        [
            (prompt_of(right.question), 0.0),
            (READ, 1.0),
            (answered("execute_bash", seen(wrong.file)), 0.0),
            (edit(wrong.text, right.text), 1.0),
            (answered("str_replace_editor", EDITED), 0.0),
            (FINISH, 1.0),
        ]
    )


def guessing(guess: Formula, right: Formula) -> SftRow:
    """Replace what may stand there, be refused, finish."""
    before, after = edit("\0", right.text).split("\0")
    return trace_of(
        [
            (prompt_of(right.question), 0.0),
            (before, 1.0),
            (guess.text, GUESS),
            (after, 1.0),
            (answered("str_replace_editor", refused(guess.text)), 0.0),
            (FINISH, 1.0),
        ]
    )


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training formula; the file is read first with probability `tool_ratio`."""
    right = draw_formula(rng, "train")
    return (mending if rng.random() < tool_ratio else guessing)(broken(right, rng), right)


def patch(wrong: Formula, right: Formula) -> str:
    """As git reads it."""
    before, after = (formula.file.splitlines(keepends=True) for formula in (wrong, right))
    return "".join(difflib.unified_diff(before, after, f"a/{FILE}", f"b/{FILE}"))


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """Rows of env_servers/swe: prompt, label (the gold patch) and, in `meta`, repository, bug and hidden tests."""
    rng = Random(f"{split}/{seed}")
    drawn = [(right := draw_formula(rng, split), broken(right, rng)) for _ in range(n)]
    return [
        {
            "prompt": right.question,
            "label": patch(wrong, right),
            "env": "swe",
            "meta": {
                "kind": "number" if wrong.sign == right.sign else "operator",
                "repo": REPO,
                "files": {FILE: wrong.file},
                "tests": {f"test_{FILE}": right.tests},
            },
        }
        for right, wrong in drawn
    ]


GATES = {"accuracy": (0.15, 0.30), "reward/viewed_first": (0.18, 0.32)}
STAGES = (Stage(480, 0.85), Stage(120, READS))
"""Copying what stood in the file and what should stand there is learned between steps 200 and 300, at once; the form of
the calls before step 100."""
LESSON = Lesson(draw_trace, rows, GATES, Schedule(stages=STAGES), steered="reward/viewed_first")
