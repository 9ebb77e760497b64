"""Report a user's estimator or policy loss that raises, with the line of its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import MethodBroken
from ..user_code import plugins
from ..user_code.failures import described


@contextmanager
def locate_faults(place: plugins.Place, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Turn an exception of the block, which calls a user's function, into MethodBroken with file and line of the fault.

    Args:
        place: What kind of function it is.
        name: Its name in the configuration.
        function: The function.

    Raises:
        MethodBroken: The block raised.
    """
    try:
        yield
    except Exception as error:
        location = plugins.raised_at(error, plugins.source_file(function)) or plugins.location(function)
        raise MethodBroken(
            f"{place.setting} = {name!r}: {location}: {described(error)}. It is a bug in that line."
        ) from error
