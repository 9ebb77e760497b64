"""Help-desk tasks after tau-bench: a policy, a user with a wish, and what the database must look like afterwards.

A scenario makes a user, the lines that it says, the gold calls that the policy allows, and what the model must say. If
the policy forbids the wish, the only gold call is a transfer to a person.
"""

from __future__ import annotations

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
"""Last line of the user."""
Scenario = Callable[[dict[str, Any], random.Random], dict[str, Any] | None]
"""Returns the fields of a task for a state of the shop; None if the state does not allow it."""


def _customer_order(state: dict[str, Any], rng: random.Random, status: str) -> tuple[str, str, dict[str, Any]]:
    """Return the customer's full name, the order id and the order, for a random order with a status."""
    key = rng.choice([order_id for order_id, order in state["orders"].items() if order["status"] == status])
    order = state["orders"][key]
    return state["customers"][order["customer"]]["name"], key, order


def _task(name: str, wish: str, calls: list[tuple[str, dict[str, Any]]], outputs: list[str]) -> dict[str, Any]:
    """Return the fields of a task of the customer `name`.

    Args:
        name: Full name of the customer.
        wish: What the customer wants.
        calls: The gold calls after the customer was found.
        outputs: Texts that the model must say.
    """
    lines = [{"text": f"My name is {name}.", "when": ["name", "who"]}, {"text": FAREWELL}]
    gold = [{"name": n, "arguments": a} for n, a in [("find_customer", {"name": name}), *calls]]
    instruction = f"You are {name}. {wish} Say your name when you are asked. You know nothing else."
    return {"wish": wish, "user": lines, "gold": [gold], "outputs": outputs, "instruction": instruction}


def cancel_pending(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer cancels a pending order, which is allowed."""
    name, key, order = _customer_order(state, rng, "pending")
    price = sum(ITEMS[i] for i in order["items"])
    return _task(name, f"I want to cancel order {key}.", [("cancel_purchase", {"order_id": key})], [str(price)])


def cancel_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer wants to cancel a delivered order, which is forbidden."""
    name, key, _ = _customer_order(state, rng, "delivered")
    return _task(
        name,
        f"I want to cancel order {key}, which has come.",
        [("transfer_to_person", {"reason": f"{key} is delivered"})],
        [],
    )


def new_address(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer has a pending order sent to another address, which is allowed."""
    name, key, _ = _customer_order(state, rng, "pending")
    address = f"{rng.randint(1, 99)} Elm Road"
    return _task(
        name, f"Please send order {key} to {address}.", [("change_address", {"order_id": key, "address": address})], []
    )


def return_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer returns an item of a delivered order, which is allowed."""
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    return _task(
        name,
        f"I want to give back the {item} of order {key}.",
        [("return_item", {"order_id": key, "item": item})],
        [str(ITEMS[item])],
    )


def return_pending(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer wants to return an item of a pending order, which is forbidden."""
    name, key, order = _customer_order(state, rng, "pending")
    item = rng.choice(order["items"])
    wish = f"I want to give back the {item} of order {key}."
    return _task(name, wish, [("transfer_to_person", {"reason": f"{key} is pending"})], [])


def exchange_delivered(state: dict[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """The customer exchanges an item of a delivered order for one in stock, which is allowed."""
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    credit = state["customers"][order["customer"]]["credit"]
    affordable = [
        name
        for name, price in ITEMS.items()
        if name not in order["items"] and state["stock"][name] and price - ITEMS[item] <= credit
    ]
    if not affordable:
        return None
    new = rng.choice(affordable)
    wish = f"I want to exchange the {item} of order {key} for a {new}."
    return _task(
        name,
        wish,
        [("exchange_item", {"order_id": key, "item": item, "new_item": new})],
        [str(abs(ITEMS[new] - ITEMS[item]))],
    )


def exchange_out_of_stock(state: dict[str, Any], rng: random.Random) -> dict[str, Any] | None:
    """The customer wants to exchange an item for one that is out of stock, which is forbidden."""
    name, key, order = _customer_order(state, rng, "delivered")
    item = rng.choice(order["items"])
    out_of_stock = [n for n in ITEMS if not state["stock"][n]]
    if not out_of_stock:
        return None
    new = rng.choice(out_of_stock)
    wish = f"I want to exchange the {item} of order {key} for a {new}."
    return _task(name, wish, [("transfer_to_person", {"reason": f"{new} is out of stock"})], [])


def somebody_elses(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The customer wants to cancel the order of another customer, which is forbidden."""
    name, _, own_order = _customer_order(state, rng, "pending")
    others = [
        k for k, o in state["orders"].items() if o["customer"] != own_order["customer"] and o["status"] == "pending"
    ]
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
    """Return the user's first words and the task with number `index`. The scenarios take turns."""
    scenario = SCENARIOS[index % len(SCENARIOS)]
    rng = random.Random(f"policy {seed} {index}")
    while True:
        state = Shop.initial(rng)
        fields = scenario(state, rng)
        if fields is not None:
            break
    wish = fields.pop("wish")
    task = FunctionTask.model_validate({"domains": ["shop"], "state": {"shop": state}, "check": "end", **fields})
    task.run_gold(task.world())
    return wish, task


def policy_rows(seed: int, count: int) -> Iterator[tuple[str, FunctionTask, str, str]]:
    """Yield the user's first words, the task, the policy and the name of the scenario."""
    for i in range(count):
        yield (*policy_task(i, seed), POLICY, SCENARIOS[i % len(SCENARIOS)].__name__)
