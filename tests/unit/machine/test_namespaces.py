"""The machine as its files describe it: what forbids user namespaces, and whether this is a container."""

from __future__ import annotations

import pytest

from openrlhf_tir.machine.namespaces import in_container, namespace_remedy


@pytest.mark.parametrize(
    ("name", "forbids", "allows"),
    [
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("user.max_user_namespaces", "0", "15000"),
    ],
)
def test_the_switch_that_forbids_user_namespaces_is_named_and_no_other(tmp_path, name, forbids, allows):
    switch = tmp_path / "proc/sys" / name.replace(".", "/")
    switch.parent.mkdir(parents=True)
    switch.write_text(f"{forbids}\n")
    remedy = namespace_remedy(tmp_path, {})
    assert f"{name}={allows}" in remedy and remedy.count("sysctl") == 1 and "--security-opt" not in remedy
    switch.write_text(f"{allows}\n")
    assert "Ubuntu 24.04" in namespace_remedy(tmp_path, {}), "nothing is known, so all are named"


def test_a_container_asks_its_runtime_besides_the_host(tmp_path):
    assert not in_container(tmp_path, {})
    assert in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / ".dockerenv").touch()
    assert "seccomp=unconfined" in namespace_remedy(tmp_path, {})
