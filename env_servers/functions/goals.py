"""Goals: what a user may want of a domain, and the calls that do it.

`GOALS[domain]` are functions (state, rng) -> Goal, or None if the state allows none. A goal reads the state as it is,
so that goals can follow each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .domains.calendar import DAYS, clock
from .domains.messages import PEOPLE
from .domains.trading import SYMBOLS
from .domains.travel import CITIES
from .domains.vehicle import DOORS, PLACES, TANK_LITRES

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A wish of the user.

    Attributes:
        text: The wish in words.
        calls: The calls that fulfil it: name and arguments.
        missing: The wish with a part left out, and what the user says when the model asks for it; None if nothing can
            be left out.
    """

    text: str
    calls: list[tuple[str, dict[str, Any]]]
    missing: tuple[str, str] | None = None


Maker = Callable[[State, random.Random], Goal | None]
GOALS: dict[str, list[Maker]] = {}


def goal(domain: str) -> Callable[[Maker], Maker]:
    """Register a maker of goals for a domain."""

    def register(maker: Maker) -> Maker:
        GOALS.setdefault(domain, []).append(maker)
        return maker

    return register


def about(domain: str, part: str) -> Callable[[Callable[[str, random.Random], Goal]], Maker]:
    """Register a maker of goals about one of the state's things, such as an event, which is drawn for it."""

    def register(maker: Callable[[str, random.Random], Goal]) -> Maker:
        def make(state: State, rng: random.Random) -> Goal | None:
            return maker(rng.choice(list(state[part])), rng) if state[part] else None

        return goal(domain)(make)

    return register


def _files(state: State) -> list[tuple[str, str, str]]:
    """Return directory (absolute path), name and text of every file."""
    files: list[tuple[str, str, str]] = []

    def walk(node: State, path: str) -> None:
        for name, content in node.items():
            if isinstance(content, dict):
                walk(content, f"{path}/{name}")
            else:
                files.append((path, name, content))

    walk(state["tree"], "")
    return files


@goal("files")
def _make_directory(state: State, rng: random.Random) -> Goal:
    name = f"box{rng.randint(100, 999)}"
    text = f"Make a directory /home/{name}."
    calls = [("make_directory", {"path": f"/home/{name}"})]
    return Goal(text, calls, ("Make a new directory in /home.", f"Call it {name}."))


@goal("files")
def _append(state: State, rng: random.Random) -> Goal | None:
    if not (files := _files(state)):
        return None
    path, name, _ = rng.choice(files)
    word = rng.choice(["done", "open", "later", "urgent"])
    calls = [("append_to_file", {"path": f"{path}/{name}", "text": word})]
    return Goal(
        f'Add the line "{word}" to {path}/{name}.', calls, (f"Add a line to {path}/{name}.", f'The line is "{word}".')
    )


@goal("files")
def _sort(state: State, rng: random.Random) -> Goal | None:
    many = [f for f in _files(state) if "\n" in f[2] and f[2].split("\n") != sorted(f[2].split("\n"))]
    if not many:
        return None
    path, name, _ = rng.choice(many)
    return Goal(f"Sort the lines of {path}/{name}.", [("sort_lines", {"path": f"{path}/{name}"})])


@goal("files")
def _archive(state: State, rng: random.Random) -> Goal | None:
    if not (files := _files(state)):
        return None
    path, name, _ = rng.choice(files)
    box = f"old{rng.randint(100, 999)}"
    calls = [
        ("make_directory", {"path": f"/home/{box}"}),
        ("move", {"source": f"{path}/{name}", "destination": f"/home/{box}"}),
    ]
    return Goal(f"Make a directory /home/{box} and move {path}/{name} there.", calls)


@goal("files")
def _copy(state: State, rng: random.Random) -> Goal | None:
    if not (files := _files(state)):
        return None
    path, name, _ = rng.choice(files)
    calls = [("copy", {"source": f"{path}/{name}", "destination": f"{path}/{rng.randint(100, 999)}_{name}"})]
    return Goal(f"Copy {path}/{name} to {calls[0][1]['destination']}.", calls)


@goal("travel")
def _fly(state: State, rng: random.Random) -> Goal | None:
    card, balance = max(state["cards"].items(), key=lambda c: c[1])
    cheap = [(k, f) for k, f in state["flights"].items() if f["price"] <= balance and state["budget"] is None]
    if not cheap:
        return None
    key, _ = rng.choice(cheap)
    passenger = rng.choice(PEOPLE)
    calls = [("book_flight", {"flight_id": key, "passenger": passenger, "card": card})]
    return Goal(
        f"Book flight {key} for {passenger} with card {card}.",
        calls,
        (f"Book flight {key} with card {card}.", f"It is for {passenger}."),
    )


@goal("travel")
def _sleep(state: State, rng: random.Random) -> Goal | None:
    card, balance = max(state["cards"].items(), key=lambda c: c[1])
    key, hotel = rng.choice(list(state["hotels"].items()))
    nights = rng.randint(1, 3)
    if state["budget"] is not None or hotel["price"] * nights > balance:
        return None
    guest = rng.choice(PEOPLE)
    calls = [("book_hotel", {"hotel_id": key, "guest": guest, "nights": nights, "card": card})]
    text = f"Book hotel {key} for {guest}, {nights} nights, with card {card}."
    return Goal(text, calls, (f"Book hotel {key} for {guest} with card {card}.", f"For {nights} nights."))


@goal("travel")
def _budget(state: State, rng: random.Random) -> Goal:
    limit = float(rng.randint(50, 90) * 100)
    return Goal(
        f"Set my budget to {limit:.0f} EUR.", [("set_budget", {"limit": limit})], ("Set a budget.", f"{limit:.0f} EUR.")
    )


@about("travel", "bookings")
def _cancel_trip(key: str, rng: random.Random) -> Goal:
    return Goal(f"Cancel booking {key}.", [("cancel_booking", {"booking_id": key})])


@goal("travel")
def _fares(state: State, rng: random.Random) -> Goal:
    a, b = rng.sample(CITIES, 2)
    return Goal(f"Which flights go from {a} to {b}?", [("search_flights", {"origin": a, "destination": b})])


@about("messages", "contacts")
def _send(recipient: str, rng: random.Random) -> Goal:
    text = rng.choice(["I am late.", "See you at noon.", "Thank you!", "Call me back."])
    calls = [("send_message", {"to": recipient, "text": text})]
    return Goal(f'Send {recipient} the message "{text}".', calls, (f'Send the message "{text}".', f"To {recipient}."))


@goal("messages")
def _introduce(state: State, rng: random.Random) -> Goal | None:
    new = [p for p in PEOPLE if p not in state["contacts"]]
    if not new:
        return None
    person = rng.choice(new)
    calls = [("add_contact", {"name": person}), ("send_message", {"to": person, "text": "Hello!"})]
    return Goal(f'Add {person} to my contacts and send them the message "Hello!".', calls)


@goal("messages")
def _answer(state: State, rng: random.Random) -> Goal | None:
    answerable = [k for k, m in state["inbox"].items() if m["sender"] in state["contacts"]]
    if not answerable:
        return None
    key = rng.choice(answerable)
    calls = [("reply_to_message", {"message_id": key, "text": "Yes."})]
    return Goal(f'Answer message {key} with "Yes."', calls, (f"Answer message {key}.", 'Answer "Yes."'))


@about("messages", "inbox")
def _tidy(key: str, rng: random.Random) -> Goal:
    return Goal(
        f"Flag message {key} and mark it as not read.",
        [("flag_message", {"message_id": key}), ("mark_unread", {"message_id": key})],
    )


@about("messages", "inbox")
def _drop(key: str, rng: random.Random) -> Goal:
    return Goal(f"Delete message {key}.", [("delete_message", {"message_id": key})])


@goal("trading")
def _buy(state: State, rng: random.Random) -> Goal | None:
    payable = [s for s, p in state["prices"].items() if p <= state["cash"]]
    if not payable:
        return None
    symbol = rng.choice(payable)
    quantity = rng.randint(1, min(5, int(state["cash"] // state["prices"][symbol])))
    calls = [
        ("place_order", {"symbol": symbol, "side": "buy", "quantity": quantity}),
        ("execute_order", {"order_id": f"O{len(state['orders']) + 1}"}),
    ]
    return Goal(
        f"Buy {quantity} of {symbol}: place the order and execute it.",
        calls,
        (f"Buy some {symbol}: place the order and execute it.", f"{quantity} of it."),
    )


@goal("trading")
def _watch(state: State, rng: random.Random) -> Goal | None:
    free = [s for s in SYMBOLS if s not in state["watchlist"]]
    if not free:
        return None
    symbol = rng.choice(free)
    return Goal(
        f"Put {symbol} on my watch list.",
        [("watch", {"symbol": symbol})],
        ("Put a stock on my watch list.", f"{symbol}, please."),
    )


@about("trading", "watchlist")
def _unwatch(symbol: str, rng: random.Random) -> Goal:
    return Goal(f"Take {symbol} off my watch list.", [("unwatch", {"symbol": symbol})])


@goal("trading")
def _pay_in(state: State, rng: random.Random) -> Goal:
    amount = float(rng.randint(1, 20) * 50)
    return Goal(
        f"Deposit {amount:.0f} into the account.",
        [("deposit", {"amount": amount})],
        ("Deposit some cash.", f"{amount:.0f}."),
    )


@goal("trading")
def _price(state: State, rng: random.Random) -> Goal:
    symbol = rng.choice(SYMBOLS)
    return Goal(f"What is the price of {symbol}?", [("stock_price", {"symbol": symbol})])


@goal("vehicle")
def _start(state: State, rng: random.Random) -> Goal | None:
    if state["engine"] != "off" or not state["fuel"]:
        return None
    calls: list[tuple[str, dict[str, Any]]] = [
        ("lock_doors", {"doors": list(DOORS)}),
        ("press_brake", {}),
        ("start_engine", {}),
    ]
    return Goal("Lock all doors, press the brake and start the engine.", calls)


@goal("vehicle")
def _warm(state: State, rng: random.Random) -> Goal:
    celsius = float(rng.randint(17, 28))
    calls = [("set_temperature", {"celsius": celsius})]
    return Goal(
        f"Set the climate to {celsius:.0f} degrees.", calls, ("Set the climate control.", f"{celsius:.0f} degrees.")
    )


@goal("vehicle")
def _fill(state: State, rng: random.Random) -> Goal | None:
    room = int(TANK_LITRES - state["fuel"])
    if state["engine"] != "off" or room < 1:
        return None
    litres = float(rng.randint(1, min(10, room)))
    return Goal(
        f"Fill {litres:.0f} litres into the tank.",
        [("refuel", {"litres": litres})],
        ("Fill up some fuel.", f"{litres:.0f} litres."),
    )


@goal("vehicle")
def _pump(state: State, rng: random.Random) -> Goal:
    tyre = rng.choice(list(state["tyres"]))
    return Goal(f"Bring the tyre {tyre} to 2.5 bar.", [("inflate_tyre", {"tyre": tyre, "bar": 2.5})])


@goal("vehicle")
def _drive(state: State, rng: random.Random) -> Goal | None:
    near = [p for p, km in PLACES.items() if km <= state["fuel"] * 10]
    place = rng.choice(near)
    mode = rng.choice(["low", "high", "auto"])
    calls: list[tuple[str, dict[str, Any]]] = [("set_lights", {"mode": mode}), ("navigate_to", {"place": place})]
    return Goal(f"Switch the lights to {mode} and set the route to the {place}.", calls)


@goal("calendar")
def _meet(state: State, rng: random.Random) -> Goal:
    day = rng.choice(DAYS)
    minutes = rng.choice([15, 30])
    busy = [(e["start"], e["end"]) for e in state["events"].values() if e["day"] == day]
    free = [
        b
        for b in range(8 * 60, 18 * 60 - minutes + 1, 15)
        if all(b >= end or start >= b + minutes for start, end in busy)
    ]
    start = clock(rng.choice(free))
    calls = [("create_event", {"title": "Call", "day": day, "start": start, "minutes": minutes})]
    text = f'Put an event "Call" on {day} at {start} for {minutes} minutes.'
    return Goal(text, calls, (f'Put an event "Call" on {day} for {minutes} minutes.', f"At {start}."))


@goal("calendar")
def _guest(state: State, rng: random.Random) -> Goal | None:
    person = rng.choice(PEOPLE)
    open_to = [k for k, e in state["events"].items() if person not in e["guests"]]
    if not open_to:
        return None
    key = rng.choice(open_to)
    return Goal(
        f"Invite {person} to event {key}.",
        [("invite", {"event_id": key, "person": person})],
        (f"Invite somebody to event {key}.", f"{person}."),
    )


@about("calendar", "events")
def _remind(key: str, rng: random.Random) -> Goal:
    minutes = rng.choice([5, 10, 30])
    calls = [("set_reminder", {"event_id": key, "minutes": minutes})]
    return Goal(
        f"Remind me of event {key} {minutes} minutes before.",
        calls,
        (f"Remind me of event {key}.", f"{minutes} minutes before."),
    )


@about("calendar", "events")
def _rename(key: str, rng: random.Random) -> Goal:
    return Goal(
        f'Give event {key} the title "Moved" and tell me what it is then.',
        [("rename_event", {"event_id": key, "title": "Moved"}), ("event_details", {"event_id": key})],
    )


@about("calendar", "events")
def _drop_event(key: str, rng: random.Random) -> Goal:
    return Goal(f"Delete event {key}.", [("delete_event", {"event_id": key})])
