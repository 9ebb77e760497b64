"""Messages: contacts, and an inbox."""

from __future__ import annotations

import random
from typing import Any

from ..tools import Domain, ToolError, tool

PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana")
TOPICS = ("lunch", "the budget", "the meeting", "a parcel", "the holiday", "a bug")


class Messages(Domain):
    """State: `contacts`, `inbox` (id -> message), `sent` (list of messages)."""

    name = "messages"

    @classmethod
    def initial(cls, rng: random.Random) -> dict[str, Any]:
        contacts = rng.sample(PEOPLE, 5)
        inbox = {
            f"M{i}": {
                "sender": rng.choice(contacts),
                "text": f"About {rng.choice(TOPICS)}.",
                "read": False,
                "flagged": False,
            }
            for i in range(1, 6)
        }
        return {"contacts": contacts, "inbox": inbox, "sent": []}

    def _message(self, message_id: str) -> dict[str, Any]:
        if message_id not in self.state["inbox"]:
            raise ToolError(f"There is no message {message_id}.")
        return self.state["inbox"][message_id]

    def _check_contact(self, person: str) -> None:
        if person not in self.state["contacts"]:
            raise ToolError(f"{person} is not among the contacts.")

    @tool
    def list_contacts(self) -> list[str]:
        """List all contacts."""
        return self.state["contacts"]

    @tool
    def add_contact(self, name: str) -> None:
        """Add a contact."""
        if name in self.state["contacts"]:
            raise ToolError(f"{name} is a contact already.")
        self.state["contacts"].append(name)

    @tool
    def remove_contact(self, name: str) -> None:
        """Remove a contact."""
        self._check_contact(name)
        self.state["contacts"].remove(name)

    @tool
    def send_message(self, to: str, text: str) -> int:
        """Send a message to a contact; tells how many were sent."""
        self._check_contact(to)
        self.state["sent"].append({"to": to, "text": text})
        return len(self.state["sent"])

    @tool
    def list_inbox(self, sender: str | None = None) -> list[str]:
        """List the ids of received messages, of one sender if named."""
        return [k for k, m in self.state["inbox"].items() if sender in (None, m["sender"])]

    @tool
    def read_message(self, message_id: str) -> dict[str, Any]:
        """Read a received message, which is then marked as read."""
        message = self._message(message_id)
        message["read"] = True
        return message

    @tool
    def mark_unread(self, message_id: str) -> None:
        """Mark a received message as not read."""
        self._message(message_id)["read"] = False

    @tool
    def flag_message(self, message_id: str) -> None:
        """Flag a received message."""
        self._message(message_id)["flagged"] = True

    @tool
    def delete_message(self, message_id: str) -> None:
        """Delete a received message."""
        self._message(message_id)
        del self.state["inbox"][message_id]

    @tool
    def reply_to_message(self, message_id: str, text: str) -> int:
        """Answer the sender of a received message; tells how many were sent."""
        return self.send_message(self._message(message_id)["sender"], text)

    @tool
    def forward_message(self, message_id: str, to: str) -> int:
        """Send a received message on to a contact; tells how many were sent."""
        return self.send_message(to, self._message(message_id)["text"])

    @tool
    def search_messages(self, word: str) -> list[str]:
        """List the ids of received messages whose text contains a word."""
        return [k for k, m in self.state["inbox"].items() if word in m["text"]]

    @tool
    def count_unread(self) -> int:
        """Count received messages that are not read."""
        return sum(not m["read"] for m in self.state["inbox"].values())
