"""The domains by name. Each file is one: a class of typed functions, the state that it starts with, and goals whose
solution is known."""

from __future__ import annotations

from ..tools import Domain
from .calendar import Calendar
from .files import Files
from .messages import Messages
from .shop import Shop
from .trading import Trading
from .travel import Travel
from .vehicle import Vehicle

DOMAINS: dict[str, type[Domain]] = {d.name: d for d in (Files, Travel, Messages, Trading, Vehicle, Calendar, Shop)}
