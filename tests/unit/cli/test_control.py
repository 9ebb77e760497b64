"""Control file: a run is changed as a whole or not at all, and says what became of the request."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cluster.jobs import control
from openrlhf_tir.cluster.jobs.control import Control, applied, apply, followed, read, write
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, Unavailable
from openrlhf_tir.simulation import virtual_loop

A, B = "http://a:1", "http://b:2"
SERVES = {"python_tir": "python_tir", "search": "search"}


class Run:
    def __init__(self) -> None:
        self.env_urls, self.actors = {"python_tir": [A], "search": [B]}, 1

    def resize(self, actors: int) -> None:
        self.actors = actors

    async def set_env_urls(self, urls) -> None:
        self.env_urls = dict(urls)


def probe(url: str, *, token: str | None):
    if url == "http://down:9":
        raise Unavailable(f"{url}/health does not answer")
    return None, SimpleNamespace(env="python_tir")


def test_what_is_written_is_what_is_read(tmp_path):
    wanted = Control(rollout_actors=3, env_urls={"python_tir": [A, B]})
    write(tmp_path / "c", wanted)
    assert read(tmp_path / "c") == wanted


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("rollout_actors = 0", "rollout_actors: Input should be greater"),
        ("actors = 2", "actors: Extra inputs"),
        ("x = [", "/c .*TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(tmp_path, text, fact):
    (tmp_path / "c").write_text(text)
    with pytest.raises(ConfigError, match=fact):
        read(tmp_path / "c")


async def test_environments_that_are_not_named_keep_their_servers():
    run = Run()
    await apply(Control(env_urls={"python_tir": [B]}), run, token=None, serves=SERVES, probe=probe)
    assert (run.env_urls, run.actors) == ({"python_tir": [B], "search": [B]}, 1)


@pytest.mark.parametrize(
    ("urls", "fact"),
    [
        ({"python_tir": [B, "http://down:9"]}, "http://down:9/health"),
        ({"search": [A]}, f"{A} .*'python_tir', .*'search'"),
    ],
)
async def test_one_bad_url_refuses_the_whole_change(urls, fact):
    run, before = Run(), Run().env_urls
    with pytest.raises((ConfigError, Unavailable), match=fact):
        await apply(Control(rollout_actors=5, env_urls=urls), run, token=None, serves=SERVES, probe=probe)
    assert (run.env_urls, run.actors) == (before, 1)


async def follow_until(run_dir, done, monkeypatch, resume: bool = True) -> Run:
    monkeypatch.setattr(control, "POLL_S", 0.01)
    run = Run()
    cfg = Config.model_validate({"run_dir": run_dir, "train": {"resume": resume}})
    async with followed(cfg, run):
        with suppress(TimeoutError):
            async with asyncio.timeout(300.0 if resume else 0.05):
                while not done(run):
                    await asyncio.sleep(0.01)
    return run


async def test_a_change_of_the_file_is_applied_and_acknowledged(tmp_path, monkeypatch):
    write(tmp_path / "control.toml", Control(rollout_actors=2))
    run = await follow_until(tmp_path, lambda run: applied(tmp_path), monkeypatch)
    assert run.actors == 2 and applied(tmp_path)["error"] is None
    write(tmp_path / "control.toml", Control(rollout_actors=4))
    assert applied(tmp_path) is None


async def test_a_refusal_is_told_and_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "control.toml").write_text("rollout_actors = 0")
    run = await follow_until(tmp_path, lambda run: applied(tmp_path), monkeypatch)
    assert run.actors == 1 and "greater than or equal to 1" in applied(tmp_path)["error"]


async def test_a_new_run_does_not_take_over_what_was_asked_of_the_one_before(tmp_path, monkeypatch):
    write(tmp_path / "control.toml", Control(rollout_actors=2))
    run = await follow_until(tmp_path, lambda run: False, monkeypatch, resume=False)
    assert run.actors == 1 and not (tmp_path / "control.toml").exists()


def test_the_command_adds_to_what_was_asked_before_and_says_when_nobody_listens(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("openrlhf_tir.cli.control.WAIT_S", 0.0)
    (tmp_path / "run.lock").touch()
    assert main(["control", str(tmp_path), "--actors", "3"]) == 1
    assert main(["control", str(tmp_path), "--env", f"python_tir={A},{B}"]) == 1
    assert read(tmp_path / "control.toml") == Control(rollout_actors=3, env_urls={"python_tir": [A, B]})
    assert f" {tmp_path}/control.toml " in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["--actors", "0"], ["--env", "python_tir"]])
def test_the_command_refuses_what_cannot_be_meant(tmp_path, argv):
    (tmp_path / "run.lock").touch()
    assert main(["control", str(tmp_path), *argv]) == 2
    assert not (tmp_path / "control.toml").exists()


def test_the_command_writes_nothing_into_a_directory_that_is_no_run(tmp_path):
    assert main(["control", str(tmp_path), "--actors", "3"]) == 2
    assert not (tmp_path / "control.toml").exists()


def test_a_follower_that_the_file_system_failed_is_started_again_and_applies_the_file(tmp_path, monkeypatch):
    """Ten times a stale file handle while the answer is written, on a virtual clock: the eleventh applies it."""
    whole, failures = control.replace_text, [OSError(116, "Stale file handle")] * 10

    def replace(path, text):
        if failures:
            raise failures.pop()
        whole(path, text)

    write(tmp_path / "control.toml", Control(rollout_actors=2))
    monkeypatch.setattr(control, "replace_text", replace)
    run = Run()

    async def main():
        async with followed(Config.model_validate({"run_dir": tmp_path, "train": {"resume": True}}), run):
            while not applied(tmp_path):
                await asyncio.sleep(60)

    virtual_loop.run(main())
    assert run.actors == 2 and applied(tmp_path)["error"] is None and not failures


def test_an_environment_that_the_run_has_not_is_refused_and_one_by_another_name_is_known_by_its_servers():
    run, serves = Run(), {"sums": "python_tir"}
    with pytest.raises(ConfigError, match=r"'python_tir'\. .*: sums\b"):
        asyncio.run(apply(Control(env_urls={"python_tir": [B]}), run, token=None, serves=serves, probe=probe))
    asyncio.run(apply(Control(env_urls={"sums": [B]}), run, token=None, serves=serves, probe=probe))
    assert run.env_urls["sums"] == [B]
