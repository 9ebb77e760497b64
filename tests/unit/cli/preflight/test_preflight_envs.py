"""Preflight of environments: rows, sections and servers, each refused by name."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError, DataError, Unavailable
from openrlhf_tir.rollout.environment_client.probe import probe_env

from .runs import CPU, GPUS, refused


def test_rows_of_another_environment_are_refused(ready, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "x", "label": "1", "env": "echo"}\n' * 2)
    said = refused(ready, error=DataError)
    assert re.search(r"d\.jsonl line 1: env = 'echo' .*: python_tir\..*\[envs\.echo\]", said)


def test_a_running_server_is_asked_who_it_is(ready, env_server):
    facts = check(load(None, {**ready, "env.url": env_server.url}), machine=CPU)
    assert any(re.search(rf" python_tir .*{env_server.url}: .* bwrap, .* 3\b", fact) for fact in facts)


def test_a_server_of_another_environment_is_refused(ready, env_server):
    env_server.bodies["/schema"]["env"] = "search"
    assert re.search(f"{env_server.url} .*'search', .*'python_tir'.*env.url", refused(ready, env__url=env_server.url))


def test_a_server_with_another_time_limit_for_code_is_refused_with_both(ready, env_server):
    """Its slow programs would be trained as failures that the recipe does not have."""
    env_server.bodies["/schema"]["code_timeout_s"] = 5.0
    with pytest.raises(ConfigError) as e:
        check(load(None, {**ready, "env.url": env_server.url, "env.code_timeout_s": 20}), machine=CPU)
    (problem,) = e.value.problems
    assert (problem.code, problem.setting) == ("environment", "env.code_timeout_s")
    assert re.search(r" 5 s, .* = 20: .*--code-timeout 20\b.* = 5\.", problem.message)
    env_server.bodies["/schema"]["code_timeout_s"] = 20.0
    (fact,) = _facts_of(env_server, {**ready, "env.code_timeout_s": 20})
    assert "20 s" in fact and "--code-timeout" not in fact


def test_of_a_server_that_does_not_say_its_time_limit_the_run_says_what_it_must_be(ready, env_server):
    """One of an earlier version."""
    (fact,) = _facts_of(env_server, {**ready, "env.code_timeout_s": 20})
    assert re.search(r"--code-timeout.* env\.code_timeout_s = 20$", fact)


def test_workers_that_a_running_server_does_not_have_are_told(ready, env_server):
    env_server.bodies["/schema"]["code_timeout_s"] = 5.0
    (fact,) = _facts_of(env_server, {**ready, "env.workers": 16})
    assert re.search(r"capacity 3\b.* env\.workers = 16 .*--workers", fact)
    (fact,) = _facts_of(env_server, {**ready, "env.workers": 3})
    assert "env.workers" not in fact


def _facts_of(env_server, overrides):
    """What the start of a run says of its server."""
    facts = check(load(None, {**overrides, "env.url": env_server.url}), machine=CPU)
    return [fact for fact in facts if env_server.url in fact]


@pytest.mark.parametrize(
    ("health", "said"),
    [
        ({"isolation": "none"}, " 3; .*WITHOUT"),
        ({"isolation": "not_needed"}, r" 3\b"),
        ({}, r" unknown, .* 3\b"),
    ],
)
def test_only_a_server_that_says_that_it_runs_code_unconfined_is_called_so(ready, env_server, health, said):
    env_server.bodies["/health"] = {"env": "python_tir", **health}
    facts = check(load(None, {**ready, "env.url": env_server.url}), machine=CPU)
    (fact,) = [fact for fact in facts if env_server.url in fact]
    assert re.search(f" python_tir .*: [^ ]*{said}", fact) and ("WITHOUT" in fact) is ("WITHOUT" in said)


def test_every_server_of_a_list_is_asked(ready, env_server):
    assert "http://127.0.0.1:9/health " in refused(
        ready, error=Unavailable, env__url=f"{env_server.url}, http://127.0.0.1:9"
    )


def test_a_person_is_told_at_once_of_a_server_that_does_not_answer_and_what_to_do(ready):
    said = refused(ready, error=Unavailable, env__url="http://127.0.0.1:9")
    assert re.search("http://127.0.0.1:9/health .*env.url", said)


def test_nobody_waits_for_a_server_of_a_run_that_has_a_mistake_and_both_are_told(ready):
    """With a wait of an hour."""
    said = refused(ready, env__url="http://127.0.0.1:9", reward__name="maths", train__start_wait_s=3600)
    assert re.search("'maths'.*reward.name", said) and "http://127.0.0.1:9/health " in said
    assert len(said.splitlines()) == 2


def test_a_server_that_says_503_may_be_back_in_a_minute(env_server):
    env_server.bodies["/health"] = 503
    with pytest.raises(Unavailable, match="503"):
        probe_env(env_server.url)


def test_something_else_that_answers_is_refused(env_server):
    env_server.bodies["/schema"] = {"hello": 1}
    with pytest.raises(ConfigError, match=f"{env_server.url} .*: env: "):
        probe_env(env_server.url)
    for body in (b"<html>", b"[" * 30000):
        env_server.bodies["/health"] = body
        with pytest.raises(ConfigError, match=f"{env_server.url}/health .*JSON"):
            probe_env(env_server.url)


def test_a_missing_token_is_named(env_server):
    env_server.token = "secret"
    with pytest.raises(ConfigError, match=r"401.*TIR_ENV_TOKEN"):
        probe_env(env_server.url)
    assert probe_env(env_server.url, token="secret")[1].capacity == 3


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999999", "http://h:x", "http://\udcff"])
def test_what_is_no_url_is_told(url):
    with pytest.raises(ConfigError, match=re.escape(repr(url))):
        probe_env(url)


@pytest.mark.parametrize(
    ("machine", "cluster", "overrides", "reason"),
    [
        (GPUS, True, {"vllm.num_engines": 4}, r"5 GPUs, .* 4\b"),
        (GPUS, False, {"actor.num_nodes": 4, "vllm.num_engines": 1}, r"5 GPUs, .* 4\b"),
        (CPU, True, {"vllm.num_engines": 8}, r"9 GPUs, .* 8\b"),
    ],
)
def test_engines_on_other_nodes_need_the_url_of_a_server_and_that_is_said_before_anything_starts(
    ready, env_server, monkeypatch, machine, cluster, overrides, reason
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if cluster:
        monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    overrides = {"ds.attn_implementation": "flash_attention_2", **overrides}
    with pytest.raises(ConfigError) as e:
        check(load(None, {**ready, **overrides}), machine=machine)
    (problem,) = e.value.problems
    assert (problem.code, problem.setting) == ("environment", "env.url")
    assert re.search(reason, problem.message) and "start_env_servers.sh" in problem.message
    assert check(load(None, {**ready, **overrides, "env.url": env_server.url}), machine=machine)


@pytest.mark.parametrize(
    ("machine", "overrides"),
    [
        (GPUS, {"vllm.num_engines": 3}),
        (GPUS, {"vllm.num_engines": 9, "ds.attn_implementation": "sdpa"}),
        (GPUS, {"vllm.num_engines": 2, "actor.num_nodes": 2}),
        (CPU, {"vllm.num_engines": 9, "ds.attn_implementation": "sdpa"}),
        (CPU, {"vllm.num_engines": 7}),
        (CPU, {"vllm.num_engines": 1, "actor.num_nodes": 2}),
    ],
)
def test_engines_that_may_all_be_here_need_no_url(ready, monkeypatch, machine, overrides):
    """CPU processes share cores, beside a card too; a machine without GPUs says nothing of a node that has them; a Ray
    of one node takes a run of several."""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    overrides = {"ds.attn_implementation": "flash_attention_2", **overrides}
    facts = check(load(None, {**ready, **overrides}), machine=machine)
    assert any(" python_tir: " in fact for fact in facts)


def test_a_command_that_trains_nothing_has_engines_alone(ready, monkeypatch):
    """`eval`, `play` and `serve` of a recipe for several nodes, on one."""
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    overrides = {"ds.attn_implementation": "flash_attention_2", "actor.num_nodes": 4, "vllm.num_engines": 4}
    assert check(load(None, {**ready, **overrides}), machine=GPUS, training=False)
    with pytest.raises(ConfigError):
        check(load(None, {**ready, **overrides, "vllm.num_engines": 5}), machine=GPUS, training=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_on_loopback_is_told_where_engines_are_on_other_nodes(ready, env_server, monkeypatch, host):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    url = env_server.url.replace("127.0.0.1", host)
    overrides = {**ready, "env.url": url, "ds.attn_implementation": "flash_attention_2"}

    def told(engines):
        facts = check(load(None, {**overrides, "vllm.num_engines": engines}), machine=GPUS)
        return [fact for fact in facts if re.search("env.url .*loopback.* -h ", fact)]

    assert told(4) and not told(3)


def test_a_time_limit_for_code_does_not_matter_where_no_code_is_run(ready, env_server):
    env_server.bodies["/schema"]["code_timeout_s"] = 5.0
    assert _facts_of(env_server, {**ready, "env.code_timeout_s": 20, "env.max_calls": 0})
    with pytest.raises(ConfigError):
        _facts_of(env_server, {**ready, "env.code_timeout_s": 20, "env.max_calls": 0, "eval.max_calls": 4})


def several(ready, tmp_path, rows, **sections):
    """Overrides of a run with [envs.NAME] `sections`; `rows` are the env columns of the data."""
    lines = (json.dumps({"prompt": "1+1?", "label": "2"} | ({"env": env} if env else {})) for env in rows)
    (tmp_path / "d.jsonl").write_text("".join(line + "\n" for line in lines))
    return {
        **ready,
        **{f"envs.{name}.{field}": value for name, fields in sections.items() for field, value in fields.items()},
    }


def test_every_environment_is_checked_and_told(ready, tmp_path, env_server):
    sections = {
        "sums": {"server": "python_tir", "url": env_server.url},
        "more": {"server": "python_tir", "url": env_server.url, "protocol": "torl"},
        "echo": {"share": None},
    }
    facts = check(load(None, several(ready, tmp_path, ["sums", "echo", "echo", "more"], **sections)), machine=CPU)
    assert any(fact.endswith("(echo: 2, more: 1, sums: 1)") for fact in facts)
    for name, at in (("sums", rf"{env_server.url}: .* bwrap, .* 3\b"), ("more", f"{env_server.url}: "), ("echo:", "")):
        assert sum(bool(re.match(f"[^ ]+ {name} ?.*{at}", fact)) for fact in facts) == 1
    assert sum(bool(re.match(rf"{env_server.url} .*sums \(.*zerotir\) .*more \(.*torl\)", fact)) for fact in facts) == 1


@pytest.mark.parametrize(
    ("rows", "sections", "expected"),
    [
        (
            ["sums", None],
            {},
            r"d\.jsonl line 2 .*'env', .* sums, echo\.",
        ),
        (["sums", "wiki"], {}, r"d\.jsonl line 2: env = 'wiki' .*: sums, echo\."),
        (["sums", "sums"], {"sums": {"share": 1}, "echo": {"share": 1}}, r"envs\.echo\.share = 1, .*'echo'"),
        (
            ["sums", "echo"],
            {"echo": {"server": "ecco"}},
            (
                r"'ecco'.*: bfcl, echo, functions, gem, math, mcp, openenv, puzzles, python_tir,"
                r" search, swe, tau, verl_tool\. .*envs\.echo\.server\b"
            ),
        ),
        (
            ["sums", "echo"],
            {"echo": {"server": "search"}},
            r"envs\.echo\.server_options = {}: .* search .*--corpus",
        ),
        (
            ["sums", "echo"],
            {"echo": {"server": "mcp"}},
            r"envs\.echo\.server_options = {}: .* mcp .*--command .*--url",
        ),
        (
            ["sums", "echo"],
            {"echo": {"server_options": {"colour": "red"}}},
            r"envs\.echo\.server_options = {'colour': 'red'}: .* echo .*: --colour red",
        ),
        (
            ["sums", "echo"],
            {"echo": {"server_options": {"help": True}}},
            r"envs\.echo\.server_options = {'help': True}: .* echo ",
        ),
        (
            ["sums", "echo"],
            {"echo": {"server": "search", "server_options": {"corpus": "/no/where.jsonl"}}},
            r"envs\.echo\.server_options\.corpus = '/no/where\.jsonl'",
        ),
        (["sums", "echo"], {"echo": {"protocol": "zeroti"}}, r"'zeroti'.* envs\.echo\.protocol\b"),
        (["sums", "echo"], {"echo": {"reward.name": "maths"}}, r"'maths'.* envs\.echo\.reward\.name\b"),
        (
            ["sums", "echo"],
            {"echo": {"file": "/no/guess.py:Guess"}},
            r"envs\.echo\.file = '/no/guess\.py:Guess'",
        ),
        (["sums", "echo"], {"echo": {"input_template": "no place"}}, r"envs\.echo\.input_template .*{}|'no place'.*{}"),
    ],
)
def test_what_cannot_work_in_one_environment_of_several_is_one_line_that_names_it(
    ready, tmp_path, rows, sections, expected
):
    over = several(
        ready,
        tmp_path,
        rows,
        **{
            "sums": {"server": "python_tir", **sections.get("sums", {})},
            "echo": {"step_timeout_s": 9.0, **sections.get("echo", {})},
        },
    )
    with pytest.raises((ConfigError, DataError)) as e:
        check(load(None, over), machine=CPU)
    (line,) = str(e.value).splitlines()
    assert re.search(expected, line)


def test_a_server_of_another_environment_than_its_section_says_is_refused(ready, tmp_path, env_server):
    over = several(ready, tmp_path, ["sums", "sums"], sums={"url": env_server.url})
    with pytest.raises(ConfigError, match=r"'python_tir', .*'sums'\. .*envs\.sums\.server .*envs\.sums\.url\b"):
        check(load(None, over), machine=CPU)


OWN = """
from env_servers.env import Env, Step

class Guess(Env):
    def __init__(self, high: int, why: str = "", **more): ...
    async def step(self, action, deadline_s): ...

class NoBase:
    async def reset(self, task, seed): ...
    async def step(self, action, deadline_s): ...

class NoStep(Env): ...

class Plain(Env):
    async def step(self, action, deadline_s): ...
"""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"env.file": "mine.py:NoBase"},
            r"mine\.py:8: NoBase .*`async def close`",
        ),
        ({"env.file": "mine.py:NoStep"}, r"NoStep .*`async def step`"),
        (
            {"env.file": "mine.py:Plain", "env.server_options": {"bogus": 3}},
            r"env\.server_options = {'bogus': 3}: .*Plain .*: got an unexpected keyword argument 'bogus'",
        ),
        (
            {"env.file": "mine.py:Plain", "env.server_options": {"max_queue": "x"}},
            r"--max-queue: .*'x'",
        ),
        (
            {"env.file": "mine.py:Plain", "env.server_options": {"port": 1}},
            r"env\.server_options .*'port'",
        ),
        ({"env.file": "mine.py:Guess"}, r"env\.server_options = {}: .*missing a required argument: 'high'"),
        ({"env.file": "mine.py:Guess", "env.server_options": {"high": "x"}}, r"high = 'x' .*\bstr, .*\bint\b"),
        ({"env.file": "mine.py"}, r"mine\.py .*: Guess, NoStep, Plain\. .*: '.*mine\.py:Guess'"),
        ({"env.file": "none.py"}, r"env\.file = '.*none\.py'"),
        (
            {"env.file": "guess"},
            r"'guess'\. .*env\.file .*'package\.module:environment' .*'path/file\.py:environment'",
        ),
    ],
)
def test_a_class_that_cannot_be_an_environment_or_be_made_is_one_line(ready, tmp_path, monkeypatch, overrides, said):
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "none.py").write_text("from env_servers.env import Env\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as e:
        check(load(None, {**ready, **overrides}), machine=CPU)
    (line,) = str(e.value).splitlines()
    assert re.search(said, line)


def test_a_class_takes_its_keywords_and_its_server_its_flags(ready, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    options = {"high": 3, "why": "3", "max_queue": 4, "other": [1], "N": 2}
    assert check(load(None, {**ready, "env.file": "mine.py:Guess", "env.server_options": options}), machine=CPU)
