"""What is compared -> a process for each, in its own venv, its memory sampled, until it ends or its time is up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from openrlhf_tir.machine.process_memory import PssSampler

from .cpu import CpuTrace, Point
from .venvs import Skipped, interpreter, same_as_ours
from .work import SMOLLM2, TOY, Work, said, steps_of

TRL = (
    "trl==1.16.0",
    *same_as_ours(
        "torch", "transformers", "accelerate", "datasets", "numpy", "pyarrow", "pydantic", "pydantic-settings",
        "math-verify", "tomlkit",
    ),
)  # fmt: skip
"""The newest release, with our torch and transformers; the last four for the rewards, turns and recipes of this
checkout."""
ONE_RANK = ("--actor.num_gpus_per_node", "1")
LOOK_EVERY_S = 1.0
"""Between two looks at a system's progress."""
MEMORY_SHARE = 0.05
"""The share of a core that sampling a system's memory may take. A sample of six GiB takes .25 s: with the trainer's own
share there would be 50 s between two, and a run of some minutes would have its peak between them."""
STOP_S = 60.0
"""For a system to end itself once told: ours waits 20 s for a step (train.stop_grace_s) and then for its processes."""
RAN = "ran.json"


@dataclass(frozen=True)
class System:
    """`module` runs as `python -m benchmarks.peers.MODULE WORK.json [words]`. `calls`: it has the recipe's tools."""

    module: str
    what: str
    calls: bool = True
    requirements: tuple[str, ...] = ()
    """What its own venv has; () runs in this one."""
    words: tuple[str, ...] = ()
    threads: bool = True
    """Whether --threads is for it: one process, not several with a thread each."""
    models: tuple[str, ...] = (TOY, SMOLLM2)
    """The tasks that it is set up for."""


SYSTEMS: dict[str, System] = {
    "ours": System(
        "ours",
        "openrlhf-tir train, the model's recipe (quickstart_cpu: two ranks; smollm2_cpu: one): vLLM, ZeRO-3, in-flight"
        " pushes",
        threads=False,
    ),
    "ours_one_rank": System(
        "ours",
        "the same with one learner rank, beside the engine on two cores",
        words=ONE_RANK,
        threads=False,
        models=(TOY,),
    ),
    "ours_on_policy": System(
        "ours",
        "the same with one rank and no overlap: every batch is of the newest weights, as TRL's",
        words=(*ONE_RANK, "--pipeline.mode", "sync"),
        threads=False,
    ),
    "ours_engine_ratio": System(
        "ours",
        "the same with one rank and the engine's log-probs in the ratio's denominator, around which PPO clips",
        words=(*ONE_RANK, "--actor.pi_old", "engine", "--algo.advantage.is_correction_level", "off"),
        threads=False,
        models=(SMOLLM2,),
    ),
    "ours_dr_grpo": System(
        "ours",
        "the same with one rank and advantages that are not whitened, as TRL's",
        words=(*ONE_RANK, "--algo.advantage.estimator", "dr_grpo"),
        threads=False,
    ),
    "trl": System("trl_grpo", "TRL's GRPOTrainer, no tools", calls=False, requirements=TRL, models=(TOY,)),
    "trl_tools": System("trl_grpo", "TRL's GRPOTrainer, the sandbox by its rollout_func", requirements=TRL),
    "plain": System("plain", "a plain PyTorch loop in one process, a reference"),
    "openrlhf_sync": System("openrlhf_own", "OpenRLHF's own trainer loop", words=("sync",), threads=False),
    "openrlhf_async": System(
        "openrlhf_own", "OpenRLHF's own trainer loop, asynchronous queue", words=("async",), threads=False
    ),
}


@dataclass(frozen=True)
class Ran:
    """`peak_gib`: of the sum of PSS over the system's processes, sandbox included. `why`: what ended it before its last
    update, else None. `cpu`: CpuTrace.points."""

    peak_gib: float | None
    why: str | None
    cpu: list[Point] = field(default_factory=list)

    def write(self, out: Path) -> Ran:
        (out / RAN).write_text(json.dumps(asdict(self)))
        return self

    @classmethod
    def read(cls, out: Path) -> Ran:
        return cls(**json.loads((out / RAN).read_text()))


def environment(work: Work) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": str(work.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def start(system: System, work: Work, venvs: Path, timeout_s: float, tick: Callable[[int], None]) -> Ran:
    """Trains to the end. `tick` is told the updates done so far. What keeps it from it is a sentence, in `Ran.why`."""
    out = Path(work.out)
    work_file = work.write()
    python = Path(sys.executable)
    if system.requirements:
        package = system.module.partition("_")[0]
        try:
            python = interpreter(venvs, package, system.requirements)
        except Skipped as sentence:
            return Ran(None, str(sentence)).write(out)
    words = [str(python), "-m", f"benchmarks.peers.{system.module}", str(work_file), *system.words]
    log = out / "output.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment(work), start_new_session=True
        )
    cpu = CpuTrace(process.pid)

    def look() -> None:
        cpu.look()
        tick(updates_so_far(out))

    try:
        with PssSampler(process.pid, max_share=MEMORY_SHARE) as memory:
            late = not _ended(process, timeout_s, look)
    finally:
        end_session(process)
    return Ran(
        round(memory.peak_gib, 3) or None, why(out, work, process.returncode, timeout_s if late else None), cpu.points
    ).write(out)


def updates_so_far(out: Path) -> int:
    """Updates done by a peer, or by ours, which writes metrics.jsonl as it goes."""
    metrics = out / "run" / "metrics.jsonl"
    return len(steps_of(out)) or (metrics.read_text().count('"wall_s"') if metrics.exists() else 0)


def _ended(process: subprocess.Popen, timeout_s: float, look: Callable[[], None]) -> bool:
    """Waits, looking now and then; False when the time is over."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            process.wait(LOOK_EVERY_S)
            return True
        except subprocess.TimeoutExpired:
            look()
    return False


def end_session(process: subprocess.Popen) -> None:
    """Ends what is left of the session that a process began: its sandboxes and workers with it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # nobody is left, as it should be
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def why(out: Path, work: Work, code: int, timeout_s: float | None) -> str | None:
    """The sentence that stands where figures are missing; what the system itself has said of it comes first."""
    done = steps_of(out)
    if done and done[-1].step == work.steps:
        return None
    reached = f"after {len(done)} of {work.steps} updates" if done else "before its first update"
    if timeout_s is not None:
        return f"{said(out)} Stopped {reached}: {timeout_s:g} s were over.".strip()
    return said(out) or f"It ended with {code} {reached}: {last_words(out / 'output.log')}"


def last_words(log: Path) -> str:
    lines = (
        [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    )
    return lines[-1][:400] if lines else "it said nothing"
