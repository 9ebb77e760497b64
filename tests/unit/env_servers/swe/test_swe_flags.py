"""Flags of the server that cannot work are refused before anything starts."""

from __future__ import annotations

import pytest

from env_servers.swe.__main__ import parser


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--mirror", "/nowhere", "/nowhere cannot be read"),
        ("--sessions-mib", "0", "0 is not possible"),
        ("--test-timeout", "inf", "inf is no number of seconds"),
        ("--runtime-api", "runtime.example.com", "runtime.example.com is no URL"),
        ("--image", "a/{instance}", "a/{instance} has another field"),
        ("--image", "a/{instance_id.b}", "a/{instance_id.b} has another field"),
        ("--repo-root", "testbed", "testbed is not an absolute path"),
        ("--runtime-command", "python '", "python ' cannot be split"),
        ("--docker-flags", '"--memory=8g', '"--memory=8g cannot be split'),
    ],
)
def test_a_flag_that_cannot_work_is_refused(flag, value, message, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([f"{flag}={value}"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and f"{flag}: {message}" in error


def test_commands_are_split_into_words():
    args = parser().parse_args(["--docker-flags=--memory=8g --label 'a b'", "--runtime-command=serve 1"])
    assert (args.docker_flags, args.runtime_command) == (["--memory=8g", "--label", "a b"], ["serve", "1"])
    assert parser().parse_args([]).runtime_command[-2:] == ["--user-id", "0"]
