"""Functions: schemas from signatures, checked calls, and worlds that a wrong call leaves as they were."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_servers.functions.domains import DOMAINS
from env_servers.functions.domains.files import Files
from env_servers.functions.domains.travel import Travel
from env_servers.functions.tools import ToolError, World

TREE = {"tree": {"home": {"a.txt": "b\na", "box": {}}}, "here": ["home"]}


def test_there_are_seven_domains_and_ninety_functions_with_unique_names():
    names = Counter(name for domain in DOMAINS.values() for name in domain.tools())
    assert len(DOMAINS) == 7 and names.total() == 90 and set(names.values()) == {1}


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_every_function_has_a_docstring_and_typed_parameters(domain):
    for tool in domain.tools().values():
        parameters = tool.schema["parameters"]
        assert len(tool.schema["description"]) > 10
        assert set(parameters["required"]) <= set(parameters["properties"])
        assert all({"type", "anyOf"} & set(p) for p in parameters["properties"].values())


def test_the_schema_of_a_signature():
    assert Files.tools()["search_text"].schema == {
        "name": "search_text",
        "description": "List the lines of a file that contain a text.",
        "parameters": {
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
            "type": "object",
        },
    }


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("remove", {"path": 3}, "path: Input should be a valid string"),
        ("remove", {}, "path: Field required"),
        ("remove", {"path": "a.txt", "force": True}, "force: Extra inputs are not permitted"),
        ("remove", ["a.txt"], r"^remove: .*\blist\b"),
        ("remove", {"path": "none"}, "^none: "),
        ("fly", {}, "'fly'"),
        ("sort_lines", {"path": "a.txt"}, "'sort_lines'"),
    ],
)
def test_a_wrong_call_is_answered_with_the_error_and_changes_nothing(name, arguments, says):
    world = World([Files(TREE)], hidden=frozenset({"sort_lines"}))
    with pytest.raises(ToolError, match=says):
        world.call(name, arguments)
    assert world.state() == {"files.tree": TREE["tree"], "files.here": ["home"]}


def test_a_call_that_fails_midway_is_undone():
    """`move` into a full directory has found its target before it is refused."""
    files = Files({"tree": {"a.txt": "1", "box": {"a.txt": "2"}}, "here": []})
    with pytest.raises(ToolError, match=r"^box: .*\ba\.txt\b"):
        files.call("move", {"source": "a.txt", "destination": "box"})
    assert files.state["tree"] == {"a.txt": "1", "box": {"a.txt": "2"}}


def test_a_booking_after_a_cancelled_one_replaces_none():
    travel = Travel(Travel.initial(random.Random(0)))
    flight = min(travel.state["flights"], key=lambda key: travel.state["flights"][key]["price"])
    booking = {"flight_id": flight, "passenger": "Ada", "card": "4242"}
    assert [travel.call("book_flight", booking) for _ in range(2)] == ["B1", "B2"]
    travel.call("cancel_booking", {"booking_id": "B1"})
    assert travel.call("book_flight", {**booking, "passenger": "Ben"}) == "B3"
    assert {key: booked["name"] for key, booked in travel.state["bookings"].items()} == {"B2": "Ada", "B3": "Ben"}


def test_a_directory_cannot_be_moved_into_itself():
    files = Files({"tree": {"outer": {"inner": {}}}, "here": []})
    with pytest.raises(ToolError, match=r"^outer/inner: .*\bouter\b"):
        files.call("move", {"source": "outer", "destination": "outer/inner"})
    assert files.state["tree"] == {"outer": {"inner": {}}}


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
anything = st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_no_argument_breaks_a_domain(data):
    """Whatever a call says, it is carried out or refused: nothing else is raised, and the state stays JSON."""
    domain = data.draw(st.sampled_from(list(DOMAINS.values())))
    made = domain(domain.initial(random.Random(0)))
    for _ in range(5):
        tool = data.draw(st.sampled_from(list(domain.tools().values())))
        fields = {name: data.draw(anything) for name in tool.schema["parameters"]["properties"]}
        try:
            made.call(tool.name, fields)
        except ToolError:
            continue


@pytest.mark.parametrize(
    ("domain", "name", "arguments", "says"),
    [
        (
            "travel",
            "book_hotel",
            {"hotel_id": "H0", "guest": "Ada", "nights": 10**4298, "card": "4242"},
            r"nights.*\b64\b",
        ),
        ("trading", "place_order", {"symbol": "ACME", "side": "buy", "quantity": 1 << 63}, r"quantity.*\b64\b"),
        (
            "calendar",
            "create_event",
            {"title": "", "day": "Mon", "start": "9" * 5000 + ":00", "minutes": 5},
            "HH:MM",
        ),
    ],
)
def test_a_number_of_thousands_of_digits_is_a_model_error(domain, name, arguments, says):
    """Python does not write one: the price would have been a ValueError, and the sample lost."""
    world = World([DOMAINS[domain](DOMAINS[domain].initial(random.Random(0)))])
    with pytest.raises(ToolError, match=says):
        world.call(name, arguments)
