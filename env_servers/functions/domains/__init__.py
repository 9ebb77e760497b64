"""The domains by name. Each file has one: a class of typed functions and the state that it starts with."""

from __future__ import annotations

from ..tools import Domain
from .calendar import Calendar
from .files import Files
from .messages import Messages
from .shop import Shop
from .trading import Trading
from .travel import Travel
from .vehicle import Vehicle

DOMAINS: dict[str, type[Domain]] = {
    domain.name: domain for domain in (Files, Travel, Messages, Trading, Vehicle, Calendar, Shop)
}
