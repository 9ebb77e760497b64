"""Slurm's batch script and KubeRay's manifest: what they start is what the program takes, and a job whose time is up
goes on in the next one.

Slurm, its signals and Ray are stand-ins; bash, the script and the command line are the real ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import yaml

from env_servers.python_tir.__main__ import parser as python_tir
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.cluster.learner_group import LearnerRank
from openrlhf_tir.cluster.reward_models.replicas import RewardModelActor
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.cluster.signals import CLOSE_S
from openrlhf_tir.config import fine_tuning
from openrlhf_tir.config.flags import check_unknown
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.secrets import ENV_TOKEN, ROLLOUT_TOKEN
from tests.contract.docs.docs_blocks import REPO

CLUSTERS = REPO / "train_scripts" / "clusters"
LAUNCH = """echo "$@" > launched
trap 'touch stopped; exit $(cat ends_with)' TERM
touch up
until [[ -e end ]]; do sleep 0.05; done
exit $(cat ends_with)
"""
"""Stands for launch_multinode.sh: notes its words, and ends as `ends_with` says at SIGTERM, or at a file `end`."""
SERVERS = """echo "$@" > served
echo "$TIR_ENV_TOKEN" > token
[[ " $* " != *" nowhere "* ]] || exit 2
trap 'touch servers_stopped; exit 143' TERM
echo http://10.1.2.3:8100,http://10.1.2.3:8101
while true; do sleep 0.05; done
"""
"""Stands for start_env_servers.sh: notes its words and its token, and ends at SIGTERM."""


def taken(words: list[str]):
    """The configuration of a command line, as the program parses it."""
    args, extra = build_parser(words[0]).parse_known_args(words)
    check_unknown(extra)
    return config_of(args)


@pytest.fixture
def submitted(tmp_path, request) -> Iterator[subprocess.Popen]:
    """The batch script, running in a directory of its own, with an scontrol that notes what it is asked. A parameter:
    what it does once it has forked the launcher, or environment variables, and as WORDS more of its words."""
    forked = '"$@" &\n'
    given = getattr(request, "param", "")
    script = (CLUSTERS / "slurm.sbatch").read_text()
    assert script.count(forked) == 1
    (tmp_path / "job").write_text(script.replace(forked, forked + (given if isinstance(given, str) else "")))
    (tmp_path / "train_scripts").mkdir()
    (tmp_path / "train_scripts/launch_multinode.sh").write_text(LAUNCH)
    (tmp_path / "train_scripts/start_env_servers.sh").write_text(SERVERS)
    (tmp_path / "bin").mkdir()
    for name, body in {
        "scontrol": 'echo "$@" > requeued; [[ ! -e forbidden ]]',
        "hostname": "echo fd00::1:7 10.1.2.3 192.168.0.1",
        "ip": "echo '2: eth1    inet 10.9.8.7/24 brd 10.9.8.255 scope global eth1'",
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "ends_with").write_text("5")
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_START_TIME": "",
        "SLURM_JOB_END_TIME": "",
        "TIR_STOP_S": "",
        "TIR_INTERFACE": "",
        "TIR_COMMAND": "",
        "TIR_ENV_SERVERS": "",
        "WORDS": "",
        **(given if isinstance(given, dict) else {}),
    }
    words = ["--recipe", "zerotir_7b", *env["WORDS"].split()]
    process = subprocess.Popen(["bash", tmp_path / "job", *words], env=env, start_new_session=True)
    while not (tmp_path / "up").exists() and process.poll() is None:
        time.sleep(0.02)
    yield process
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("submitted", ["", "sleep 1\n"], indirect=True, ids=["waiting", "just forked"])
def test_a_job_whose_time_is_up_is_queued_again_after_its_checkpoint(submitted, tmp_path):
    submitted.send_signal(signal.SIGTERM)
    assert submitted.wait(60) == 5
    assert (tmp_path / "stopped").exists(), "the run itself got the signal"
    assert (tmp_path / "requeued").read_text() == "requeue 77\n"


def test_a_job_that_may_not_be_queued_again_ends_with_the_code_of_its_run(submitted, tmp_path):
    (tmp_path / "forbidden").touch()
    submitted.send_signal(signal.SIGTERM)
    assert submitted.wait(60) == 5


FLAGS = "-n 2 -- --workers 16 --code-timeout 20"


@pytest.mark.parametrize(
    ("submitted", "address", "token"),
    [
        ({"TIR_ENV_SERVERS": FLAGS, "TIR_ENV_TOKEN": "secret"}, "10.1.2.3", "secret"),
        ({"TIR_ENV_SERVERS": FLAGS, "TIR_ENV_TOKEN": "", "TIR_INTERFACE": "eth1"}, "10.9.8.7", r"[0-9a-f]{48}"),
    ],
    indirect=["submitted"],
)
def test_a_job_starts_its_environment_servers_on_its_own_address_and_ends_them(submitted, tmp_path, address, token):
    assert (tmp_path / "served").read_text().split() == ["-h", address, *FLAGS.split()]
    assert re.fullmatch(token, (tmp_path / "token").read_text().strip())
    launched = shlex.split((tmp_path / "launched").read_text())
    cfg = taken(["train", *launched[launched.index("--") + 1 :]])
    assert cfg.env.url == "http://10.1.2.3:8100,http://10.1.2.3:8101"
    submitted.send_signal(signal.SIGTERM)
    assert submitted.wait(60) == 5
    while not (tmp_path / "servers_stopped").exists():  # or the test's time runs out
        time.sleep(0.02)


@pytest.mark.parametrize(
    "submitted",
    [
        {"TIR_ENV_SERVERS": FLAGS, "WORDS": words}
        for words in ("--env.url http://10.0.0.5:8100", "--env.url=http://10.0.0.5:8100")
    ],
    indirect=True,
)
def test_a_job_that_is_given_servers_starts_none(submitted, tmp_path):
    launched = shlex.split((tmp_path / "launched").read_text())
    assert taken(["train", *launched[1:]]).env.url == "http://10.0.0.5:8100"
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("submitted", [{"TIR_ENV_SERVERS": "-e nowhere"}], indirect=True)
def test_a_job_without_the_servers_that_it_asked_for_trains_nothing(submitted, tmp_path):
    assert submitted.wait(60) == 2
    assert not (tmp_path / "launched").exists()


@pytest.mark.parametrize("code", ["0", "2", "3", "6"])
def test_what_ended_by_itself_is_not_queued_again(submitted, tmp_path, code):
    (tmp_path / "ends_with").write_text(code)
    submitted.send_signal(signal.SIGTERM)
    assert submitted.wait(60) == int(code)
    assert not (tmp_path / "requeued").exists()


def test_a_stop_that_slurm_did_not_ask_for_is_the_end(submitted, tmp_path):
    """`scancel` ends the steps and not this script; whoever stopped the run by hand wanted it stopped."""
    (tmp_path / "end").touch()
    assert submitted.wait(60) == 5
    assert not (tmp_path / "requeued").exists()


def test_the_batch_script_starts_what_the_program_takes(submitted, tmp_path):
    words = shlex.split((tmp_path / "launched").read_text())
    assert words[0] == "--"
    cfg = taken(["train", *words[1:]])
    assert cfg.train.resume, "when it is queued again it goes on"
    lead_s = int(re.search(r"^#SBATCH --signal=B:TERM@(\d+)$", (CLUSTERS / "slurm.sbatch").read_text(), re.M)[1])
    assert cfg.train.resume_or_start and lead_s - 60 < cfg.train.stop_grace_s < lead_s, (
        "the grace ends before Slurm kills"
    )


@pytest.mark.parametrize("submitted", [{"TIR_STOP_S": "1200", "TIR_INTERFACE": "eth1"}], indirect=True)
def test_the_batch_script_takes_the_lead_of_its_stop_and_the_nodes_network_from_the_environment(submitted, tmp_path):
    words = shlex.split((tmp_path / "launched").read_text())
    assert words[:3] == ["--interface", "eth1", "--"]
    assert taken(["train", *words[3:]]).train.stop_grace_s == 1170


@pytest.mark.parametrize("submitted", [{"TIR_COMMAND": "sft"}], indirect=True)
def test_the_batch_script_gives_a_fine_tuning_no_flag_that_it_refuses(submitted, tmp_path):
    words = shlex.split((tmp_path / "launched").read_text())
    problems = Problems()
    args = build_parser("sft").parse_args(
        ["sft", *(word.replace("zerotir_7b", "retool_sft_32b") for word in words[1:])]
    )
    cfg = fine_tuning.config_of(args, problems)
    problems.raise_any()
    assert cfg.train.resume_or_start


@pytest.mark.parametrize("submitted", [{"TIR_STOP_S": "30"}, {"TIR_STOP_S": "2m"}], indirect=True)
def test_a_lead_that_leaves_no_time_to_stop_is_refused(submitted, tmp_path):
    assert submitted.wait(60) == 2
    assert not (tmp_path / "launched").exists()


@pytest.mark.parametrize("submitted", [{"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "1600"}], indirect=True)
def test_a_job_that_would_be_stopped_as_it_starts_is_refused(submitted, tmp_path):
    assert submitted.wait(60) == 2
    assert not (tmp_path / "launched").exists() and not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("submitted", [{"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "1601"}], indirect=True)
def test_a_job_with_time_before_its_stop_is_run(submitted, tmp_path):
    assert (tmp_path / "launched").exists()


def test_the_manifest_starts_what_the_program_takes_on_the_gpus_that_it_asks_for():
    job, service, servers = yaml.safe_load_all((CLUSTERS / "rayjob.yaml").read_text())
    program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "openrlhf-tir"
    cfg = taken(words)
    assert cfg.train.resume and cfg.train.resume_or_start
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    per_pod = int(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    wanted = cfg.actor.num_nodes * cfg.actor.num_gpus_per_node + cfg.vllm.num_engines * cfg.vllm.tensor_parallel_size
    assert per_pod * workers["replicas"] == wanted
    head_pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    for stopped in (head_pod, pod):  # the controller is in the head's, the learner in the workers'
        assert stopped["terminationGracePeriodSeconds"] > cfg.train.stop_grace_s
    (server,) = servers["spec"]["template"]["spec"]["containers"]
    flags = python_tir().parse_args(server["args"])
    assert flags.code_timeout == cfg.env.code_timeout_s, "a run refuses servers with another limit"
    assert flags.workers == int(server["resources"]["requests"]["cpu"])
    assert cfg.env.url.split(",") == [
        f"http://{servers['metadata']['name']}-{i}.{service['metadata']['name']}:8000"
        for i in range(servers["spec"]["replicas"])
    ]
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    for container in (head, pod["containers"][0]):
        env = {e["name"]: e.get("value") for e in container["env"]}
        assert {ENV_TOKEN, ROLLOUT_TOKEN} <= env.keys()
        assert int(env["RAY_JOB_STOP_WAIT_TIME_S"]) >= cfg.train.stop_grace_s + CLOSE_S, "KubeRay stops the job first"
        assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/dev/shm", f"/{cfg.run_dir.parts[1]}"}
    assert ENV_TOKEN in {e["name"] for e in servers["spec"]["template"]["spec"]["containers"][0]["env"]}
    pinned = next(line for line in (REPO / "requirements.txt").read_text().splitlines() if line.startswith("ray"))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] in pinned


def test_the_pods_ask_for_what_rdma_the_cache_of_models_and_the_sandbox_need():
    job, _, servers = yaml.safe_load_all((CLUSTERS / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert "IPC_LOCK" in worker["securityContext"]["capabilities"]["add"], "RDMA pins memory"
    for amounts in worker["resources"].values():
        assert [name for name in amounts if name.startswith("rdma/")]
    for container in (head, worker):
        shared = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "shared"]
        (home,) = (e["value"] for e in container["env"] if e["name"] == "HF_HOME")
        assert home.startswith(f"{shared[0]}/"), "models are downloaded once"
    pod = servers["spec"]["template"]["spec"]
    security = pod["containers"][0]["securityContext"]
    # Kubernetes takes procMount only from pods with user namespaces; a masked /proc costs the warm workers
    assert security["procMount"] == "Unmasked" and pod["hostUsers"] is False
    assert {security[kind]["type"] for kind in ("seccompProfile", "appArmorProfile")} == {"Unconfined"}


RUN = """import signal, sys, time
def stop(number, frame):
    time.sleep(0.3)  # a checkpoint
    open("saved", "w").close()
    sys.exit(5)
signal.signal(signal.SIGTERM, stop)
open("up", "w").close()
time.sleep(100)
"""
"""Stands for the controller: it saves at SIGTERM."""
ENDED_POD = """{python} {run} train --recipe zerotir_7b --run-dir /shared/runs/x &
bash -c 'exec -a ray::IDLE sleep 100' &
until [[ -e up ]]; do sleep 0.05; done
"$@"
[[ -e saved ]] && touch waited
"""
"""A pod whose preStop hook is run; its processes end with it."""


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pod_that_ends_stops_the_run_first_and_waits_until_it_has_saved(restarted, tmp_path):
    head, _ = hooks()
    program = tmp_path / ("openrlhf_tir/cli/__main__.py" if restarted else "openrlhf-tir")
    for package in ("openrlhf_tir", "openrlhf_tir/cli"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    program.write_text(RUN)
    run = "-m openrlhf_tir.cli" if restarted else program
    in_own_processes(ENDED_POD.format(python=sys.executable, run=run), head, tmp_path)
    assert (tmp_path / "waited").exists()


def test_a_pod_of_the_learner_lives_until_its_ranks_and_engines_have_ended(tmp_path):
    _, worker = hooks()
    for name in (LearnerRank.__name__, RolloutActor.__name__, RewardModelActor.__name__):
        assert name in worker[-1]
    pod = """bash -c 'exec -a ray::LearnerRank.step bash -c "touch up; sleep 0.3; touch saved; true"' &
bash -c 'exec -a ray::IDLE sleep 100' &
until [[ -e up ]]; do sleep 0.05; done
"$@"
[[ -e saved ]] && touch waited
"""
    in_own_processes(pod, worker, tmp_path)
    assert (tmp_path / "waited").exists()


def hooks() -> tuple[list[str], list[str]]:
    """The preStop commands of the head's pod and of the workers'."""
    job, _, _ = yaml.safe_load_all((CLUSTERS / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    (head,), (worker,) = (group["template"]["spec"]["containers"] for group in (cluster["headGroupSpec"], workers))
    return tuple(container["lifecycle"]["preStop"]["exec"]["command"] for container in (head, worker))


def in_own_processes(script: str, command: list[str], directory) -> None:
    """Run the script on the command where no other process of the machine is seen."""
    alone = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]
    subprocess.run([*alone, "bash", "-c", script, "pod", *command], cwd=directory, check=False, timeout=60)


def test_the_training_image_has_the_packages_that_set_up_installs_and_flash_attn_only_on_demand():
    image = (REPO / "Dockerfile").read_text().split(" AS train")[1]
    for name in ("requirements.txt", "requirements-nodeps.txt", "requirements-puzzles.txt"):
        assert f"-r {name}" in image
    assert 'if [ -n "$WITH_FLASH_ATTN" ]' in image.partition("-r requirements-flash-attn.txt")[0].splitlines()[-1]
    assert {"g++", "python3.11-dev"} <= {*image.split()}, "Triton compiles at run time"


def test_the_training_image_has_what_kuberay_and_the_pods_hooks_run():
    """KubeRay before 1.6 asks by wget, in the container, and ends pods that do not answer; procps has pkill."""
    image = (REPO / "Dockerfile").read_text().split(" AS train")[1]
    installed = next(line for line in image.splitlines() if "apt-get install" in line and "python3.11" in line)
    assert {"wget", "procps"} <= {*installed.split()}
