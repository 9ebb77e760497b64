"""A run directory on a file system that cannot hold a run is refused before anything starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from openrlhf_tir.cli.checks.run_dir import check_writable
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


def refuses(monkeypatch, operation: str, error: int, below: Path = Path("/")) -> None:
    """Let the file system of a directory refuse to append, or to rename a directory, as mounts of object stores do."""
    if operation == "append":
        opened = os.open

        def open_(path, flags, *args, **kwargs):
            if flags & os.O_APPEND and Path(path).is_relative_to(below):
                raise OSError(error, os.strerror(error))
            return opened(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", open_)
    else:
        renamed = os.rename

        def rename(source, target):
            if os.path.isdir(source) and Path(source).is_relative_to(below):
                raise OSError(error, os.strerror(error))
            renamed(source, target)

        monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize(
    ("operation", "error", "setting", "says"),
    [
        ("append", errno.EPERM, "run_dir", "appended"),
        ("rename", errno.EMFILE, "ckpt.path", "rename directories"),
        ("rename", errno.ENOSYS, "ckpt.path", ""),
    ],
    ids=["mountpoint-s3", "gcsfuse", "s3"],
)
def test_a_mounted_object_store_that_takes_no_ledger_or_checkpoint_is_refused(
    tmp_path, monkeypatch, operation, error, setting, says
):
    refuses(monkeypatch, operation, error)
    with pytest.raises(ConfigError, match=f"^{setting} = ") as caught:
        check_writable(load(None, {"run_dir": str(tmp_path / "runs" / "a")}))
    assert says in str(caught.value) and str(tmp_path) in str(caught.value) and os.strerror(error) in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("operation", "setting", "taken"),
    [
        ("append", "logger.tensorboard_dir", True),
        ("rename", "logger.tensorboard_dir", True),
        ("append", "ckpt.path", True),
        ("append", "ckpt.output_dir", True),
        ("rename", "ckpt.output_dir", False),
    ],
)
def test_a_mount_takes_what_needs_no_more_than_it_does(tmp_path, monkeypatch, operation, setting, taken):
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    cfg = load(None, {"run_dir": str(tmp_path / "local" / "a"), setting: str(mounted)})
    refuses(monkeypatch, operation, errno.EPERM, below=mounted)
    if taken:
        check_writable(cfg)
    else:
        with pytest.raises(ConfigError, match=f"^{setting} = "):
            check_writable(cfg)


def test_a_full_disk_may_have_room_later(tmp_path, monkeypatch):
    refuses(monkeypatch, "rename", errno.ENOSPC)
    check_writable(load(None, {"run_dir": str(tmp_path / "runs" / "a")}))


def test_a_file_system_that_can_hold_a_run_is_left_as_it_was(tmp_path):
    check_writable(load(None, {"run_dir": str(tmp_path / "runs" / "a")}))
    assert not [*tmp_path.iterdir()]
