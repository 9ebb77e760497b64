"""What a model writes is never an infrastructure failure: no environment raises for an action, whatever it says."""

from __future__ import annotations

import json
import random

import pytest

from env_servers.actions import MAX_DEPTH
from env_servers.calculator import CalculatorEnv
from env_servers.functions.domains import DOMAINS
from env_servers.functions.domains.files import Files
from env_servers.functions.env import FunctionsEnv
from env_servers.functions.tools import ToolError, World
from env_servers.guess import GuessEnv
from env_servers.math.env import MathEnv
from env_servers.math.verifier import Verifier
from env_servers.puzzles.env import PuzzlesEnv
from env_servers.search.bm25 import Bm25, ensure_index
from env_servers.search.env import SearchEnv, View
from env_servers.search.searches import Searches
from openrlhf_tir.rewards.workers import Limits, Workers
from openrlhf_tir.waiting.deadlines import Deadline

DEEP = '{"name": "f", "arguments": {"x": ' * 500 + "1" + "}}" * 500
TEXTS = (
    "", " ", "²", "①", "٣", "१२", "１", "½", "Ⅷ", "-0", "1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "\x00",
    "\ufffe", DEEP,
    "[" * 100_000, "{" * 100_000, "[]", "{}", "null", "true", "3", '"x"', "[[]]", '{"message": 3}',
    '{"message": "\\ud800"}',
    '{"message": null}', '{"open": 1}', '{"open": "²"}', '{"open": {}}', "²+²", "9" * 16 + "+1", "😀" * 1000,
)  # fmt: skip
VALUES = (
    None, True, 0, -1, 2**62, 2**70, 10**4000, 1e308, -0.0, 0.5, "", "²", "٣:٣", "2²:00", "a" * 10_000, "../" * 500,
    "/", "\x00",
    [], [[]], {}, {"a": []}, ["²"], [None],
)  # fmt: skip


async def steps(env, task, actions):
    outcomes = []
    for action in actions:
        await env.reset(task, seed=1)
        step = await env.step(action, 5.0)
        json.dumps([step.observation, step.signals], allow_nan=False).encode()
        step.observation.encode()
        outcomes.append(step.outcome)
    return outcomes


@pytest.mark.parametrize(
    ("env", "task"),
    [
        (GuessEnv, {"high": 3}),
        (CalculatorEnv, {}),
        (FunctionsEnv, {"domains": ["files"], "gold": [[]]}),
        (lambda: PuzzlesEnv(None), {"puzzle": "mastermind"}),
        (lambda: PuzzlesEnv(None), {"puzzle": "labyrinth"}),
    ],
    ids=["guess", "calculator", "functions", "mastermind", "labyrinth"],
)
async def test_no_action_text_is_an_environment_error(env, task):
    assert set(await steps(env(), task, TEXTS)) <= {"ok", "model_error"}


PIECES = (
    "cat", "7", "{", "}", '"open"', ":", "[", "]", '"', "page", "²", "٣", "-1", "9" * 25, "\\u0000", "\\ud800", "1e999",
    "NaN", "null", " ", "\n", "\x00", "é", "word " * 100, "x" * 9000,
)  # fmt: skip
LATEX = (
    r"\frac", r"\sqrt", r"\sum", r"\int", r"\lim", r"\prod", r"\begin{pmatrix}", r"\end{pmatrix}",
    r"\left", r"\right", r"\cup", r"\infty", r"\pi", r"\sin", r"\log", r"\in", r"\mathbb{R}", r"\le",
    r"\pm", r"\%", r"\text{", r"\binom", r"\overline{", r"\boxed{", r"\to", r"\lfloor", r"\mid",
    r"\operatorname{", "{", "}", "(", ")", "[", "]", "^", "_", "&", r"\\", "x", "n", "i", "e", "1", "2",
    "999999", "!", ",", ";", "|", "<", "=", "$", "°", "²", "√", "½", "٣", "😀", "...", "-", "**", "/",
    "e9", "1e400", "0x", "_{36}", "dollars", "or", ".", "\u0305", "\x00", " ",
)  # fmt: skip


def composed(pieces, count):
    """Texts of random pieces, the same every time."""
    draw = random.Random(7)
    return ["".join(draw.choices(pieces, k=draw.choice((1, 2, 4, 9, 30)))) for _ in range(count)]


@pytest.fixture(scope="module")
def search_env(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    passages = ["The Cat\nA cat is a small animal.", "Dogs\nThe dog " + "ran " * 5000, "Ünïcode\nStraße 7"]
    lines = [json.dumps({"id": str(i), "contents": text}) for i, text in enumerate(passages)]
    (place / "corpus.jsonl").write_text("\n".join(lines))
    ensure_index(place / "corpus.jsonl", place / "index")
    return SearchEnv(Bm25(place / "corpus.jsonl", place / "index"), Searches(1), 3, View(5, 100))


async def test_no_query_and_no_page_number_is_an_environment_error(search_env):
    queries = composed(PIECES, 150)
    targets = [*map(json.dumps, queries), "1", "2.5", "[1]", '"2 page 9"', "1e999"]
    pages = [f'{{"open": {text}}}' for text in targets]
    assert set(await steps(search_env, {}, [*TEXTS, *queries, *pages])) == {"ok", "model_error"}


class HereAndNow:
    """Workers that compute in this process."""

    count = 1

    async def run(self, function, *args):
        return function(*args)


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.long)])
async def test_no_answer_makes_the_checker_fail(count):
    """Sums and the like are worked out: what could run on and on is not among the pieces of the short test."""
    answers = composed([piece for piece in LATEX if count > 150 or piece not in ("999999", "!")], count)
    limits = Limits(Deadline(60.0, "the deadline"), Deadline(2.0, "the budget"))
    verifier = Verifier(Workers(2, limits) if count > 150 else HereAndNow())
    assert set(await steps(MathEnv(verifier), {"label": r"\frac{1}{2}"}, answers)) == {"ok"}


async def test_a_unicode_digit_that_int_rejects_is_a_wrong_guess():
    assert await steps(GuessEnv(), {"high": 3}, ["²", "①", "9" * 5000]) == ["model_error"] * 3


async def test_deeply_nested_calls_are_a_model_error():
    assert await steps(FunctionsEnv(), {"domains": ["files"], "gold": [[]]}, [DEEP]) == ["model_error"]


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_no_argument_breaks_a_function(domain):
    """Every function with every value in each of its parameters, and the others as its schema says."""
    initial = domain.initial(random.Random(1))
    for name, tool in domain.tools().items():
        properties = tool.schema["parameters"]["properties"]
        for odd in properties:
            for value in VALUES:
                arguments = {p: value if p == odd else _plain(s) for p, s in properties.items()}
                try:
                    result = World([domain(initial)]).call(name, arguments)
                except ToolError as e:
                    str(e).encode()
                else:
                    json.dumps(result, allow_nan=False)


def _plain(schema):
    kind = schema.get("type") or schema["anyOf"][0].get("type", "string")
    default = {"string": "E1", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}[kind]
    return schema["enum"][0] if "enum" in schema else default


def test_nested_directories_are_limited_to_a_depth_that_can_be_copied():
    """Five hundred calls that each go one directory deeper."""
    world = World([Files({"tree": {}, "here": []})])
    refused = 0
    for _ in range(500):
        for name in ("make_directory", "change_directory"):
            try:
                world.call(name, {"path": "d"})
            except ToolError:
                refused += 1
    deepest = world.state()["files.here"]
    assert 0 < len(deepest) <= MAX_DEPTH and refused > 800
    assert world.call("find_files", {"name": "d"})


def test_a_state_that_grows_too_large_is_refused_and_unchanged():
    world = World([Files({"tree": {"a": "x" * (3 << 20)}, "here": []})])
    with pytest.raises(ToolError):
        world.call("copy", {"source": "a", "destination": "b"})
    assert list(world.state()["files.tree"]) == ["a"]


def test_money_that_overflows_is_refused():
    trading = DOMAINS["trading"]
    world = World([trading(trading.initial(random.Random(1)))])
    world.call("deposit", {"amount": 1e308})
    with pytest.raises(ToolError):
        world.call("deposit", {"amount": 1e308})
