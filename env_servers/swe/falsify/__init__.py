"""Make copies of hidden tests in which one assertion of each test is wrong, so that no right solution passes them.

    assert to_roman(4) == "IV"                    ->  assert to_roman(4) == "QV"
    @parametrize("n, numeral", [(4, "IV")])       ->  @parametrize("n, numeral", [(4, "IQ")])
    assert abs(area(2) - 12.5) < 1e-6             ->  assert abs(area(2) - 391.5) < 1e-6
    with pytest.raises(ValueError, match="none")  ->  with pytest.raises(ValueError, match="kvor")
    assert is_valid("IV")                         ->  assert not is_valid("IV")

A process that runs patched code can make its tests report anything. It cannot know which of two copies is the true one
without knowing what is right, since both are ordinary tests with the same names, in the same files, at the same lines.
`examine` believes a run of the true tests only if the falsified ones fail in other processes with the same code.

A falsified test must always fail for a right solution. So an assertion is falsified only where it is surely reached,
and in a way that contradicts the true one. The remaining text of a file does not change.

A copy must not be recognizable either: not by its text, not by how many of its tests fail, and not by how far its
values are from the true ones. So some copies falsify only tests that fail without the patch: honest code that fixes
nothing fails the same tests there as among the true ones. Half of the changed values lie close to the true ones. A
negation is written as people write it. And since a misspelt word, or a number that occurs nowhere else, reveals a
change, some copies are made of what the tests contain anyway: their changed values are words and numbers of the same
test, or of its file, and the opposite of an assertion is used instead of a word or an error that no test expects.

    copies.py        Falsifier: reads all files once; `copy(n)` falsifies the n-th assertion of each test
    assertions.py    finds the assertions of a test, and for each the change that falsifies it
    reached.py       which statements of a test every passing run reaches
    changes.py       Changes: makes the edits of one copy, with random values
    words.py         other words for a text
    parsed_file.py   a test file: its syntax tree, its constants and tables, and where a node is in its bytes
    syntax.py        questions about one syntax node
"""

from .copies import FalseCopy, Falsifier

__all__ = ["FalseCopy", "Falsifier"]
