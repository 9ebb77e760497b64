"""JSON that Python's parser takes and nobody can send on."""

from __future__ import annotations

import json

import pytest

from openrlhf_tir.http_guard.json_body import fault, is_json


@pytest.mark.parametrize(
    "body",
    [
        b"NaN", b'{"a": Infinity}', b'[{"b": -Infinity}]', b'{"a": {"b": [1e999]}}', b"[-1e400]",
        b"[" + b"9" * 400 + b".5]", b'"\\ud800"', b'["\\udc00\\ud800"]', b"[" * 300 + b"]" * 300, b"\xff", b"{",
        b'{"a": 1,}', '{"a": 1}'.encode("utf-16"), b"1" * 5000,
    ],
)  # fmt: skip
def test_what_cannot_be_sent_on_is_refused_in_fastapis_shape(body):
    found = fault(body)
    assert found["loc"][0] == "body" and found["type"] in ("json_invalid", "finite_number") and found["msg"]
    assert len(json.dumps(found)) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"1e308",
        b'"1e999"',
        b'{"code": "x = 1e999"}',
        '"é \\ud83d\\ude00 🂡"'.encode(),
        b"[" * 100 + b"]" * 100,
        b'"\\u0000"',
    ],
)
def test_what_can_is_not(body):
    assert fault(body) is None


def test_the_place_is_the_one_that_python_would_name():
    with pytest.raises(json.JSONDecodeError) as e:
        json.loads(b'{"a": nope}')
    assert fault(b'{"a": nope}')["loc"] == ["body", e.value.pos]


@pytest.mark.parametrize(
    ("content_type", "is_one"),
    [
        (b"application/json", True), (b"Application/JSON; charset=utf-8", True), (b"application/ld+json", True),
        (b"text/json", False), (b"", False), (b"application/octet-stream", False),
    ],
)  # fmt: skip
def test_only_what_fastapi_would_parse_is_looked_at(content_type, is_one):
    assert is_json(content_type) is is_one
