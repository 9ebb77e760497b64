"""`python -m tests.golden [--compat] FILE...`: replay conformance rows. A file's name says which module checks it.

tests/golden/<stem>.py exposes `check(row, compat) -> list[str] | None`: what does not match; None where the row cannot
be checked. Rows marked `compat_only` expect a defect of the reference and are skipped without --compat. The last line
sums up; the exit code is 1 iff a row failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

Check = Callable[[dict, bool], list[str] | None]


def find_check(stem: str) -> Check | None:
    name = f"{__package__}.{stem}"
    if not stem.isidentifier() or stem.startswith("_") or importlib.util.find_spec(name) is None:
        return None
    return getattr(import_module(name), "check", None)


def verdict(check: Check | None, row: dict, compat: bool) -> list[str] | None:
    """A row whose check raises has failed; the exception is the mismatch."""
    if check is None or (row.get("compat_only") and not compat):
        return None
    try:
        return check(row, compat)
    except Exception as e:
        at = traceback.extract_tb(e.__traceback__)[-1]
        return [f"raised {type(e).__name__}: {e} ({Path(at.filename).name}:{at.lineno})"]


def replay(path: Path, compat: bool) -> Counter[str]:
    check, tally = find_check(path.stem), Counter()
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    for row in rows:
        bad = verdict(check, row, compat)
        tally["skipped" if bad is None else "failed" if bad else "passed"] += 1
        if bad:
            print(f"{path.stem} {row['id']} ({row.get('note', '')}):")
            print("".join(f"    {sentence}\n" for sentence in bad), end="")
    return tally


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compat", action="store_true", help="expect the reference's defects as well")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    tally = sum((replay(path, args.compat) for path in args.files), Counter())
    print(f"{tally['passed']} passed, {tally['failed']} failed, {tally['skipped']} skipped")
    return 1 if tally["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
