"""python -m env_servers.swe: serve repositories with a bug to fix with bash and an editor, judged by hidden tests.

Tasks come from the rows (`python -m env_servers.swe.make_tasks`, or SWE-Gym's own with --mirror). With --runtime-api or
--docker each session of such a row is a container of the row's image. Otherwise each session has its copy of a
repository in its own sandbox (bubblewrap, no network, bounded in memory, processes and files); its patch is applied to
a fresh copy, on which hidden tests run in other sandboxes. A server that cannot isolate refuses to start.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys

from env_servers.flags import command_parser, directory_to_read, seconds, whole
from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.python_tir.__main__ import memory_mib
from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.warm.notebooks import NEW_BYTES
from env_servers.python_tir.warm.sandbox import WarmSandbox
from env_servers.serving import create_env_app

from .env import ACTION, LIMITS, MARGIN_S, MAX_TURNS, Shared, SweEnv
from .remote.flags import add_runtime_flags, remote_of
from .stages import Stages
from .start import START_WORKERS, proved_sandbox, shared
from .tools import TOOLS

EXAMPLE = """
example:
  python -m env_servers.swe.make_tasks --count 3 --out tasks.jsonl
  python -m env_servers.swe --port 8600 &
  curl -s localhost:8600/reset -H 'content-type: application/json' -d '{"session_id": "s1", "task": {"repo": "roman"}}'
  curl -s localhost:8600/step -H 'content-type: application/json' -d '{"session_id": "s1", "step_id": 0,
      "deadline_s": 60,
      "action": "[{\\"name\\": \\"execute_bash\\", \\"arguments\\": {\\"command\\": \\"python -m pytest -q\\"}}]"}'
  -> {"observation": "... 6 passed ...", "signals": {"turn": 1, "error_type": null}, ...}
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.swe", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument(
        "--mirror",
        type=directory_to_read,
        metavar="DIR",
        help="directory of git repositories for rows of SWE-Gym's and SWE-bench's form:"
        " DIR/owner/name, DIR/owner__name or DIR/name",
    )
    p.add_argument(
        "--max-turns",
        type=whole(1),
        default=MAX_TURNS,
        metavar="N",
        help="steps of a session; the last is graded (default: %(default)s)",
    )
    p.add_argument(
        "--command-timeout",
        type=seconds,
        default=LIMITS.code_timeout_s - MARGIN_S,
        metavar="S",
        help="seconds after which the model reads that a command is still running (default: %(default)s)",
    )
    p.add_argument(
        "--test-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="wall clock of the hidden tests of one patch (default: %(default)s)",
    )
    p.add_argument(
        "--memory-mib",
        type=whole(64),
        default=LIMITS.memory_bytes >> 20,
        metavar="N",
        help="memory of one session, and of one test run (default: %(default)s)",
    )
    p.add_argument(
        "--files-mib",
        type=whole(1),
        default=LIMITS.file_bytes >> 20,
        metavar="N",
        help="files of one session (default: %(default)s)",
    )
    p.add_argument(
        "--start-workers",
        type=whole(1),
        default=START_WORKERS,
        metavar="N",
        help="sessions that start at once; more wait, --max-queue of them at most (default: %(default)s)",
    )
    p.add_argument(
        "--start-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds in which a session must start, its wait for a start worker included;"
        " three times a run's env.step_timeout_s must be longer (default: %(default)s)",
    )
    p.add_argument(
        "--evaluate-workers",
        "--evaluations",
        type=whole(1),
        metavar="N",
        help="patches judged at once, beside the --workers steps that run; more wait (default: --workers)",
    )
    p.add_argument(
        "--sessions-mib",
        type=whole(NEW_BYTES >> 20),
        default=memory_mib() // 2,
        metavar="N",
        help="memory of all sessions together, beyond which no new one starts (default: half of the memory there is,"
        " %(default)s)",
    )
    add_runtime_flags(p)
    return p


def local(args: argparse.Namespace, evaluations: int, stages: Stages) -> tuple[Shared, WarmSandbox]:
    """Return what sessions in sandboxes of this machine share, and the sandbox. Exits if there can be none."""
    limits = dataclasses.replace(
        LIMITS,
        code_timeout_s=args.command_timeout + MARGIN_S,
        memory_bytes=args.memory_mib << 20,
        file_bytes=args.files_mib << 20,
    )
    try:
        sandbox = proved_sandbox(limits, evaluations=evaluations, mirror=args.mirror)
    except SandboxError as e:
        sys.exit(f"swe does not start: {e}")
    shared_state = shared(
        sandbox,
        evaluations=evaluations,
        command_s=args.command_timeout,
        test_s=args.test_timeout,
        max_turns=args.max_turns,
        mirror=args.mirror,
        sessions=args.max_sessions,
        memory=args.sessions_mib << 20,
        stages=stages,
        start_s=args.start_timeout,
    )
    return shared_state, sandbox


def main() -> None:
    """Start the server."""
    args = parser().parse_args()
    evaluations = args.evaluate_workers or args.workers
    run_copies(args)
    stages = Stages(start=args.start_workers, evaluate=evaluations, max_waiting_starts=args.max_queue)
    if args.runtime_api or args.docker:
        remote = remote_of(args, args.start_timeout)
        shared_state = Shared(remote, stages, args.command_timeout, args.max_turns, args.start_timeout)
        isolation = "container"
        on_stop = remote.close
    else:
        shared_state, sandbox = local(args, evaluations, stages)
        isolation = sandbox.isolation
        on_stop = sandbox.close
    reset_s = args.start_timeout + MARGIN_S
    config = serving_config(
        args, env="swe", action=ACTION, isolation=isolation, stateful=True, tools=TOOLS, reset_timeout_s=reset_s
    )
    gauges = {**shared_state.backend.gauges, **shared_state.stages.gauges}
    serve(create_env_app(functools.partial(SweEnv, shared_state), config, on_stop=on_stop, gauges=gauges), args)


if __name__ == "__main__":
    main()
