"""python -m env_servers.functions.make_tasks: write rows of function-calling tasks, each verified by its gold calls.

    plain              everything is said and offered
    missing_function   a function that the task needs is offered only after the model has said that it cannot (BFCL v3)
    missing_parameter  a value is given only when the model asks for it (BFCL v3)

Difficulty: --calls (goals that follow each other), --domains (how many at once) and --distractors (more functions). The
same --seed gives the same rows.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

from env_servers.flags import command_parser, file_to_write, whole
from env_servers.task_rows import write_rows

from .domains import DOMAINS
from .goals import GOALS, Goal
from .grade import run
from .policy import policy_rows
from .task import FunctionTask
from .tools import Domain, World

VARIANTS = ("plain", "missing_function", "missing_parameter")
NOW_OFFERED = "This function is offered from now on:"
"""What the user says when a missing function is offered."""
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
"""How the prompt explains calls, by turn protocol; "" if the chat template explains them. With "messages" the template
also gets the row's functions (meta.chat_tools), and a policy is the system message."""


def chain(domains: list[Domain], count: int, rng: random.Random) -> list[Goal]:
    """Return `count` goals, each possible after the ones before it. They are carried out on `domains`."""
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
    """Return the user's first words and the task. The same arguments give the same task.

    Args:
        seed: Seed of everything random.
        domains: Number of domains.
        calls: Smallest and largest number of goals.
        distractors: Number of functions that are offered and not needed.
        variant: One of VARIANTS.

    Raises:
        ValueError: The gold calls cannot be carried out.
    """
    rng = random.Random(f"functions {seed} {domains} {calls} {distractors} {variant}")
    names = rng.sample(sorted(GOALS), domains)
    states = {name: DOMAINS[name].initial(rng) for name in names}
    while True:
        goals = chain([DOMAINS[name](states[name]) for name in names], rng.randint(*calls), rng)
        if variant != "missing_parameter" or goals[-1].missing:
            break
    steps = [call for goal in goals for call in goal.calls]
    last = goals[-1].calls
    earlier = steps[: len(steps) - len(last)]
    needed = {name for name, _ in steps}
    others = [function for name in names for function in DOMAINS[name].tools() if function not in needed]
    hidden = set(others) - set(rng.sample(others, min(distractors, len(others))))
    text = " ".join(goal.text for goal in goals)
    gold = [steps]
    user: list[dict[str, Any]] = []
    if variant == "missing_parameter" and goals[-1].missing:
        incomplete_wish, answer = goals[-1].missing
        text = " ".join([*(goal.text for goal in goals[:-1]), incomplete_wish])
        user = [{"text": answer}]
        gold = [earlier, last]
    elif variant == "missing_function":
        # preferably a function that only the last goal needs
        candidates = sorted({name for name, _ in last} - {name for name, _ in earlier})
        late = rng.choice(candidates or [last[-1][0]])
        first_use = next(i for i, (name, _) in enumerate(steps) if name == late)
        hidden.add(late)
        user = [{"text": NOW_OFFERED, "reveal": [late]}]
        gold = [steps[:first_use], steps[first_use:]]
    task = FunctionTask.model_validate(
        {
            "domains": names,
            "state": states,
            "gold": [[{"name": name, "arguments": arguments} for name, arguments in turn] for turn in gold],
            "hidden": sorted(hidden),
            "user": user,
        }
    )
    task.run_gold(task.world())
    return text, task


def row(text: str, task: FunctionTask, protocol: str, policy: str = "", kind: str = "") -> dict[str, Any]:
    """Return the row of a task.

    Args:
        text: The user's first words.
        task: The task.
        protocol: A turn protocol of INSTRUCTIONS.
        policy: A policy that comes before everything else.
        kind: If given, the `kind` in the row's meta.

    Returns:
        `prompt` (functions and the user's words), `label` (the gold calls), `meta` (what the environment gets) and
        `env`.
    """
    schemas = list(task.world().offered())
    meta = task.model_dump(exclude_defaults=True)
    if kind:
        meta["kind"] = kind
    label = json.dumps([call.model_dump() for turn in task.gold for call in turn], ensure_ascii=False)
    if protocol == "messages":
        messages = [{"role": "user", "content": text}]
        if policy:
            messages.insert(0, {"role": "system", "content": policy})
        meta["chat_tools"] = [{"type": "function", "function": schema} for schema in schemas]
        return {"prompt": messages, "label": label, "env": "functions", "meta": meta}
    parts = [
        policy,
        "# Functions",
        *(json.dumps(schema, ensure_ascii=False) for schema in schemas),
        INSTRUCTIONS[protocol],
        "# User",
        text,
    ]
    return {"prompt": "\n".join(part for part in parts if part), "label": label, "env": "functions", "meta": meta}


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the rows that the flags describe."""
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
    """Write the rows to a file."""
    p = command_parser("env_servers.functions.make_tasks", __doc__)
    p.add_argument("--count", type=whole(1), default=100, help="rows (default: %(default)s)")
    p.add_argument(
        "--seed", type=int, default=0, help="seed of the first row; row i has seed + i (default: %(default)s)"
    )
    p.add_argument(
        "--domains",
        type=int,
        default=1,
        choices=range(1, len(GOALS) + 1),
        help="domains of one task (default: %(default)s)",
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
        "--variants", nargs="+", choices=VARIANTS, default=["plain"], help="variants, in turn (default: plain)"
    )
    p.add_argument(
        "--policy",
        action="store_true",
        help="write --count tasks of the help desk instead (see env_servers/functions/policy.py)",
    )
    p.add_argument(
        "--protocol",
        choices=sorted(INSTRUCTIONS),
        default="tool",
        help="turn protocol in which the prompt explains calls (default: %(default)s)",
    )
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    args = p.parse_args()
    if args.calls[0] > args.calls[1]:
        p.error(f"--calls {args.calls[0]} {args.calls[1]}: the first is the lower one.")
    write_rows(args.out, rows(args), ", each verified by carrying out its gold calls")


if __name__ == "__main__":
    main()
