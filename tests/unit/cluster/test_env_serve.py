"""What `env_serve` is told, and what it refuses before Ray is started. It serves: tests/e2e/envs/test_env_serve.py."""

from __future__ import annotations

import pytest
import ray

from openrlhf_tir.cluster.env_serve import __main__ as env_serve
from openrlhf_tir.errors import ConfigError


def test_flags_after_two_dashes_are_the_servers():
    args = env_serve.parsed(["echo", "-n", "2", "--port", "81", "--", "--max-sessions", "64", "--", "x"])
    assert (args.env, args.replicas, args.port, args.flags) == ("echo", 2, 81, ["--max-sessions", "64", "--", "x"])
    assert env_serve.parsed(["echo"]).flags == []


def test_a_server_is_named_as_in_env_server_or_by_its_module():
    assert env_serve.module_of("echo") == env_serve.module_of("env_servers.echo") == "env_servers.echo"
    with pytest.raises(ConfigError, match=r"ecko.*python_tir"):
        env_serve.module_of("ecko")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["-n", "0"], "-n 0 .*--port 8000"),
        (["--port", "0"], r"-n \d+ .*--port 0\b"),
        (["--host", "10.0.0.5"], r"--host 10\.0\.0\.5 .*TIR_ENV_TOKEN"),
    ],
)
def test_what_cannot_work_is_refused_before_ray_starts(monkeypatch, flags, why):
    monkeypatch.delenv(env_serve.ENV_TOKEN, raising=False)
    monkeypatch.setattr(env_serve.sys, "argv", ["env_serve", "echo", *flags])
    with pytest.raises(SystemExit, match=why):
        env_serve.main()


@pytest.mark.slow
def test_a_protobuf_with_which_serve_does_not_work_is_named_before_ray_starts(monkeypatch):
    """A stand-in where Serve would read a deployment's settings: whether this machine's protobuf is one of them is not
    this test's matter."""
    config = pytest.importorskip("ray.serve._private.config")

    def as_protobuf_7_answers(data):
        raise AttributeError("'google._upb._message.FieldDescriptor' object has no attribute 'label'")

    monkeypatch.setattr(config.DeploymentConfig, "from_proto_bytes", as_protobuf_7_answers)
    with pytest.raises(SystemExit, match=rf" {ray.__version__} .*'protobuf<7'"):
        env_serve.run(env_serve.parsed(["echo"]), "env_servers.echo")
    assert not ray.is_initialized()
    monkeypatch.setattr(config.DeploymentConfig, "from_proto_bytes", lambda data: None)
    assert not env_serve.needs_older_protobuf()
