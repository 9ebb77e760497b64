"""Travel: flights, hotels, cards and a budget."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

from ..tools import Domain, ToolError, tool

CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo")
RATES = {"EUR": 1.0, "USD": 1.25, "GBP": 0.8, "JPY": 160.0}


class Travel(Domain):
    """State: `flights`, `hotels`, `cards` (number -> balance in EUR), `bookings`, `budget` (EUR, or null)."""

    name = "travel"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        flights = {}
        for i in range(8):
            a, b = rng.sample(CITIES, 2)
            flights[f"F{100 + i}"] = {
                "origin": a,
                "destination": b,
                "date": f"2030-05-{rng.randint(1, 9):02d}",
                "price": rng.randint(5, 40) * 10,
            }
        hotels = {
            f"H{i}": {"city": c, "price": rng.randint(4, 20) * 10, "stars": rng.randint(2, 5)}
            for i, c in enumerate(CITIES)
        }
        return {
            "flights": flights,
            "hotels": hotels,
            "cards": {"4242": 2000, "7777": rng.randint(1, 9) * 100},
            "bookings": {},
            "budget": None,
        }

    def _booking(self, booking_id: str) -> dict[str, Any]:
        if booking_id not in self.state["bookings"]:
            raise ToolError(f"There is no booking {booking_id}.")
        return self.state["bookings"][booking_id]

    def _pay(self, card: str, price: float) -> None:
        if card not in self.state["cards"]:
            raise ToolError(f"There is no card {card}.")
        if self.state["cards"][card] < price:
            raise ToolError(f"Card {card} has {self.state['cards'][card]} EUR, the price is {price}.")
        spent = sum(b["price"] for b in self.state["bookings"].values())
        if self.state["budget"] is not None and spent + price > self.state["budget"]:
            raise ToolError(f"{spent + price} EUR are more than the budget of {self.state['budget']}.")
        self.state["cards"][card] -= price

    def _book(self, booking: dict[str, Any]) -> str:
        bookings = self.state["bookings"]
        # counted on, since the id of a booking behind a cancelled one is in use
        number = next(number for i in count(len(bookings) + 1) if (number := f"B{i}") not in bookings)
        bookings[number] = booking
        return number

    @tool
    def search_flights(self, origin: str, destination: str) -> list[dict[str, Any]]:
        """List the flights between two cities, the cheapest first."""
        flights = [
            {"flight_id": k, **f}
            for k, f in self.state["flights"].items()
            if (f["origin"], f["destination"]) == (origin, destination)
        ]
        return sorted(flights, key=lambda f: (f["price"], f["flight_id"]))

    @tool
    def flight_details(self, flight_id: str) -> dict[str, Any]:
        """Tell route, date and price (EUR) of a flight."""
        if flight_id not in self.state["flights"]:
            raise ToolError(f"There is no flight {flight_id}.")
        return self.state["flights"][flight_id]

    @tool
    def book_flight(self, flight_id: str, passenger: str, card: str) -> str:
        """Book a flight and pay by card; tells the booking's id."""
        price = self.flight_details(flight_id)["price"]
        self._pay(card, price)
        return self._book(
            {"kind": "flight", "item": flight_id, "name": passenger, "card": card, "price": price, "insured": False}
        )

    @tool
    def search_hotels(self, city: str, min_stars: int = 0) -> list[dict[str, Any]]:
        """List the hotels of a city with at least so many stars."""
        return [
            {"hotel_id": k, **h}
            for k, h in self.state["hotels"].items()
            if h["city"] == city and h["stars"] >= min_stars
        ]

    @tool
    def book_hotel(self, hotel_id: str, guest: str, nights: int, card: str) -> str:
        """Book a hotel for some nights and pay by card; tells the booking's id."""
        if hotel_id not in self.state["hotels"]:
            raise ToolError(f"There is no hotel {hotel_id}.")
        if nights < 1:
            raise ToolError(f"{nights} nights cannot be booked.")
        price = self.state["hotels"][hotel_id]["price"] * nights
        self._pay(card, price)
        return self._book(
            {"kind": "hotel", "item": hotel_id, "name": guest, "card": card, "price": price, "insured": False}
        )

    @tool
    def booking_details(self, booking_id: str) -> dict[str, Any]:
        """Tell what a booking holds."""
        return self._booking(booking_id)

    @tool
    def list_bookings(self) -> list[str]:
        """List the ids of all bookings."""
        return list(self.state["bookings"])

    @tool
    def cancel_booking(self, booking_id: str) -> float:
        """Cancel a booking; its price goes back to the card. Tells the price."""
        booking = self._booking(booking_id)
        self.state["cards"][booking["card"]] += booking["price"]
        del self.state["bookings"][booking_id]
        return booking["price"]

    @tool
    def buy_insurance(self, booking_id: str) -> int:
        """Insure a booking for 20 EUR, paid by its card."""
        booking = self._booking(booking_id)
        if booking["insured"]:
            raise ToolError(f"{booking_id} is insured already.")
        self._pay(booking["card"], 20)
        booking["insured"] = True
        return 20

    @tool
    def card_balance(self, card: str) -> float:
        """Tell the balance of a card in EUR."""
        if card not in self.state["cards"]:
            raise ToolError(f"There is no card {card}.")
        return self.state["cards"][card]

    @tool
    def set_budget(self, limit: float) -> None:
        """Bound what all bookings may cost together, in EUR."""
        if limit < 0:
            raise ToolError("A budget is not negative.")
        self.state["budget"] = limit

    @tool
    def convert_currency(self, amount: float, source: str, target: str) -> float:
        """Convert an amount between EUR, USD, GBP and JPY; tells two decimals."""
        for currency in (source, target):
            if currency not in RATES:
                raise ToolError(f"There is no rate of {currency}.")
        return round(amount / RATES[source] * RATES[target], 2)
