"""A vehicle: doors, engine, climate, lights, tyres, a route."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from ..tools import Domain, ToolError, tool

DOORS = ("driver", "passenger", "rear_left", "rear_right")
PLACES = {"home": 0, "office": 12, "airport": 35, "harbour": 20, "station": 8, "mall": 15}
TANK_LITRES = 50.0
KM_PER_LITRE = 10.0


class Vehicle(Domain):
    """State: `doors` (door -> locked), `brake`, `engine`, `fuel` (litres), `climate` (degrees Celsius), `lights`,
    `tyres` (bar), `cruise`, `route`."""

    name = "vehicle"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        return {
            "doors": {d: rng.random() < 0.5 for d in DOORS},
            "brake": False,
            "engine": "off",
            "fuel": float(rng.randint(2, 40)),
            "climate": 20.0,
            "lights": "off",
            "tyres": {t: rng.choice([1.8, 2.2, 2.4]) for t in ("front_left", "front_right", "rear_left", "rear_right")},
            "cruise": None,
            "route": None,
        }

    @tool
    def vehicle_status(self) -> dict[str, Any]:
        """Tell everything about the vehicle."""
        return self.state

    @tool
    def lock_doors(self, doors: list[Literal["driver", "passenger", "rear_left", "rear_right"]]) -> int:
        """Lock doors; tells how many are locked then."""
        return self._set_doors(doors, True)

    @tool
    def unlock_doors(self, doors: list[Literal["driver", "passenger", "rear_left", "rear_right"]]) -> int:
        """Unlock doors; tells how many are locked then."""
        return self._set_doors(doors, False)

    def _set_doors(self, doors: Sequence[str], locked: bool) -> int:
        if not doors:
            raise ToolError("No door is named.")
        self.state["doors"].update(dict.fromkeys(doors, locked))
        return sum(self.state["doors"].values())

    @tool
    def press_brake(self) -> None:
        """Press the brake pedal and hold it."""
        self.state["brake"] = True

    @tool
    def release_brake(self) -> None:
        """Let go of the brake pedal."""
        self.state["brake"] = False

    @tool
    def start_engine(self) -> str:
        """Start the engine. All doors must be locked and the brake pressed."""
        if not all(self.state["doors"].values()):
            raise ToolError("Not all doors are locked.")
        if not self.state["brake"]:
            raise ToolError("The brake is not pressed.")
        if not self.state["fuel"]:
            raise ToolError("The tank is empty.")
        self.state["engine"] = "running"
        return "running"

    @tool
    def stop_engine(self) -> str:
        """Stop the engine."""
        if self.state["engine"] == "off":
            raise ToolError("The engine is off.")
        self.state.update(engine="off", cruise=None)
        return "off"

    @tool
    def refuel(self, litres: float) -> float:
        """Fill fuel into the tank of 50 litres; tells how much it holds. The engine must be off."""
        if self.state["engine"] != "off":
            raise ToolError("The engine is running.")
        if not 0 < litres <= TANK_LITRES - self.state["fuel"]:
            raise ToolError(f"{litres} litres do not fit: the tank holds {self.state['fuel']} of {TANK_LITRES}.")
        self.state["fuel"] = round(self.state["fuel"] + litres, 2)
        return self.state["fuel"]

    @tool
    def set_temperature(self, celsius: float) -> None:
        """Set the climate control, 16 to 30 degrees Celsius."""
        if not 16 <= celsius <= 30:
            raise ToolError(f"{celsius} is not between 16 and 30.")
        self.state["climate"] = celsius

    @tool
    def set_lights(self, mode: Literal["off", "low", "high", "auto"]) -> None:
        """Switch the headlights."""
        self.state["lights"] = mode

    @tool
    def tyre_pressure(self, tyre: str) -> float:
        """Tell the pressure of a tyre in bar: front_left, front_right, rear_left or rear_right."""
        if tyre not in self.state["tyres"]:
            raise ToolError(f"There is no tyre {tyre!r}.")
        return self.state["tyres"][tyre]

    @tool
    def inflate_tyre(self, tyre: str, bar: float) -> None:
        """Bring a tyre to a pressure, 1.5 to 3 bar."""
        self.tyre_pressure(tyre)
        if not 1.5 <= bar <= 3:
            raise ToolError(f"{bar} bar is not between 1.5 and 3.")
        self.state["tyres"][tyre] = bar

    @tool
    def set_cruise_control(self, speed: int) -> None:
        """Set cruise control to a speed in km/h, 30 to 130. The engine must run."""
        if self.state["engine"] != "running":
            raise ToolError("The engine is off.")
        if not 30 <= speed <= 130:
            raise ToolError(f"{speed} km/h is not between 30 and 130.")
        self.state["cruise"] = speed

    @tool
    def distance_to(self, place: str) -> int:
        """Tell the distance to a place in km: home, office, airport, harbour, station or mall."""
        if place not in PLACES:
            raise ToolError(f"{place!r} is not known.")
        return PLACES[place]

    @tool
    def navigate_to(self, place: str) -> int:
        """Set the route to a place; tells the distance in km. The fuel must suffice, at 10 km a litre."""
        distance = self.distance_to(place)
        if distance > self.state["fuel"] * KM_PER_LITRE:
            raise ToolError(f"{self.state['fuel']} litres do not suffice for {distance} km.")
        self.state["route"] = place
        return distance
