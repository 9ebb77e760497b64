"""python -m env_servers.functions.make_tasks: write rows of function-calling tasks, seeded, each verified by carrying
out its gold calls.

    plain              everything is said and offered
    missing_function   a function that the task needs is offered only after the model has said that it cannot (BFCL v3)
    missing_parameter  a value is told only when the model asks for it (BFCL v3)

Difficulty: --calls (goals that follow each other), --domains (how many at once) and --distractors (more functions)."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

from env_servers.flags import file_to_write, whole

from .domains import DOMAINS
from .goals import GOALS, Goal
from .grade import run
from .policy import policy_rows
from .task import FunctionTask
from .tools import Domain, World

VARIANTS = ("plain", "missing_function", "missing_parameter")
NOW_OFFERED = "This function is offered from now on:"
INSTRUCTIONS = {
    "tool": (
        'Think inside <reasoning></reasoning>, then call functions inside <tool></tool> as a JSON list: <tool>[{"name":'
        ' "f", "arguments": {}}]</tool>. Results come inside <tool_result></tool_result>. When you are done, say so'
        " without a call."
    ),
    "hermes": (
        'Call a function with <tool_call>{"name": "f", "arguments": {}}</tool_call>; its result comes inside'
        " <tool_response></tool_response>. When you are done, say so without a call."
    ),
    "": "",
    "messages": "",
}
"""How the prompt says calls are written, by turn protocol; "" for a chat template that says it. For messages that
template is told the row's functions too (meta.chat_tools), and what is a policy is the system message."""


def chain(domains: list[Domain], count: int, rng: random.Random) -> list[Goal]:
    """`count` goals, each possible after the ones before it, carried out on `domains`."""
    goals: list[Goal] = []
    while len(goals) < count:
        domain = rng.choice(domains)
        goal = rng.choice(GOALS[domain.name])(domain.state, rng)
        if goal is None:
            continue
        world = World([domain])
        if not any(run(world, name, arguments).error for name, arguments in goal.calls):
            goals.append(goal)
    return goals


def make_task(
    seed: int, *, domains: int, calls: tuple[int, int], distractors: int, variant: str
) -> tuple[str, FunctionTask]:
    """(the user's first words, the task). The same arguments give the same task. Raises ValueError if its gold cannot
    be carried out."""
    rng = random.Random(f"functions {seed} {domains} {calls} {distractors} {variant}")
    names = rng.sample(sorted(GOALS), domains)
    states = {n: DOMAINS[n].initial(rng) for n in names}
    while True:
        goals = chain([DOMAINS[n](states[n]) for n in names], rng.randint(*calls), rng)
        if variant != "missing_parameter" or goals[-1].missing:
            break
    steps = [n for g in goals for n in g.calls]
    last = goals[-1].calls
    needed = {name for name, _ in steps}
    others = [f for n in names for f in DOMAINS[n].tools() if f not in needed]
    hidden = set(others) - set(rng.sample(others, min(distractors, len(others))))
    text = " ".join(g.text for g in goals)
    gold = [steps]
    user: list[dict[str, Any]] = []
    if variant == "missing_parameter" and goals[-1].missing:
        asked, told = goals[-1].missing
        text = " ".join([*(g.text for g in goals[:-1]), asked])
        user = [{"text": told}]
        gold = [steps[: len(steps) - len(last)], last]
    elif variant == "missing_function":
        late = rng.choice(
            sorted({name for name, _ in last} - {name for name, _ in steps[: len(steps) - len(last)]}) or [last[-1][0]]
        )
        before = next(i for i, (name, _) in enumerate(steps) if name == late)
        hidden.add(late)
        user = [{"text": NOW_OFFERED, "reveal": [late]}]
        gold = [steps[:before], steps[before:]]
    task = FunctionTask.model_validate(
        {
            "domains": names,
            "state": states,
            "gold": [[{"name": n, "arguments": a} for n, a in turn] for turn in gold],
            "hidden": sorted(hidden),
            "user": user,
        }
    )
    task.run_gold(task.world())
    return text, task


def row(text: str, task: FunctionTask, protocol: str, policy: str = "", kind: str = "") -> dict[str, Any]:
    """prompt (functions and the user's words), label (the gold calls), meta (what the environment is told), env."""
    schemas = list(task.world().offered())
    meta = task.model_dump(exclude_defaults=True) | ({"kind": kind} if kind else {})
    label = json.dumps([c.model_dump() for turn in task.gold for c in turn], ensure_ascii=False)
    if protocol == "messages":
        messages = [*([{"role": "system", "content": policy}] if policy else []), {"role": "user", "content": text}]
        meta["chat_tools"] = [{"type": "function", "function": s} for s in schemas]
        return {"prompt": messages, "label": label, "env": "functions", "meta": meta}
    parts = [
        policy,
        "# Functions",
        *(json.dumps(s, ensure_ascii=False) for s in schemas),
        INSTRUCTIONS[protocol],
        "# User",
        text,
    ]
    return {"prompt": "\n".join(p for p in parts if p), "label": label, "env": "functions", "meta": meta}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if args.policy:
        for text, task, policy, scenario in policy_rows(args.seed, args.count):
            yield row(text, task, args.protocol, policy, scenario)
        return
    for i in range(args.count):
        variant = args.variants[i % len(args.variants)]
        text, task = make_task(
            args.seed + i, domains=args.domains, calls=tuple(args.calls), distractors=args.distractors, variant=variant
        )
        yield row(text, task, args.protocol)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(
        prog="python -m env_servers.functions.make_tasks", description=__doc__, formatter_class=raw
    )
    p.add_argument("--count", type=whole(1), default=100, help="rows (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of the first row; row i has seed + i (default: %(default)s)")
    p.add_argument(
        "--domains", type=int, default=1, choices=range(1, len(GOALS) + 1), help="at once (default: %(default)s)"
    )
    p.add_argument(
        "--calls", type=whole(1), nargs=2, default=(1, 3), metavar=("MIN", "MAX"), help="goals of a task (default: 1 3)"
    )
    p.add_argument(
        "--distractors",
        type=whole(0),
        default=4,
        help="functions that are offered and not needed (default: %(default)s)",
    )
    p.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["plain"], help="they take turns (default: plain)"
    )
    p.add_argument(
        "--policy",
        action="store_true",
        help="the help desk's tasks instead (see env_servers/functions/policy.py); --count of them",
    )
    p.add_argument(
        "--protocol",
        choices=sorted(INSTRUCTIONS),
        default="tool",
        help="how the prompt says calls are written (default: %(default)s)",
    )
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    args = p.parse_args()
    if args.calls[0] > args.calls[1]:
        p.error(f"--calls {args.calls[0]} {args.calls[1]}: the first is the lower one.")
    with args.out.open("w", encoding="utf-8") as f:
        f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in rows(args))
    print(f"{args.out}: {args.count} rows, each verified by carrying out its gold calls")


if __name__ == "__main__":
    main()
