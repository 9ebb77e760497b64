"""Whether a file was looked at before it was edited, by hand."""

from __future__ import annotations

import pytest

from env_servers.swe.views import ViewTracker


def bash(command: str) -> tuple[str, dict]:
    return "execute_bash", {"command": command}


def editor(command: str, path: str = "/tmp/f/f.py") -> tuple[str, dict]:
    return "str_replace_editor", {"command": command, "path": path}


FINISH: tuple[str, dict] = ("finish", {"cut": False})


@pytest.mark.parametrize(
    ("calls", "viewed_first"),
    [
        ([bash("cat f.py"), editor("str_replace")], True),
        ([editor("view"), editor("insert"), FINISH], True),
        ([editor("str_replace"), bash("cat f.py"), editor("str_replace")], False),
        ([bash("ls"), editor("str_replace")], False),
        ([bash("cat g.py"), editor("view", "/tmp/f"), editor("str_replace")], False),
        ([bash("sed -i s/a/b/ f.py"), FINISH], None),
        ([editor("create", "/tmp/f/new.py"), FINISH], None),
        ([], None),
    ],
)
def test_the_first_edit_of_a_session_is_recorded_as_viewed_before_or_not(calls, viewed_first):
    looks = ViewTracker()
    for name, arguments in calls:
        looks.note(name, arguments)
    assert looks.viewed_first is viewed_first
