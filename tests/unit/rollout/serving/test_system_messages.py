"""System messages of requests to a model whose chat template has none."""

from __future__ import annotations

import pytest

from openrlhf_tir.rollout.serving.session_requests import without_system


def said(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages], "model": "policy"}


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (said(("system", "S"), ("user", "u")), said(("user", "S\n\nu"))),
        (said(("developer", "S"), ("system", "T"), ("user", "u")), said(("user", "S\n\nT\n\nu"))),
        (
            said(("user", "u"), ("assistant", "a"), ("system", "S"), ("user", "v")),
            said(("user", "u"), ("assistant", "a"), ("user", "S\n\nv")),
        ),
        (said(("system", "S")), said(("user", "S"))),
        (
            said(("system", [{"type": "text", "text": "S"}]), ("user", [{"type": "text", "text": "u"}])),
            said(("user", [{"type": "text", "text": "S"}, {"type": "text", "text": "u"}])),
        ),
    ],
)
def test_a_system_message_goes_before_the_users_next_words(asked, served):
    assert without_system(asked) == served


@pytest.mark.parametrize("body", [said(("user", "u")), {"prompt": "x"}, {"messages": "x"}, {"messages": [3, None]}])
def test_a_request_without_one_stays_as_it_is(body):
    assert without_system(body) is None
