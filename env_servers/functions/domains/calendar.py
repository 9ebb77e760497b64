"""A calendar: events of one week, in minutes of the day."""

from __future__ import annotations

import random
from typing import Any, Literal

from ..tools import Domain, ToolError, tool

Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri"]
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
TITLES = ("Stand-up", "Review", "Planning", "Dentist", "Lunch", "Interview")
OPENS = 8 * 60
CLOSES = 18 * 60


def clock(minutes: int) -> str:
    """Return minutes of the day as HH:MM."""
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def minutes_of(time: str) -> int:
    """Return HH:MM as minutes of the day. Raises ToolError."""
    hours, colon, minutes = time.partition(":")
    digits = len(time) <= 5 and hours.isdecimal() and minutes.isdecimal()
    if not (colon and digits and int(hours) < 24 and int(minutes) < 60):
        raise ToolError(f"{time!r} is not a time: write HH:MM.")
    return int(hours) * 60 + int(minutes)


class Calendar(Domain):
    """State: `events` (id -> day, start, end in minutes, title, guests), `reminders` (id -> minutes), `next_id`."""

    name = "calendar"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        events = {}
        for i, day in enumerate(rng.sample(DAYS, 4), 1):
            start = rng.randrange(9, 15) * 60
            events[f"E{i}"] = {
                "day": day,
                "start": start,
                "end": start + rng.choice([30, 60]),
                "title": rng.choice(TITLES),
                "guests": [],
            }
        return {"events": events, "reminders": {}, "next_id": 5}

    def _event(self, event_id: str) -> dict[str, Any]:
        if event_id not in self.state["events"]:
            raise ToolError(f"There is no event {event_id}.")
        return self.state["events"][event_id]

    def _check_free(self, day: str, start: int, end: int, ignored: str | None = None) -> None:
        if not OPENS <= start < end <= CLOSES:
            raise ToolError(f"{clock(start)} to {clock(end)} is not within {clock(OPENS)} to {clock(CLOSES)}.")
        for key, e in self.state["events"].items():
            if key != ignored and e["day"] == day and start < e["end"] and e["start"] < end:
                raise ToolError(f"{key} ({e['title']}) is there from {clock(e['start'])} to {clock(e['end'])}.")

    @tool
    def list_events(self, day: Day | None = None) -> list[str]:
        """List the ids of events, of one day if it is given."""
        return [k for k, e in self.state["events"].items() if day in (None, e["day"])]

    @tool
    def event_details(self, event_id: str) -> dict[str, Any]:
        """Tell what an event is."""
        e = self._event(event_id)
        return {**e, "start": clock(e["start"]), "end": clock(e["end"])}

    @tool
    def find_events(self, word: str) -> list[str]:
        """List the ids of events whose title contains a word."""
        return [k for k, e in self.state["events"].items() if word.lower() in e["title"].lower()]

    @tool
    def create_event(self, title: str, day: Day, start: str, minutes: int) -> str:
        """Create an event at a time (HH:MM) for some minutes, where nothing else is; tells its id."""
        begin = minutes_of(start)
        self._check_free(day, begin, begin + minutes)
        key = f"E{self.state['next_id']}"
        self.state["next_id"] += 1
        self.state["events"][key] = {"day": day, "start": begin, "end": begin + minutes, "title": title, "guests": []}
        return key

    @tool
    def delete_event(self, event_id: str) -> None:
        """Delete an event and its reminder."""
        self._event(event_id)
        del self.state["events"][event_id]
        self.state["reminders"].pop(event_id, None)

    @tool
    def move_event(self, event_id: str, day: Day, start: str) -> None:
        """Move an event to another day and time (HH:MM), where nothing else is."""
        event = self._event(event_id)
        begin = minutes_of(start)
        end = begin + event["end"] - event["start"]
        self._check_free(day, begin, end, ignored=event_id)
        event.update(day=day, start=begin, end=end)

    @tool
    def rename_event(self, event_id: str, title: str) -> None:
        """Give an event another title."""
        self._event(event_id)["title"] = title

    @tool
    def invite(self, event_id: str, person: str) -> list[str]:
        """Invite a person to an event; tells the guests."""
        guests = self._event(event_id)["guests"]
        if person in guests:
            raise ToolError(f"{person} is invited already.")
        guests.append(person)
        return guests

    @tool
    def uninvite(self, event_id: str, person: str) -> list[str]:
        """Take a person off an event's guests; tells the guests."""
        guests = self._event(event_id)["guests"]
        if person not in guests:
            raise ToolError(f"{person} is not invited.")
        guests.remove(person)
        return guests

    @tool
    def set_reminder(self, event_id: str, minutes: int) -> None:
        """Be reminded of an event some minutes before it."""
        self._event(event_id)
        if not 0 <= minutes <= 1440:
            raise ToolError(f"{minutes} minutes are not between 0 and 1440.")
        self.state["reminders"][event_id] = minutes

    @tool
    def remove_reminder(self, event_id: str) -> None:
        """Remove the reminder of an event."""
        if event_id not in self.state["reminders"]:
            raise ToolError(f"{event_id} has no reminder.")
        del self.state["reminders"][event_id]

    @tool
    def free_slot(self, day: Day, minutes: int) -> str:
        """Tell the first time (HH:MM) of a day with so many free minutes."""
        for begin in range(OPENS, CLOSES - minutes + 1, 15):
            if all(
                e["day"] != day or begin >= e["end"] or e["start"] >= begin + minutes
                for e in self.state["events"].values()
            ):
                return clock(begin)
        raise ToolError(f"{day} has no {minutes} free minutes.")
