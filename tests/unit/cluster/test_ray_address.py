"""RAY_ADDRESS is asked before Ray is: what is dead or no Ray is told in seconds and one sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import pytest

from miniatures.toy.tokenizer import save_tokenizer
from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import STOPPED, code_of
from openrlhf_tir.cluster.ray_address import check_ray_address
from openrlhf_tir.errors import ConfigError, Unavailable
from tests.contract.docs.docs_blocks import REPO
from tests.free_port import free_port
from tests.unit.cluster.test_run_lock import flags_of


def asked(address: str, answer_s: float = 0.5, **environment: str) -> None:
    check_ray_address({"RAY_ADDRESS": address, **environment}, connect_s=60.0, answer_s=answer_s)


@pytest.fixture
def silent():
    """The address of a program that takes connections and says nothing, as a head that hangs does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_no_address_and_those_that_ray_looks_up_itself_are_not_asked():
    for environment in ({}, {"RAY_ADDRESS": ""}, {"RAY_ADDRESS": "auto"}, {"RAY_ADDRESS": "local"}):
        check_ray_address(environment)


def test_a_port_where_nobody_listens_is_named():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=address):
        asked(address)


def test_a_program_that_is_no_ray_is_named(silent):
    with pytest.raises(Unavailable, match=silent):
        asked(silent)
    asked(silent, RAY_USE_TLS="1")  # only Ray's own client has the certificates to ask


def test_what_speaks_grpc_is_left_to_ray():
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        asked(f"127.0.0.1:{port}", 300.0)
        asked(f"ray://127.0.0.1:{port}", 300.0)
    finally:
        server.stop(None)


@pytest.mark.parametrize("address", ["10.0.0.1", "http://10.0.0.1:8265", "10.0.0.1:ray", "10.0.0.1:70000", ":6379"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(ConfigError, match="RAY_ADDRESS"):
        asked(address)


def words_of(tmp_path: Path, *more: str) -> list[str]:
    """The command line of a run whose checks pass, up to Ray."""
    words = ["train", *map(str, flags_of(tmp_path)), *more]
    save_tokenizer(tmp_path / "model")
    return words


@pytest.mark.slow
def test_a_run_at_a_dead_address_ends_with_one_sentence(tmp_path, monkeypatch, capsys):
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main(words_of(tmp_path)) == code_of(Unavailable(""))
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("Unavailable: ") and address in sentence


@pytest.mark.slow
@pytest.mark.extended
def test_a_run_that_waits_for_its_ray_ends_at_sigterm(tmp_path, silent):
    words = [sys.executable, "-m", "openrlhf_tir.cli", *words_of(tmp_path, "--train.start_wait_s", "3600")]
    (tmp_path / "slow").mkdir()  # the process that reads the prompts would import it meanwhile
    (tmp_path / "slow/transformers.py").write_text("import time\n\ntime.sleep(3600)\n")
    env = {**os.environ, "RAY_ADDRESS": silent, "PYTHONPATH": f"{tmp_path / 'slow'}:{REPO}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    killer = threading.Timer(300, process.kill)
    killer.start()
    try:
        for line in process.stdout:
            if silent in line:  # it has asked once, and waits
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait() == STOPPED and "Traceback" not in rest
    finally:
        killer.cancel()
        process.kill()
