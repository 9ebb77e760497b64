"""What a command's coroutine raises is printed without tracebacks and groups (cluster/jobs/run_job.py)."""

from __future__ import annotations

import pytest
from ray.exceptions import RayTaskError

from openrlhf_tir.cluster.jobs.run_job import run_job
from openrlhf_tir.errors import ConfigError


def crossed(error: Exception) -> Exception:
    """The error as Ray raises it here when it was raised in another process."""
    return RayTaskError("start", f"Traceback (most recent call last):\n{error}", error).as_instanceof_cause()


async def failing(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("grouped", [False, True])
def test_an_error_from_another_process_has_its_own_text_and_code_and_no_traceback(grouped):
    error = crossed(ConfigError("The port is in use.", code="port"))
    with pytest.raises(ConfigError) as raised:
        run_job(failing(ExceptionGroup("", [ExceptionGroup("", [error])]) if grouped else error))
    assert str(raised.value) == "The port is in use." and raised.value.code == "port"


def test_other_errors_beside_ours_are_printed(capsys):
    with pytest.raises(ConfigError):
        run_job(failing(ExceptionGroup("", [KeyError("a bug"), ConfigError("bad")])))
    assert "a bug" in capsys.readouterr().err


def test_a_group_without_an_error_of_ours_is_raised_as_it_is():
    with pytest.raises(ExceptionGroup):
        run_job(failing(ExceptionGroup("", [KeyError("a bug")])))
