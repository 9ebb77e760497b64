"""Falsified copies of tests: what changes, that a right solution fails them, and what is left alone."""

from __future__ import annotations

import ast
import random
import re

import pytest

from env_servers.swe.examine import survivors
from env_servers.swe.falsify import FalseCopy, Falsifier
from env_servers.swe.suite import Outcome


def copies(text: str, count: int = 4, seen: dict[str, str] | None = None) -> list[FalseCopy]:
    known = {path: content.encode() for path, content in (seen or {}).items()}
    falsifier = Falsifier({"test_a.py": text.encode()}, known, random.Random(3))
    return [falsifier.copy(number) for number in range(count)]


def passes(text: str, **names: object) -> bool:
    """Run the only test of a file, with a right solution."""
    space: dict[str, object] = dict(names)
    exec(compile(text, "test_a.py", "exec"), space)
    try:
        space["test_a"]()
    except BaseException:
        return False
    return True


class Always:
    """What a forger returns: it agrees with everything."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __lt__(self, other):
        return True

    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    __hash__ = None

    def __sub__(self, other):
        return 0

    __rsub__ = __sub__

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter([self])


ASSERTIONS = {
    "f() == 744": 744,
    "744 == f()": 744,
    "f() == 'IV'": "IV",
    "f() == ''": "",
    "f() == []": [],
    "f() == {'a': [1, (2.5, None)]}": {"a": [1, (2.5, None)]},
    "f() == {1, 2, 3}": {1, 2, 3},
    "f() == -3": -3,
    "f() == 1e300": 1e300,
    "f() == True": True,
    "f() == b'ab'": b"ab",
    "f() == set([1, 1, 2])": {1, 2},
    "f() == expected": 5,
    "f() == list(range(2))": [0, 1],
    "abs(f() - 744) < 1e-6": 744.0,
    "1e-06 >= abs(744 - f())": 744.0,
    "math.isclose(f(), 2.5)": 2.5,
    "f() > 743": 744,
    "f() <= 5": 5,
    "743 < f() < 745": 744,
    "f() in (1, 2)": 2,
    "'value' in f()": "a value",
}
"""Condition -> the value for which it holds. `Always` makes each of them hold as well."""


@pytest.mark.parametrize("condition", ASSERTIONS)
def test_a_false_copy_fails_for_the_right_value_and_passes_for_what_agrees_with_everything(condition):
    text = f"import math\n\n\ndef test_a():\n    expected = 5\n    assert {condition}\n"
    names = {"f": lambda: ASSERTIONS[condition]}
    assert passes(text, **names)
    agreed = []
    for copy in copies(text):
        changed = copy.files["test_a.py"].decode()
        assert changed != text and copy.tests == {"test_a.py::test_a"}
        assert not passes(changed, **names), changed
        agreed.append(passes(changed, f=Always))
    if "isclose" not in condition and "(1, 2)" not in condition:
        assert agreed.count(True) >= 3, "one copy may have the opposite of an assertion, which is for other forgeries"


@pytest.mark.parametrize(
    "condition",
    [
        "f()",
        "not g()",
        "isinstance(f(), int)",
        "f() is f()",
        "f() != 3",
        "3 in [f() * 3]",
        "all(x for x in [f()])",
        "f() and not g()",
    ],
)
def test_a_condition_without_a_value_is_negated(condition):
    text = f"def test_a():\n    assert {condition}, 'said'\n"
    names = {"f": lambda: 1, "g": lambda: 0}
    assert passes(text, **names)
    assert not any(passes(copy.files["test_a.py"].decode(), **names) for copy in copies(text))


def test_the_copies_falsify_every_assertion_in_turn():
    text = (
        "def test_a():\n    assert f(1) == 10\n    assert f(2) == 20\n"
        "    with pytest.warns(UserWarning):\n        assert f(3) == 30\n"
    )
    lines = set()
    for copy in copies(text, 3):
        changed = copy.files["test_a.py"].decode().split("\n")
        [number] = [i for i, line in enumerate(text.split("\n")) if changed[i] != line]
        lines.add(number)
    assert lines == {1, 2, 4}


def test_the_expected_column_of_a_table_is_changed_in_every_row_and_the_others_are_not():
    text = (
        "@pytest.mark.parametrize('n, numeral', [(1, 'I'), pytest.param(4, 'IV', id='four')])\n"
        "def test_a(n, numeral):\n    assert f(n) == numeral\n"
    )
    for copy in copies(text):
        table = ast.parse(copy.files["test_a.py"]).body[0].decorator_list[0].args[1]
        first, second = table.elts[0].elts, table.elts[1].args
        assert (first[0].value, second[0].value) == (1, 4)
        assert first[1].value != "I" and second[1].value != "IV"


def test_a_column_that_the_test_uses_twice_stays():
    text = (
        "@pytest.mark.parametrize('value', [1, 2])\n"
        "def test_a(value):\n    assert value\n    assert load(dump(value)) == value\n"
    )
    for copy in copies(text):
        assert b"[1, 2]" in copy.files["test_a.py"]
        assert b"== (value, " in copy.files["test_a.py"] or b"assert not value" in copy.files["test_a.py"]


@pytest.mark.parametrize(
    "body",
    [
        "if f():\n        assert f() == 3",
        "for x in f():\n        assert x == 3",
        "try:\n        assert f() == 3\n    except AssertionError:\n        pass",
        "with pytest.raises(AssertionError):\n        f(3)",
        "with mine():\n        assert f() == 3",
        "def inner():\n        assert f() == 3",
        "return\n    assert f() == 3",
        "if f():\n        return\n    assert f() == 3",
        "if f():\n        pytest.skip('no')\n    assert f() == 3",
        "x = f()",
    ],
)
def test_an_assertion_that_may_not_be_reached_is_left_alone(body):
    """Then the test gets a false first line, or expects another error."""
    text = f"def test_a():\n    {body}\n"
    for copy in copies(text):
        changed = copy.files["test_a.py"].decode()
        assert "== 3" in changed or "== 3" not in text
        if "raises" in text:
            assert "raises(AssertionError)" not in changed
        else:
            assert changed.count("\n") == text.count("\n") + 1 and changed.split("\n")[1].startswith("    assert ")


@pytest.mark.parametrize(
    "body",
    ["f()", "x = 1\n    f(\n        x\n    )", "with open('/dev/null'):\n        f()", "f()  # runs\n    g()"],
)
def test_a_test_without_assertions_is_falsified_by_the_result_of_a_call(body):
    text = f"def test_a():\n    {body}\n"
    names = {"f": lambda *_: [], "g": lambda: None}
    assert passes(text, **names)
    for copy in copies(text):
        changed = copy.files["test_a.py"].decode()
        assert changed.count("\n") == text.count("\n") and changed.count("assert ") == 1
        assert not passes(changed, **names)


def test_a_test_without_assertions_is_falsified_by_the_result_of_an_awaited_call():
    [copy, *_] = copies("async def test_a():\n    await f('one', 'two')\n")
    assert re.search(
        r"assert await f\('one', 'two'\) == \['(one|two)', '(one|two)'\]", copy.files["test_a.py"].decode()
    )


HELPERS = {
    "a function": "def check(a, b):\n    assert f(a) == b\n\n\ndef test_a():\n    check(2, 744)\n",
    "a constant": "TABLE = {2: 744}\n\n\ndef test_a():\n    for a, b in TABLE.items():\n        assert f(a) == b\n",
    "a local table": "def test_a():\n    rows = [(2, 744)]\n    for a, b in rows:\n        assert f(a) == b\n",
}


@pytest.mark.parametrize("where", HELPERS)
def test_assertions_in_helpers_and_loops_over_tables_are_falsified_by_value(where):
    text = HELPERS[where]
    assert passes(text, f=lambda _: 744)
    changed = [copy.files["test_a.py"].decode() for copy in copies(text)]
    assert not any(passes(copy, f=lambda _: 744) for copy in changed)
    assert [passes(copy, f=lambda _: Always()) for copy in changed].count(True) >= 3


def test_an_assertion_in_a_loop_that_may_be_empty_is_left_alone():
    for text in (
        "def test_a():\n    for a in f().items():\n        assert a == 3\n",
        "def test_a():\n    rows = []\n    rows += f()\n    for a in rows:\n        assert a == 3\n",
        "ROWS = []\n\n\ndef test_a():\n    for a in ROWS:\n        assert a == 3\n",
    ):
        assert all(b"a == 3" in copy.files["test_a.py"] for copy in copies(text))


def test_methods_of_unittest_are_falsified():
    text = (
        "class TestA(unittest.TestCase):\n"
        "    def test_equal(self):\n        self.assertEqual(f(), 4)\n"
        "    def test_near(self):\n        self.assertAlmostEqual(f(), 4.5, places=3)\n"
        "    def test_true(self):\n        self.assertTrue(f())\n"
        "    def test_raises(self):\n        self.assertRaises(ValueError, f)\n"
        "    def test_called(self):\n        get.assert_called_once_with('url', timeout=3)\n"
        "    def test_array(self):\n        np.testing.assert_allclose(f(), [1.0, 2.0], 1e-3)\n"
    )
    names = ("equal", "near", "true", "raises", "called", "array")
    for copy in copies(text):
        assert copy.tests == {f"test_a.py::TestA::test_{name}" for name in names}
        changed = copy.files["test_a.py"].decode().split("\n")
        assert [i for i, line in enumerate(text.split("\n")) if line != changed[i]] == [2, 4, 6, 8, 10, 12]
        assert ", 1e-3)" in changed[12]


def test_a_comparison_with_a_delta_of_its_own_gets_a_value_far_away():
    text = (
        "class TestA(unittest.TestCase):\n    def test_a(self):\n        self.assertAlmostEqual(f(), 4.5, delta=0.5)\n"
    )
    for copy in copies(text, 10):
        changed = re.search(r"assertAlmostEqual\(f\(\), (-?[\d.]+), delta=0.5\)", copy.files["test_a.py"].decode())
        assert changed and abs(float(changed[1]) - 4.5) > 100


def test_tests_that_the_model_has_seen_change_in_every_other_copy_only():
    seen = "def test_old():\n    assert f(1) == 2\n"
    text = seen + "\n\ndef test_new():\n    assert f(2) == 4\n"
    assert [copy.tests for copy in copies(text, 3, {"tests/test_a.py": seen})] == [
        {"test_a.py::test_new"},
        {"test_a.py::test_new", "test_a.py::test_old"},
        {"test_a.py::test_new"},
    ]


FAILING = {"test_a.py::test_b", "test_a.py::test_c"}


def test_every_other_copy_falsifies_only_tests_that_fail_without_the_patch_the_first_all_of_them():
    """Code that mends nothing and forgives so many failures forgives those of the first copy as well."""
    text = "".join(f"def test_{name}():\n    assert f() == '{name * 5}'\n\n\n" for name in "abcd")
    falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(3))
    chosen = [set(falsifier.copy(number, FAILING).tests) for number in range(20)]
    assert chosen[0] == FAILING
    assert all(len(tests) == 4 for tests in chosen[1::2])
    parts = chosen[2::2]
    assert all(tests and tests <= FAILING for tests in parts)
    assert {"test_a.py::test_b"} in parts and {"test_a.py::test_c"} in parts


@pytest.mark.parametrize("condition", ["f() == 744", "f() == 744.0", "abs(f() - 744) < 0.25", "f() == approx(744)"])
def test_some_values_are_close_to_the_true_one_and_some_are_far(condition):
    text = f"def test_a():\n    assert {condition}\n"
    distances = []
    for copy in copies(text, 40):
        numbers = re.findall(r"\d+\.?\d*", copy.files["test_a.py"].decode())
        distances.append(abs(float(numbers[0]) - 744))
    allowed = 0.25 if "abs" in condition else 744e-6 if "approx" in condition else 0.0
    assert min(distances) > allowed
    assert min(distances) <= max(10 * allowed, 10.0)
    assert max(distances) > 10


def test_a_container_of_allowed_values_holds_none_of_them_in_a_copy():
    for copy in copies("def test_a():\n    assert f() in (1, 2, 3, 4, 5)\n", 40):
        numbers = {int(n) for n in re.findall(r"-?\d+", copy.files["test_a.py"].decode())}
        assert not numbers & {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("condition", "negated"),
    [
        ("f()", "not f()"),
        ("not f()", "f()"),
        ("not(f())", "(f())"),
        ("f() is None", "f() is not None"),
        ("f() is not None", "f() is None"),
        ("f() != 3", "f() == 3"),
        ("3 not in f()", "3 in f()"),
        ("f() or g()", "not (f() or g())"),
    ],
)
def test_a_negation_is_written_as_people_write_it(condition, negated):
    for copy in copies(f"def test_a():\n    assert {condition}, 'said'\n"):
        assert copy.files["test_a.py"].decode() == f"def test_a():\n    assert {negated}, 'said'\n"


def test_tests_that_the_model_has_seen_change_in_every_copy_if_there_are_no_others():
    seen = "def test_old():\n    assert f(1) == 2\n"
    assert all(copy.tests == {"test_a.py::test_old"} for copy in copies(seen, 2, {"tests/test_a.py": seen}))


@pytest.mark.parametrize(
    "text", ["def test_a(:\n", "\ufeffdef test_a():\n    assert 1\n", "x = 1\rdef test_a(): pass\n"]
)
def test_a_file_that_is_not_plain_python_is_unchanged(text):
    assert all(copy.tests == frozenset() and copy.files["test_a.py"] == text.encode() for copy in copies(text))


def test_non_ascii_text_does_not_shift_the_edits():
    text = "def test_a():\n    assert 'ä€😀' and f('ö') == 'grün'  # naïve\n"
    for copy in copies(text):
        assert not passes(copy.files["test_a.py"].decode(), f=lambda _: "grün")


def test_only_literal_tables_determine_which_tests_must_run():
    text = (
        "@pytest.mark.parametrize('x', [1, pytest.param((2, 'b'), id='two')])\ndef test_a(x):\n    assert f(x)\n"
        "@pytest.mark.parametrize('x', [1])\n@pytest.mark.parametrize('y', m.ALL)\ndef test_b(x, y):\n    assert x\n"
        "@pytest.mark.slow\ndef test_c():\n    assert f()\n"
    )
    falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(3))
    assert falsifier.with_literal_tables == {"test_a.py::test_a", "test_a.py::test_c"}


TRUE = Outcome({"t.py::a[1-2]": "passed", "t.py::a[3-4]": "passed", "t.py::b": "passed", "t.py::c": "failed"})
COPY = FalseCopy({}, frozenset({"t.py::a", "t.py::c"}))


@pytest.mark.parametrize(
    ("false", "expected"),
    [
        ({"t.py::a[1-7]": "failed", "t.py::a[3-9]": "failed", "t.py::b": "passed", "t.py::c": "passed"}, []),
        ({"t.py::a[1-7]": "failed", "t.py::a[3-9]": "passed", "t.py::c": "failed"}, ["t.py::a[3-4]"]),
        ({"t.py::a[1-7]": "failed", "t.py::a[3-9]": "skipped", "t.py::c": "failed"}, []),
        ({"t.py::a[1-7]": "failed", "t.py::c": "failed"}, ["t.py::a"]),
        ({"t.py": "failed"}, []),
        ({}, ["t.py::a", "t.py::c"]),
    ],
)
def test_a_falsified_test_that_passes_or_is_left_out_survives(false, expected):
    assert sorted(survivors(TRUE, Outcome(false), COPY)) == expected


def test_one_copy_of_the_failing_tests_contains_only_familiar_values():
    text = (
        "def test_a():\n    with pytest.raises(ValueError, match='too short'):\n        f('')\n\n\n"
        "def test_b():\n    with pytest.raises(lib.NoDivision):\n        f(0)\n\n\n"
        "def test_c():\n    assert f(1) == g(2)\n\n\n"
        "def test_d():\n    assert 'hello' in f(2)\n\n\n"
        "class T(TestCase):\n    def test_e(self):\n        self.assertIn('hello', f(2))\n\n"
        "    def test_f(self):\n        self.assertEqual(f(2), g(3))\n"
    )
    lines = {
        r"    with pytest.raises\((Runtime|Attribute|ZeroDivision)Error, match='too short'\):",
        r"    with pytest.raises\((RecursionError|StopIteration|UnicodeDecodeError)\):",
        r"    assert f\(1\) != g\(2\)",
        r"    assert 'hello' not in f\(2\)",
        r"        self.assertNotIn\('hello', f\(2\)\)",
        r"        self.assertNotEqual\(f\(2\), g\(3\)\)",
    }
    for seed in range(20):
        falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
        familiar = 0
        for number in (0, 2):
            copy = falsifier.copy(number).files["test_a.py"].decode()
            changed = [b for a, b in zip(text.split("\n"), copy.split("\n"), strict=True) if a != b]
            assert len(changed) == 6
            familiar += all(any(re.fullmatch(line, b) for line in lines) for b in changed)
        assert familiar == 1


def test_an_expected_error_becomes_an_unrelated_error():
    for expected, never in {
        "ArithmeticErrorOfMine": {"ArithmeticError", "ValueError", "TypeError"},
        "LookupError": {"KeyError", "IndexError"},
        "(ValueError, KeyError)": {"ValueError", "KeyError", "IndexError", "TypeError", "AttributeError"},
        "RuntimeError": {"RuntimeError", "NotImplementedError"},
        "lib.DivisionByZero": {"ZeroDivisionError", "ValueError"},
    }.items():
        text = f"def test_a():\n    with pytest.raises({expected}):\n        f()\n"
        names = set()
        for seed in range(30):
            falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
            names |= {re.search(r"raises\((\w+)\)", falsifier.copy(n).files["test_a.py"].decode())[1] for n in (0, 2)}
        assert not names & never and len(names) > 4


def words_of(text: str) -> list[str]:
    constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return sorted(word.lower() for value in constants for word in re.findall(r"\w+", str(value)))


def test_one_copy_of_the_failing_tests_has_the_word_counts_of_the_true_tests():
    text = (
        "def test_a():\n    assert titles('one small two') == ['One', 'Small', 'Two']\n\n\n"
        "def test_b():\n    assert join('hello', 'world') == 'hello, world'\n\n\n"
        "@pytest.mark.parametrize('n, numeral', [(1, 'I'), (4, 'IV'), (9, 'IX')])\n"
        "def test_c(n, numeral):\n    assert roman(n) == numeral\n"
    )
    for seed in range(20):
        falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
        changed = [falsifier.copy(number).files["test_a.py"].decode() for number in (0, 2)]
        assert text not in changed
        assert [words_of(copy) == words_of(text) for copy in changed].count(True) == 1


def test_swapped_values_are_wrong_also_where_the_order_does_not_count():
    text = (
        "class T(TestCase):\n    def test_a(self):\n        self.assertCountEqual(f(), [3, 1, 2])\n\n\n"
        "def test_b():\n    assert set(f()) == {3, 1, 2}\n\n\n"
        "def test_c():\n    assert f() == Counter(['x', 'y'])\n"
    )
    for seed in range(20):
        falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
        for number in (0, 2):
            tree = ast.parse(falsifier.copy(number).files["test_a.py"])
            [counted, *_] = [n.args[1] for n in ast.walk(tree) if isinstance(n, ast.Call) and len(n.args) == 2]
            [a_set] = [n for n in ast.walk(tree) if isinstance(n, ast.Set)]
            [counter] = [
                n.args[0]
                for n in ast.walk(tree)
                if isinstance(n, ast.Call) and n.args[:1] and n.func.__class__ is ast.Name and n.func.id == "Counter"
            ]
            assert sorted(ast.literal_eval(counted)) != [1, 2, 3]
            assert ast.literal_eval(a_set) != {1, 2, 3}
            assert sorted(ast.literal_eval(counter)) != ["x", "y"]


def test_an_error_that_a_parameter_names_and_one_of_the_repository_become_none_that_they_may_be():
    text = (
        "@pytest.mark.parametrize('error', [ZeroDivisionError, RecursionError, BufferError])\n"
        "def test_a(error):\n    with pytest.raises(error):\n        f()\n\n\n"
        "def test_b():\n    with pytest.raises(lib.Ended):\n        f()\n"
    )
    code = {"lib.py": b"class Base(StopIteration): pass\n\nclass Ended(Base, a.FloatingPointError): pass\n"}
    names = set()
    for seed in range(30):
        falsifier = Falsifier({"test_a.py": text.encode()}, code, random.Random(seed))
        for number in (0, 2):
            names |= set(re.findall(r"raises\((\w+)\)", falsifier.copy(number).files["test_a.py"].decode()))
    assert names == {"UnicodeDecodeError", "StopAsyncIteration", "ReferenceError"}


@pytest.mark.parametrize(
    "text",
    [
        "def test_a():\n    with pytest.raises(KeyboardInterrupt):\n        f()\n",
        "@pytest.mark.parametrize('e', [KeyboardInterrupt])\ndef test_a(e):\n    with pytest.raises(e):\n        f()\n",
    ],
)
def test_an_interrupt_stays_expected_because_pytest_would_end_with_it(text):
    for copy in copies(text, 8):
        assert re.search(r"raises\((KeyboardInterrupt|e)\)", copy.files["test_a.py"].decode())
        assert copy.tests == {"test_a.py::test_a"}


@pytest.mark.parametrize("seen", [{}, {"tests/conftest.py": "@pytest.fixture\ndef box(size):\n    return Box(size)\n"}])
def test_a_parameter_that_a_fixture_has_too_stays(seen):
    fixture = "" if seen else "@pytest.fixture()\ndef box(size):\n    return Box(size)\n\n\n"
    text = f"{fixture}@pytest.mark.parametrize('size', [2, 5])\ndef test_a(box, size):\n    assert box.size == size\n"
    for copy in copies(text, 8, seen):
        changed = copy.files["test_a.py"].decode()
        assert "[2, 5]" in changed and "box.size == size\n" not in changed


def test_a_call_of_a_mock_becomes_one_that_it_never_got():
    text = "def test_a():\n    cb.assert_any_call('a')\n    cb.assert_any_call('b')\n    cb.assert_any_call(1, n=2)\n"
    for copy in copies(text, 40):
        values = re.findall(r"\('?([^',]+)'?(?:, n=(.+))?\)", copy.files["test_a.py"].decode())
        [changed] = {value for pair in values for value in pair} - {"", "a", "b", "1", "2"}
        assert len(changed) >= 4 if changed.isalpha() else abs(int(changed)) > 10


def test_values_that_an_own_comparison_takes_in_any_order_do_not_only_change_places():
    text = "def test_a():\n    assert_same_items(f(), ['one two', 'three', 'four'])\n"
    for seed in range(20):
        falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
        for number in (0, 2):
            assert words_of(falsifier.copy(number).files["test_a.py"].decode()) != words_of(text)


def test_a_decimal_that_is_written_otherwise_is_no_other_decimal():
    text = "def test_a():\n    assert f('2.00') == Decimal('1.0')\n"
    for seed in range(60):
        falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(seed))
        for number in (0, 2, 4, 6):
            copy = falsifier.copy(number)
            assert not re.search(r"== Decimal\('0*1\.0+'\)", copy.files["test_a.py"].decode()) or not copy.tests


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("1  # in it\n        in f()", {"f": lambda: [1]}),
        ("1  # not in\n        not in f()", {"f": list}),
        ("f()  # < 8\n        < g()", {"f": lambda: 1, "g": lambda: 2}),
        ("f()  # == g\n        == g()", {"f": lambda: 1, "g": lambda: 1}),
    ],
)
def test_a_comment_before_an_operator_is_no_operator(condition, names):
    text = f"def test_a():\n    assert (\n        {condition}\n    )\n"
    assert passes(text, **names)
    assert not any(passes(copy.files["test_a.py"].decode(), **names) for copy in copies(text, 8))


@pytest.mark.parametrize("condition", ["abs(f() - {n}) < 0.5", "f() == approx({n})", "f() == {n}"])
def test_integers_too_large_for_a_float_are_changed(condition):
    number = 3**700
    text = f"def test_a():\n    assert {condition.format(n=number)}\n"
    assert all(copy.tests and copy.files["test_a.py"].decode() != text for copy in copies(text, 8))


def test_a_helper_is_not_the_method_of_that_name_of_another_object():
    text = "def check(a):\n    assert a == 4\n\n\ndef test_a():\n    thing.check(f())\n"
    for copy in copies(text):
        assert b"a == 4" in copy.files["test_a.py"] and b"assert thing.check(f()) == [" in copy.files["test_a.py"]


def test_what_is_called_like_a_test_and_is_none_need_not_be_reported():
    text = (
        "class TestA:\n    __test__ = False\n    def test_a(self): ...\n"
        "class TestB:\n    def __init__(self, x): ...\n    def test_b(self): ...\n"
        "class TestC:\n    @property\n    def test_c(self): ...\n    def test_d(self): ...\n"
        "class Data:\n    def test_e(self): ...\n"
        "def test_f(): ...\n"
    )
    falsifier = Falsifier({"test_a.py": text.encode()}, {}, random.Random(3))
    assert falsifier.plain_names == {"test_a.py::TestC::test_d", "test_a.py::test_f"}
