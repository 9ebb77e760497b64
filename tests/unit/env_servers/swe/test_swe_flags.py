"""Flags of the server that cannot work are refused before anything starts."""

from __future__ import annotations

import pytest

from env_servers.swe.__main__ import parser


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--mirror", "/nowhere"),
        ("--sessions-mib", "0"),
        ("--test-timeout", "inf"),
        ("--runtime-api", "runtime.example.com"),
        ("--image", "a/{instance}"),
        ("--image", "a/{instance_id.b}"),
        ("--repo-root", "testbed"),
        ("--runtime-command", "python '"),
        ("--docker-flags", '"--memory=8g'),
    ],
)
def test_a_flag_that_cannot_work_is_refused_with_its_value(flag, value, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([f"{flag}={value}"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and f"{flag}: {value} " in error


def test_commands_are_split_into_words():
    args = parser().parse_args(["--docker-flags=--memory=8g --label 'a b'", "--runtime-command=serve 1"])
    assert (args.docker_flags, args.runtime_command) == (["--memory=8g", "--label", "a b"], ["serve", "1"])
    assert parser().parse_args([]).runtime_command[-2:] == ["--user-id", "0"]
