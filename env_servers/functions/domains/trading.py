"""Trading: an account, a watch list and orders."""

from __future__ import annotations

import random
from typing import Any, Literal

from ..tools import Domain, ToolError, tool

SYMBOLS = ("ACME", "GLOB", "INIT", "UMBR", "WAYN", "STRK")


class Trading(Domain):
    """state: `prices`, `cash`, `holdings` (symbol -> number), `watchlist`, `orders`."""

    name = "trading"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        prices = {s: rng.randint(5, 200) for s in SYMBOLS}
        holdings = {s: rng.randint(1, 20) for s in rng.sample(SYMBOLS, 2)}
        return {
            "prices": prices,
            "cash": rng.randint(10, 50) * 100,
            "holdings": holdings,
            "watchlist": rng.sample(SYMBOLS, 2),
            "orders": {},
        }

    def _price(self, symbol: str) -> float:
        if symbol not in self.state["prices"]:
            raise ToolError(f"There is no stock {symbol}.")
        return self.state["prices"][symbol]

    def _order(self, order_id: str) -> dict[str, Any]:
        if order_id not in self.state["orders"]:
            raise ToolError(f"There is no order {order_id}.")
        return self.state["orders"][order_id]

    @tool
    def stock_price(self, symbol: str) -> float:
        """Tell the price of a stock."""
        return self._price(symbol)

    @tool
    def list_stocks(self, max_price: float | None = None) -> list[str]:
        """List the stocks, those up to a price if one is given."""
        return [s for s, p in self.state["prices"].items() if max_price is None or p <= max_price]

    @tool
    def account_balance(self) -> float:
        """Tell the cash of the account."""
        return self.state["cash"]

    @tool
    def deposit(self, amount: float) -> float:
        """Pay cash into the account; tells the new balance."""
        if amount <= 0:
            raise ToolError("An amount is positive.")
        self.state["cash"] += amount
        return self.state["cash"]

    @tool
    def withdraw(self, amount: float) -> float:
        """Take cash out of the account; tells the new balance."""
        if not 0 < amount <= self.state["cash"]:
            raise ToolError(f"{amount} cannot be taken: the account has {self.state['cash']}.")
        self.state["cash"] -= amount
        return self.state["cash"]

    @tool
    def portfolio(self) -> dict[str, int]:
        """Tell how many of each stock are held."""
        return self.state["holdings"]

    @tool
    def watch(self, symbol: str) -> list[str]:
        """Put a stock on the watch list; tells the list."""
        self._price(symbol)
        if symbol in self.state["watchlist"]:
            raise ToolError(f"{symbol} is watched already.")
        self.state["watchlist"].append(symbol)
        return self.state["watchlist"]

    @tool
    def unwatch(self, symbol: str) -> list[str]:
        """Take a stock off the watch list; tells the list."""
        if symbol not in self.state["watchlist"]:
            raise ToolError(f"{symbol} is not watched.")
        self.state["watchlist"].remove(symbol)
        return self.state["watchlist"]

    @tool
    def list_watched(self) -> list[str]:
        """Tell the watch list."""
        return self.state["watchlist"]

    @tool
    def place_order(self, symbol: str, side: Literal["buy", "sell"], quantity: int) -> str:
        """Order a number of a stock at its price of now; tells the order's id. It is open until it is executed."""
        price = self._price(symbol)
        if quantity < 1:
            raise ToolError(f"{quantity} cannot be ordered.")
        number = f"O{len(self.state['orders']) + 1}"
        self.state["orders"][number] = {
            "symbol": symbol,
            "side": side,
            "quantity": quantity,
            "price": price,
            "status": "open",
        }
        return number

    @tool
    def execute_order(self, order_id: str) -> dict[str, Any]:
        """Execute an open order."""
        order = self._order(order_id)
        if order["status"] != "open":
            raise ToolError(f"{order_id} is {order['status']}.")
        cost = order["price"] * order["quantity"]
        owned = self.state["holdings"].get(order["symbol"], 0)
        if order["side"] == "buy":
            if cost > self.state["cash"]:
                raise ToolError(f"{order_id} costs {cost}, the account has {self.state['cash']}.")
            self.state["cash"] -= cost
            self.state["holdings"][order["symbol"]] = owned + order["quantity"]
        else:
            if order["quantity"] > owned:
                raise ToolError(f"{owned} of {order['symbol']} are held.")
            self.state["cash"] += cost
            self.state["holdings"][order["symbol"]] = owned - order["quantity"]
        order["status"] = "executed"
        return order

    @tool
    def cancel_order(self, order_id: str) -> None:
        """Cancel an open order."""
        order = self._order(order_id)
        if order["status"] != "open":
            raise ToolError(f"{order_id} is {order['status']}.")
        order["status"] = "cancelled"

    @tool
    def order_status(self, order_id: str) -> dict[str, Any]:
        """Tell what an order is and how it stands."""
        return self._order(order_id)
