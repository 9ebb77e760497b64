"""A shop's help desk: customers, orders, and a policy of what may be done. The model is the shop (see `policy`)."""

from __future__ import annotations

import random
from typing import Any

from ..tools import Domain, ToolError, tool

ITEMS = {"lamp": 40, "chair": 90, "desk": 220, "kettle": 30, "radio": 60, "clock": 25, "mirror": 75, "rug": 110}
NAMES = ("Ada Moss", "Ben Hale", "Cleo Park", "Dan Frost", "Eva Stone", "Finn Reed", "Gus Lane", "Hana Cole")


class Shop(Domain):
    """State: `customers` (id -> name, address, credit), `orders` (id -> customer, items, status, address), `stock`,
    `transferred`."""

    name = "shop"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        names = rng.sample(NAMES, 4)
        customers = {
            f"C{i}": {"name": n, "address": f"{rng.randint(1, 99)} Oak Street", "credit": rng.choice([0, 50])}
            for i, n in enumerate(names, 1)
        }
        orders = {}
        for i in range(1, 9):
            orders[f"R{i}"] = {
                "customer": f"C{(i - 1) % 4 + 1}",
                "items": rng.sample(list(ITEMS), rng.randint(1, 2)),
                "status": "pending" if i <= 4 else "delivered",
                "address": customers[f"C{(i - 1) % 4 + 1}"]["address"],
            }
        stock = {item: rng.randint(0, 5) for item in ITEMS}
        return {"customers": customers, "orders": orders, "stock": stock, "transferred": False}

    def _order(self, order_id: str) -> dict[str, Any]:
        if order_id not in self.state["orders"]:
            raise ToolError(f"There is no order {order_id}.")
        return self.state["orders"][order_id]

    def _customer(self, customer_id: str) -> dict[str, Any]:
        if customer_id not in self.state["customers"]:
            raise ToolError(f"There is no customer {customer_id}.")
        return self.state["customers"][customer_id]

    @tool
    def find_customer(self, name: str) -> str:
        """Tell the id of the customer with a full name."""
        for key, customer in self.state["customers"].items():
            if customer["name"] == name:
                return key
        raise ToolError(f"There is no customer {name!r}.")

    @tool
    def customer_details(self, customer_id: str) -> dict[str, Any]:
        """Tell name, address, credit and orders of a customer."""
        orders = [k for k, o in self.state["orders"].items() if o["customer"] == customer_id]
        return {**self._customer(customer_id), "orders": orders}

    @tool
    def order_details(self, order_id: str) -> dict[str, Any]:
        """Tell what an order holds, its status and where it goes."""
        return self._order(order_id)

    @tool
    def item_price(self, item: str) -> int:
        """Tell the price of an item in EUR."""
        if item not in ITEMS:
            raise ToolError(f"There is no item {item!r}.")
        return ITEMS[item]

    @tool
    def item_stock(self, item: str) -> int:
        """Tell how many of an item are in stock."""
        self.item_price(item)
        return self.state["stock"][item]

    @tool
    def cancel_purchase(self, order_id: str) -> int:
        """Cancel an order; its price becomes the customer's credit. Tells the price."""
        order = self._order(order_id)
        if order["status"] == "cancelled":
            raise ToolError(f"{order_id} is cancelled already.")
        price = sum(ITEMS[i] for i in order["items"])
        order["status"] = "cancelled"
        self._customer(order["customer"])["credit"] += price
        return price

    @tool
    def return_item(self, order_id: str, item: str) -> int:
        """Take an item of an order back; its price becomes the customer's credit. Tells the price."""
        order = self._order(order_id)
        if item not in order["items"]:
            raise ToolError(f"{order_id} holds no {item}.")
        order["items"].remove(item)
        self.state["stock"][item] += 1
        self._customer(order["customer"])["credit"] += ITEMS[item]
        return ITEMS[item]

    @tool
    def exchange_item(self, order_id: str, item: str, new_item: str) -> int:
        """Exchange an item for one in stock; the difference is taken from, or becomes, credit. Tells the difference."""
        order = self._order(order_id)
        if item not in order["items"]:
            raise ToolError(f"{order_id} holds no {item}.")
        if not self.item_stock(new_item):
            raise ToolError(f"{new_item} is out of stock.")
        difference = ITEMS[new_item] - ITEMS[item]
        customer = self._customer(order["customer"])
        if customer["credit"] < difference:
            raise ToolError(
                f"{customer['name']} has {customer['credit']} EUR of credit, the difference is {difference}."
            )
        order["items"][order["items"].index(item)] = new_item
        self.state["stock"][new_item] -= 1
        self.state["stock"][item] += 1
        customer["credit"] -= difference
        return difference

    @tool
    def change_address(self, order_id: str, address: str) -> None:
        """Send an order to another address."""
        self._order(order_id)["address"] = address

    @tool
    def transfer_to_person(self, reason: str) -> None:
        """Hand the customer over to a person, for what must not be done here."""
        self.state["transferred"] = True
