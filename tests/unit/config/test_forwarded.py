"""What NCCL, gloo and vLLM are told reaches every process: by launch scripts, Ray job, the actors' environment."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.forwarded import forwarded
from tests.free_port import free_port

ROOT = Path(__file__).resolve().parents[3]
PROXIES = {"HTTPS_PROXY": "http://me:secret@proxy.example.com:3128", "http_proxy": "me:secret@proxy.example.com:3128"}


def test_what_is_true_of_one_node_only_is_not_forwarded():
    given = {
        "NCCL_IB_HCA": "mlx5",
        "GLOO_SOCKET_IFNAME": "eth1",
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_HOST_IP": "10.0.0.1",
        "CUDA_VISIBLE_DEVICES": "0",
        "PATH": "/bin",
    }
    assert forwarded(given) == {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth1", "VLLM_USE_DEEP_GEMM": "0"}


def test_compilers_caches_and_kernels_find_the_same_settings_on_every_node():
    given = {
        "TRITON_CACHE_DIR": "/scratch/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/scratch/inductor",
        "FLASHINFER_WORKSPACE_BASE": "/scratch",
        "CUDA_HOME": "/opt/cuda",
        "DS_SKIP_CUDA_CHECK": "1",
        "CC": "gcc-12",
        "XDG_CACHE_HOME": "/scratch/cache",
        "LD_LIBRARY_PATH": "/opt/cuda/lib64",
    }
    of_one_node = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}  # as a head without GPUs has them
    assert forwarded({**given, **of_one_node}) == given


def test_servers_are_reached_by_the_same_proxies_and_certificates_from_every_node():
    given = {
        "https_proxy": "http://proxy.example.com:3128",
        "HTTP_PROXY": "http://user:secret@10.0.0.1:3128",
        "no_proxy": "localhost,127.0.0.1,10.0.0.0/8",
        "SSL_CERT_FILE": "/etc/ssl/company.pem",
        "REQUESTS_CA_BUNDLE": "/etc/ssl/company.pem",
    }
    of_one_node = {"http_proxy": "http://localhost:3128", "ALL_PROXY": "socks5h://me@127.0.0.1:1080"}
    assert forwarded({**given, **of_one_node}) == given
    for without_scheme in ("localhost:3128", "127.0.0.1:3128", "me:secret@LocalHost:3128"):
        assert forwarded({**given, "http_proxy": without_scheme}) == given


@pytest.mark.slow
def test_a_shell_reads_them_back_as_they_were_and_no_secret_is_printed():
    env = {"NCCL_DEBUG": "it's $HOME", "HF_TOKEN": "hf_secret", **PROXIES, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-m", "openrlhf_tir.config.forwarded"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "secret" not in printed
    assert (
        subprocess.run(
            ["bash", "-c", f'{printed}echo "$NCCL_DEBUG"'], env={}, capture_output=True, text=True, check=True
        ).stdout
        == "it's $HOME\n"
    )


@pytest.mark.slow
def test_actors_have_them(monkeypatch):
    from openrlhf_tir.cluster import ray_session

    monkeypatch.setattr(ray_session, "has_gpus", lambda: True)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth1")
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    env = ray_session.worker_env(Config())
    assert env["NCCL_SOCKET_IFNAME"] == "eth1" and "VLLM_HOST_IP" not in env
    assert env["PYTHONDONTWRITEBYTECODE"] == "", "a node that sets it would compile torch in every process"


@pytest.mark.slow
def test_processes_that_compute_on_a_cpu_have_one_arena_unless_the_user_says_otherwise(monkeypatch):
    from openrlhf_tir.cluster import ray_session

    monkeypatch.setattr(ray_session, "has_gpus", lambda: False)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert ray_session.worker_env(Config())["MALLOC_ARENA_MAX"] == "1"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert ray_session.worker_env(Config())["MALLOC_ARENA_MAX"] == "4"
    monkeypatch.setattr(ray_session, "has_gpus", lambda: True)
    assert "MALLOC_ARENA_MAX" not in ray_session.worker_env(Config())


@pytest.fixture
def launched(tmp_path):
    """Runs launch_multinode.sh on this machine: its `ray` writes down how it was started, its training does nothing."""
    shutil.copytree(ROOT / "train_scripts", tmp_path / "train_scripts")
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    python = (
        "if [[ $1 == - ]]; then cat > /dev/null; while [[ ! -s $SAID ]]; do sleep 0.1; done;"
        " exit 0; fi\nif [[ $2 == *.cli ]]; then exit 0; fi"
    )
    ray = (
        'echo "$* NCCL=${NCCL_SOCKET_IFNAME:-} GLOO=${GLOO_SOCKET_IFNAME:-} P2P=${NCCL_P2P_LEVEL:-}"'
        ' "FILES=$(ulimit -Sn) TMP=${RAY_TMPDIR:-}" > $SAID\nexec'
        " sleep 600"
    )
    for name, text in (("python", f'{python}\nexec {sys.executable} "$@"'), ("ray", ray)):
        (binaries / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (binaries / name).chmod(0o755)

    def run(*flags: str, **variables: str) -> tuple[subprocess.CompletedProcess, str]:
        said = tmp_path / "said"
        said.unlink(missing_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL", "GLOO"))}
        env = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "TIR_VENV": str(tmp_path / ".venv"),
            "SAID": str(said),
            "NCCL_P2P_LEVEL": "NVL",
            "RAY_PORT": str(free_port()),
            **variables,
        }
        script = tmp_path / "train_scripts/launch_multinode.sh"
        done = subprocess.run(
            ["bash", "-c", 'ulimit -Sn 1024; exec bash "$0" "$@"', script, "--hosts", "localhost", *flags, "--"],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done, said.read_text() if said.exists() else ""

    return run


@pytest.mark.slow
def test_the_launcher_gives_ray_on_every_node_the_interface_and_the_variables(launched):
    done, said = launched("--interface", "lo")
    assert done.returncode == 0, done.stderr
    assert "--node-ip-address=127.0.0.1 " in said and "NCCL=lo GLOO=lo P2P=NVL" in said
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    assert f" FILES={most} " in said, "`ray start` raises no limit"


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "taken"), [({}, "/tmp"), ({"RAY_TMPDIR": "/scratch"}, "/scratch")])
def test_a_jobs_own_temporary_directory_may_be_too_long_for_rays_sockets(launched, tmp_path, variables, taken):
    done, said = launched(TMPDIR=str(tmp_path / "of_job_1234567"), **variables)
    assert done.returncode == 0, done.stderr
    assert said.endswith(f" TMP={taken}\n")


@pytest.mark.slow
def test_a_node_is_reached_by_its_first_ipv4_address(launched, tmp_path):
    hostname = tmp_path / "bin/hostname"
    hostname.parent.mkdir()
    hostname.write_text('#!/bin/sh\n[ "$1" = -I ] && echo "fd00::1:7 127.0.0.1 172.17.0.1" || echo here\n')
    hostname.chmod(0o755)
    done, said = launched(PATH=f"{hostname.parent}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "--node-ip-address=127.0.0.1 " in said


@pytest.mark.slow
def test_an_interface_that_a_node_does_not_have_is_named(launched):
    done, said = launched("--interface", "none0")
    assert done.returncode == 2 and re.search(r"localhost .* none0\b", done.stderr) and not said
