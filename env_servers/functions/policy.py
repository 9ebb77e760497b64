"""Help-desk tasks after tau-bench: a policy, a user with a wish, and what the database must look like afterwards.

Each scenario makes a user, the lines it says, the gold calls that the policy allows (none where it forbids the wish but
a hand-over), and what must be said. `Solver` plays an agent that knows the gold: a task that it does not solve in the
environment is none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from .domains.shop import ITEMS, Shop
from .task import FunctionTask

POLICY = """# Policy
You speak for a shop. Find the customer by full name before anything else, and deal with that customer's orders only.
- A pending order may be cancelled or sent to another address. A delivered one may not.
- An item of a delivered order may be returned, or exchanged for one in stock; of a pending order it may not.
- Never change an order of somebody else, and never give what the policy forbids: hand the customer over to a person, \
with the reason.
- Tell the amount in EUR of whatever becomes credit, or costs credit."""
FAREWELL = "Thank you, that is all."
Scenario = Callable[[dict[str, Any], random.Random], dict[str, Any] | None]


def _customer_order(state: dict[str, Any], rng: random.Random, status: str) -> tuple[str, str, dict[str, Any]]:
    """(full name, order id, order) of a random order of that status."""
    key = rng.choice([k for k, o in state["orders"].items() if o["status"] == status])
    order = state["orders"][key]
    return state["customers"][order["customer"]]["name"], key, order


def _task(name: str, wish: str, calls: list[tuple[str, dict[str, Any]]], outputs: list[str]) -> dict[str, Any]:
    lines = [{"text": f"My name is {name}.", "when": ["name", "who"]}, {"text": FAREWELL}]
    gold = [{"name": n, "arguments": a} for n, a in [("find_customer", {"name": name}), *calls]]
    instruction = f"You are {name}. {wish} Say your name when you are asked. You know nothing else."
    return {"wish": wish, "user": lines, "gold": [gold], "outputs": outputs, "instruction": instruction}


def cancel_pending(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, key, order = _customer_order(state, rng, "pending")
    price = sum(ITEMS[i] for i in order["items"])
    return _task(name, f"I want to cancel order {key}.", [("cancel_purchase", {"order_id": key})], [str(price)])


def cancel_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, key, _ = _customer_order(state, rng, "delivered")
    return _task(
        name,
        f"I want to cancel order {key}, which has come.",
        [("transfer_to_person", {"reason": f"{key} is delivered"})],
        [],
    )


def new_address(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, key, _ = _customer_order(state, rng, "pending")
    address = f"{rng.randint(1, 99)} Elm Road"
    return _task(
        name, f"Please send order {key} to {address}.", [("change_address", {"order_id": key, "address": address})], []
    )


def return_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    return _task(
        name,
        f"I want to give back the {item} of order {key}.",
        [("return_item", {"order_id": key, "item": item})],
        [str(ITEMS[item])],
    )


def return_pending(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, key, order = _customer_order(state, rng, "pending")
    item = rng.choice(order["items"])
    wish = f"I want to give back the {item} of order {key}."
    return _task(name, wish, [("transfer_to_person", {"reason": f"{key} is pending"})], [])


def exchange_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any] | None:
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    credit = state["customers"][order["customer"]]["credit"]
    fitting = [
        n for n, p in ITEMS.items() if n not in order["items"] and state["stock"][n] and p - ITEMS[item] <= credit
    ]
    if not fitting:
        return None
    new = rng.choice(fitting)
    wish = f"I want to exchange the {item} of order {key} for a {new}."
    return _task(
        name,
        wish,
        [("exchange_item", {"order_id": key, "item": item, "new_item": new})],
        [str(abs(ITEMS[new] - ITEMS[item]))],
    )


def exchange_out_of_stock(state: dict[str, Any], rng: random.Random) -> dict[str, Any] | None:
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    gone = [n for n in ITEMS if not state["stock"][n]]
    if not gone:
        return None
    new = rng.choice(gone)
    wish = f"I want to exchange the {item} of order {key} for a {new}."
    return _task(name, wish, [("transfer_to_person", {"reason": f"{new} is out of stock"})], [])


def somebody_elses(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    name, _, own = _customer_order(state, rng, "pending")
    others = [k for k, o in state["orders"].items() if o["customer"] != own["customer"] and o["status"] == "pending"]
    key = rng.choice(others)
    return _task(
        name,
        f"I want to cancel order {key}.",
        [("transfer_to_person", {"reason": f"{key} belongs to somebody else"})],
        [],
    )


SCENARIOS: tuple[Scenario, ...] = (
    cancel_pending,
    cancel_delivered,
    new_address,
    return_delivered,
    return_pending,
    exchange_delivered,
    exchange_out_of_stock,
    somebody_elses,
)


def policy_task(index: int, seed: int = 0) -> tuple[str, FunctionTask]:
    """(the user's first words, the task) number `index`; scenarios take turns."""
    scenario = SCENARIOS[index % len(SCENARIOS)]
    rng = random.Random(f"policy {seed} {index}")
    while True:
        state = Shop.initial(rng)
        made = scenario(state, rng)
        if made is not None:
            break
    wish = made.pop("wish")
    task = FunctionTask.model_validate({"domains": ["shop"], "state": {"shop": state}, "check": "end", **made})
    task.run_gold(task.world())
    return wish, task


def policy_rows(seed: int, count: int) -> Iterator[tuple[str, FunctionTask, str, str]]:
    """(the user's first words, the task, the policy, the scenario)."""
    for i in range(count):
        yield (*policy_task(i, seed), POLICY, SCENARIOS[i % len(SCENARIOS)].__name__)


class Solver:
    """The agent that knows: asks the name, makes the gold calls one by one, says what must be. Its actions in order."""

    def __init__(self, task: FunctionTask) -> None:
        calls = [json.dumps([c.model_dump()]) for c in task.gold[0]]
        closing = " ".join(["That is done.", *(f"{o} EUR." for o in task.outputs)])
        self.actions = [
            json.dumps({"message": "What is your name?"}),
            *calls,
            json.dumps({"message": closing}),
            json.dumps({"message": "Goodbye."}),
        ]
