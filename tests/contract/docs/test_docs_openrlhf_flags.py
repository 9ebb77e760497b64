"""The page on porting OpenRLHF's scripts: its counts and its table of what is not honoured are those of the code, its
scripts are those that there are."""

from __future__ import annotations

import re

from openrlhf_tir.config.openrlhf_flags import RULES, Only, Refused, flags_honoured, honoured

from .docs_blocks import DOCS, REPO

PAGE = (DOCS / "openrlhf_flags.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")
    ][2:]


def flags(cell: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", cell) if name.partition(" ")[0] in RULES]


def test_the_counts_are_the_codes():
    (total, count) = re.search(
        r"Of the (\d+) flags of OpenRLHF 0\.11\.2's `train_ppo_ray` (\d+) are honoured", PAGE
    ).groups()
    assert (int(total), int(count)) == (len(RULES), flags_honoured())
    assert re.search(r"`train_ppo_ray` (\d+) are honoured", (REPO / "README.md").read_text())[1] == count


def test_every_flag_that_is_not_honoured_is_in_the_table_with_what_the_program_says():
    told = {name: why for cell, why in rows("What is not honoured") for name in flags(cell)}
    assert told == {name: rule.reason for name, rule in RULES.items() if isinstance(rule, Only | Refused)}


def test_what_is_something_else_here_is_honoured():
    told = {name.partition(" ")[0] for cell, _ in rows("What is something else here") for name in flags(cell)}
    assert len(told) > 15 and told <= honoured()


def test_the_page_names_every_script():
    told = {cell.partition("]")[0].strip("[") for cell, _ in rows("Its example scripts")}
    assert told == {path.name for path in (REPO / "examples/openrlhf").glob("*.sh")}
