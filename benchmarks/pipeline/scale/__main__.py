"""python -m benchmarks.pipeline.scale [--quick]: 64 engines and 32 learner ranks on one host, and their controller.

Every engine and rank has the remote methods of the real one. Real are Ray's session and calls, a reservation for each
engine, the fleet, its routing and heartbeats, the main loop, ledger and checkpoint, the publisher with digest, canary
and verdict on every engine, group runners and episodes, payloads of full size in the object store, and that every rank
reads every group. Emulated are decoding and tools (they sleep, in the actor's process), the model and the optimizer
(there are none), and what a push carries (64 KiB). Workload: openrlhf_tir/simulation/workload_seed.toml.

A process that holds nothing takes two CPU seconds and 80 MiB, so `--per-process` of them (8) share one (host.py); an
engine's death is then that its calls fail as those of a dead process do. With `--per-process 1` each is a Ray actor
that the product's own code starts, and the death is SIGKILL.

    start_s                      from nothing to all actors up; start_cpu_s is what that took of all cores, in CPU
                                 seconds
    controller_cpu_s_per_2048    the controller's CPU seconds for each 2,048 trajectories trained, heartbeats, pushes
                                 and Ray's threads included
    lost_groups_of_others        after one engine was killed in the middle: groups issued again that did not run on it
    audit_errors                 of the ledger, at the end

The last line is one JSON object. `--quick` is a smoke test with 4 engines and 2 ranks, in processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from benchmarks.command import command_parser
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload

from .run import Found, Wanted, measured


def facts(found: Found) -> dict[str, object]:
    loss = found.loss
    return {
        "start_s": round(found.start.all_s, 1),
        "start_ray_s": round(found.start.ray_s, 1),
        "start_cpu_s": round(found.start.cpu_s, 1),
        "start_controller_cpu_s": round(found.start.controller_cpu_s, 2),
        "controller_cpu_s_per_2048": round(found.controller_cpu_s_per_2048, 3),
        "controller_cpu_s_per_2048_by_step": [round(s, 3) for s in found.by_step],
        "step_s": round(found.step_s, 1),
        "live_trajectories": round(found.live),
        "push_s": round(found.push_s, 2),
        "lost_groups_running": loss.running,
        "lost_groups_again": loss.again,
        "lost_groups_of_others": loss.of_others,
        "lost_groups_missed": loss.missed,
        "lost_only_its_own": loss.only_its_own,
        "rejoined_s": found.rejoined_s and round(found.rejoined_s, 1),
        "requeued": loss.requeued,
        "trained_groups": loss.trained,
        "audit_errors": len(loss.errors),
        "processes_share": found.per_process,
        "peak_pss_gib": round(found.peak_pss_gib, 2),
        "load_average": round(os.getloadavg()[1], 1),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add(
        "--quick",
        action="store_true",
        help="4 engines, 2 ranks, batches of 16 x 8: a smoke test, of no value as a measurement",
    )
    add("--engines", type=int, default=64, help="(default: %(default)s)")
    add("--ranks", type=int, default=32, help="(default: %(default)s)")
    add("--steps", type=int, default=6, help="the first two are not counted (default: %(default)s)")
    add("--time-scale", type=float, default=0.5, help="wall-clock seconds of an emulated second (default: %(default)s)")
    add("--per-process", type=int, default=8, help="engines, or ranks, in one process (default: %(default)s)")
    args = parser.parse_args()
    if args.steps < 4:
        parser.error(
            f"--steps {args.steps} leaves no room for two warm-up steps and a death in the middle. Use at least 4."
        )
    w = Workload.read(SEED_WORKLOAD).with_batch(128, 16, engines=args.engines)
    wanted = Wanted(args.engines, args.ranks, args.steps, 2, args.steps // 2, args.time_scale, args.per_process)
    if args.quick:
        w, wanted = w.with_batch(16, 8, engines=4), Wanted(4, 2, args.steps, 2, args.steps // 2, 0.02)
    with tempfile.TemporaryDirectory(prefix="benchmark_scale_") as scratch:
        found = asyncio.run(measured(w, wanted, Path(scratch)))
    for error in found.loss.errors:
        print(f"audit: {error}")
    print(json.dumps(facts(found)))


if __name__ == "__main__":
    main()
