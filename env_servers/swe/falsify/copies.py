"""Make true and falsified copies of all test files of a suite."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .assertions import AssertionFinder, ChangeMaker
from .changes import Changes
from .parsed_file import Edit, ParsedFile, edited, overlap
from .syntax import arguments_of, base_classes, functions_in, is_fixture, is_literal_table


@dataclass(frozen=True, slots=True)
class FalseCopy:
    """Test files of which some tests are falsified.

    Attributes:
        files: Contents of all test files by path.
        tests: The falsified tests as pytest names them, without parameters; empty: the files are the true ones.
    """

    files: Mapping[str, bytes]
    tests: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Test:
    """One test function.

    Attributes:
        path: Its file.
        name: Its name below the file, as pytest writes it.
        change_makers: The ways to falsify it, in random order.
        is_visible: True if the model could have seen it.
        is_plain: True if pytest finds it by its usual rules.
        has_literal_tables: True if its parameters, if any, are written in the test file itself.
    """

    path: str
    name: str
    change_makers: list[ChangeMaker]
    is_visible: bool
    is_plain: bool
    has_literal_tables: bool

    @property
    def id(self) -> str:
        """The test as pytest names it, without parameters."""
        return f"{self.path}::{self.name}"


class Falsifier:
    """The tests of a suite, and the changes that falsify each of them."""

    def __init__(self, files: Mapping[str, bytes], visible: Mapping[str, bytes], choice: random.Random) -> None:
        """Read the tests.

        Args:
            files: Contents of the test files by path.
            visible: Contents of the repository that a session had, by path. The model knows tests that are also in
                there, and could recognize a changed copy by comparing.
            choice: Decides about every change. It is unpredictable, unless a test wants to repeat it.
        """
        self._files = files
        self._choice = choice
        self._familiar_number = choice.choice([0, 2])
        """Which of copies 0 and 2, the first ones that may falsify only failing tests, uses familiar values."""
        self._parsed: dict[str, ParsedFile] = {}
        self._tests: dict[tuple[str, str], _Test] = {}
        """The tests by (path, name)."""
        seen = functions_in(content for path, content in visible.items() if "test" in path)
        known_functions = {ast.dump(function) for function in seen}
        fixtures = [function for function in (*seen, *functions_in(files.values())) if is_fixture(function)]
        of_fixtures = {name for fixture in fixtures for name in arguments_of(fixture)}
        self._bases = base_classes(
            content for path, content in (*visible.items(), *files.items()) if path.endswith(".py")
        )
        """Names of the classes from which others of the repository derive."""
        for path, content in files.items():
            file = ParsedFile.of(content)
            if file is None or not path.endswith(".py"):
                continue
            self._parsed[path] = file
            finder = AssertionFinder(file, choice, of_fixtures)
            for name, function, is_plain in file.tests():
                change_makers = finder.change_makers(function)
                choice.shuffle(change_makers)
                self._tests[path, name] = _Test(
                    path,
                    name,
                    change_makers,
                    is_visible=ast.dump(function) in known_functions,
                    is_plain=is_plain,
                    has_literal_tables=all(map(is_literal_table, function.decorator_list)),
                )

    @property
    def max_changes(self) -> int:
        """The largest number of assertions that a single test has."""
        return max((len(test.change_makers) for test in self._tests.values()), default=0)

    @property
    def plain_names(self) -> frozenset[str]:
        """The tests that pytest finds by its usual rules, as it names them, without parameters."""
        return frozenset(test.id for test in self._tests.values() if test.is_plain)

    @property
    def with_literal_tables(self) -> frozenset[str]:
        """The tests whose parameters, if any, are written in the test file itself, so that no repository code can
        change them."""
        return frozenset(test.id for test in self._tests.values() if test.has_literal_tables)

    @property
    def true_copy(self) -> FalseCopy:
        """The tests as they are."""
        return FalseCopy(self._files, frozenset())

    def copy(self, number: int, failing: Collection[str] = ()) -> FalseCopy:
        """Return the copy with the `number`-th assertion of every test falsified, starting over after the last one.

        Tests that the model could have seen are unchanged in every other copy, so that they reveal nothing there.

        Args:
            number: Number of the copy.
            failing: The tests that fail without the patch, as pytest names them, without parameters. If given, copies
                with an even number falsify only some of these: all of them in copy 0, a random part in the others.
        """
        tests = self._chosen(number, failing)
        familiarity = float(number == self._familiar_number)
        if number > 2 and number % 2 == 0:
            familiarity = self._choice.choice([0.0, 0.5, 1.0])
        changes = {path: Changes(file, self._choice, familiarity, self._bases) for path, file in self._parsed.items()}
        edits: dict[str, list[Edit]] = {path: [] for path in self._files}
        falsified = set()
        for test in tests:
            for attempt in range(len(test.change_makers)):
                change_maker = test.change_makers[(number + attempt) % len(test.change_makers)]
                change = change_maker(changes[test.path])
                # Two tests may use one table, or one helper.
                if change is not None and not overlap(change, edits[test.path]):
                    edits[test.path] += change
                    falsified.add(test.id)
                    break
        files = {path: edited(content, edits[path]) for path, content in self._files.items()}
        return FalseCopy(files, frozenset(falsified))

    def _chosen(self, number: int, failing: Collection[str]) -> list[_Test]:
        """Return the tests that a copy falsifies."""
        every_test = list(self._tests.values())
        if number % 2 != 0:
            return every_test
        unseen = [test for test in every_test if not test.is_visible]
        tests = unseen or every_test
        failing_tests = [test for test in tests if test.id in failing]
        if not failing_tests or number == 0:
            return failing_tests or tests
        part = self._choice.sample(failing_tests, self._choice.randint(1, len(failing_tests)))
        return [test for test in failing_tests if test in part]
