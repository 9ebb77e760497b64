"""Two nodes, each with its own network, /tmp and /dev/shm, and launch_multinode.sh as it stands: a learner rank and a
Ray daemon on each, the environment server on the second. Then what breaks between them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from miniatures.toy.model import save_model
from miniatures.toy.task import write_data
from openrlhf_tir.observability.report import summary
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics, timeline
from tests.e2e.support.namespaces import NO_ENV, Node, missing, other_clock, two_nodes

ROOT = Path(__file__).parents[3]
PATIENCE_S = 400
AN_HOUR = 3600
ENV_PORT = 18080
NO_DASHBOARD = {"RAY_HEAD_FLAGS": "--include-dashboard=false"}
ENV = {
    "TIR_ENV_TOKEN": "hosts-of-model-code",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "TIR_VENV": sys.prefix,
    **NO_DASHBOARD,
}
SHAPE = "--actor.num_nodes 2 --actor.num_gpus_per_node 1"

pytestmark = [pytest.mark.long, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


class Cluster:
    """`a` drives, `b` serves the environment; `log` is what launch_multinode.sh printed."""

    def __init__(self, directory: Path, a: Node, b: Node) -> None:
        self.a, self.b, self.directory, self.run_dir, self.log = a, b, directory, directory / "run", directory / "log"
        self.url = f"http://{b.address}:{ENV_PORT}"

    def serve(self) -> None:
        said = self.directory / "env.log"
        said.unlink(missing_ok=True)
        server = self.b.start(
            f"bash {ROOT}/train_scripts/start_env_servers.sh -h {self.b.address} -- --workers 1 --port {ENV_PORT}",
            said,
            **ENV,
        )
        wait(lambda: any(line.startswith("http://") for line in said.read_text().splitlines()), server, said)

    def rejoin(self) -> None:
        """What launch_multinode.sh started on the second node."""
        ray = (
            f"{sys.prefix}/bin/ray start --address={self.a.address}:6379 --node-ip-address={self.b.address}"
            " --disable-usage-stats --block"
        )
        self.b.start(ray, self.directory / "rejoined.log", **ENV)

    def launch(self, *flags: str, steps: int = 4, **env: str) -> subprocess.Popen[bytes]:
        return self._train(
            f"bash {ROOT}/train_scripts/launch_multinode.sh --hosts node-a,node-b --interface eth1 --",
            flags,
            steps,
            env,
        )

    def submit(self, steps: int = 4) -> subprocess.Popen[bytes]:
        """To a Ray cluster that is there."""
        head = (
            f"{sys.prefix}/bin/ray start --head --node-ip-address={self.a.address}"
            " --port=6379 --disable-usage-stats --block"
        )
        self.a.start(head, self.directory / "head.log", **ENV)
        answers = f"exec 3<>/dev/tcp/{self.a.address}/6379 && exec 4<>/dev/tcp/127.0.0.1/8265"
        wait(lambda: self.a.can(answers), None, self.directory / "head.log")
        self.rejoin()
        return self._train(f"bash {ROOT}/train_scripts/submit_ray_job.sh", (), steps, {"TIR_PYTHON": sys.executable})

    def _train(self, script: str, flags: tuple[str, ...], steps: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
        words = [
            f"{script} --recipe quickstart_cpu --run-dir {self.run_dir}",
            (
                f"--actor.model_name_or_path {self.directory}/init --data.prompt_dataset"
                f" {self.directory}/data/train.jsonl --env.url {self.url} {SHAPE}"
            ),
            (
                "--reward.name tests.e2e.support.parity_reward:parity --rollout.batch_size 4"
                " --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 24"
            ),
            f"--train.max_steps {steps} --ckpt.save_steps 2 --logger.tensorboard_dir unset",
        ]
        return self.a.start(" ".join([*words, *flags]), self.log, **(ENV | env))

    def step(self) -> int:
        return int(max(metrics.read(self.run_dir).get("step", [0]), default=0)) if self.run_dir.exists() else 0

    def has_lost_ranks(self) -> bool:
        return "(learner_died)" in self.said()

    def said(self) -> str:
        """As one line: the console wraps."""
        return " ".join(self.log.read_text().split())


def wait(
    until: Callable[[], object], process: subprocess.Popen[bytes] | None, log: Path, patience_s: float = PATIENCE_S
) -> None:
    give_up = time.monotonic() + patience_s
    while not until():
        assert (process is None or process.poll() is None) and time.monotonic() < give_up, log.read_text()[-4000:]
        time.sleep(0.3)


def ended(process: subprocess.Popen[bytes], log: Path, patience_s: float = PATIENCE_S) -> int:
    wait(lambda: process.poll() is not None, None, log, patience_s)
    return process.returncode


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path / "data", seed=0, n_train=200)
    (tmp_path / "run").mkdir()
    param = getattr(request, "param", "")
    own = [tmp_path / "run"] if param == "unshared" else []
    env_b = other_clock(tmp_path / "clock", AN_HOUR) if param == "an hour ahead" else NO_ENV
    with two_nodes(tmp_path, [ROOT, Path(sys.prefix).resolve()], own, env_b) as (a, b):
        made = Cluster(tmp_path, a, b)
        made.serve()
        yield made


def assert_trained_once(cluster: Cluster, steps: int) -> None:
    report = audit(cluster.run_dir / "ledger.jsonl")
    assert report.errors == [] and len(report.trained) == len(set(report.trained)) == 4 * steps
    assert metrics.read(cluster.run_dir)["step"] == list(range(1, steps + 1))
    assert summary.read(cluster.run_dir).steps == steps


def test_a_run_over_two_nodes_has_a_rank_on_each_and_leaves_nothing_behind(cluster: Cluster):
    assert ended(cluster.launch(), cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 4)
    said = cluster.said()
    assert "10.77.0.1 x 1, 10.77.0.2 x 1" in said or "10.77.0.2 x 1, 10.77.0.1 x 1" in said, said[-4000:]
    wait(
        lambda: not [p for node in (cluster.a, cluster.b) for name, p in node.processes() if "ray" in name],
        None,
        cluster.log,
        60,
    )


@pytest.mark.parametrize("cluster", ["unshared"], indirect=True)
def test_a_run_directory_that_the_second_node_does_not_see_is_named_before_a_model_loads(cluster: Cluster):
    assert ended(cluster.launch(), cluster.log) == 2
    assert re.search(rf" {cluster.b.address} [^:]{{1,60}} {cluster.run_dir}:", cluster.said())
    assert cluster.step() == 0


@pytest.mark.parametrize("cluster", ["an hour ahead"], indirect=True)
def test_a_node_whose_clock_is_an_hour_ahead_is_named_and_its_times_are_the_controllers(cluster: Cluster):
    """The first node has no core but the one of its rank: the engine is on the second."""
    no_core = {"RAY_HEAD_FLAGS": f"{NO_DASHBOARD['RAY_HEAD_FLAGS']} --num-cpus=1"}
    assert ended(cluster.launch(**no_core), cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 4)
    assert re.search(rf" {cluster.b.address}\D{{1,20}} 3\d\d\d s ", cluster.said())
    assert f" 0: {cluster.b.address}" in cluster.said()
    spans = timeline.read(cluster.run_dir)
    decoding = [s for s in spans if s.track.startswith("engine/")]
    began, over = min(s.start for s in spans if s not in decoding), max(s.end for s in spans if s not in decoding)
    assert decoding and all(began - 60 < s.start and s.end < over + 60 for s in decoding)


def test_a_submitted_job_trains_over_two_nodes_like_one_that_is_launched(cluster: Cluster):
    assert ended(cluster.submit(), cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 4)


@pytest.mark.parametrize(
    ("flags", "env", "fact"),
    [
        (["--env.url", "http://10.77.0.9:18080"], {}, "http://10.77.0.9:18080"),
        ([], {"TIR_ENV_TOKEN": "another"}, "TIR_ENV_TOKEN"),
    ],
)
def test_what_the_second_node_does_not_take_is_named_before_a_model_loads(flags, env, fact, cluster: Cluster):
    """An address that nobody has; a token that is not the server's."""
    code = ended(cluster.launch(*flags, **env), cluster.log)
    assert code != 0 and fact in cluster.said() and cluster.step() == 0


def test_a_node_that_loses_its_power_is_waited_for_and_the_run_goes_on_when_it_is_back(cluster: Cluster):
    process = cluster.launch(steps=12)
    wait(lambda: cluster.step() >= 3, process, cluster.log)
    cluster.b.lose_power()
    wait(cluster.has_lost_ranks, process, cluster.log)
    cluster.serve()
    assert ended(process, cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 12)


def test_a_ray_daemon_that_is_killed_is_started_again(cluster: Cluster):
    process = cluster.launch(steps=12)
    wait(lambda: cluster.step() >= 3, process, cluster.log)
    next(p for name, p in cluster.b.processes() if name == "raylet").kill()
    wait(cluster.has_lost_ranks, process, cluster.log)
    assert ended(process, cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 12)


def test_a_link_that_is_cut_for_longer_than_heartbeats_are_waited_for_costs_the_run_nothing_but_time(cluster: Cluster):
    process = cluster.launch(steps=12)
    wait(lambda: cluster.step() >= 3, process, cluster.log)
    cluster.b.link("down")
    wait(cluster.has_lost_ranks, process, cluster.log)
    cluster.b.link("up")
    assert ended(process, cluster.log) == 0, cluster.log.read_text()[-4000:]
    assert_trained_once(cluster, 12)
