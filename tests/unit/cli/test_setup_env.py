"""setup_env.sh from outside: what it checks of a machine before it installs anything, and what it installs.

The interpreter, pip, nvidia-smi, df and apt-get are stand-ins that note how they are called; bash and the script are
the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.contract.docs.docs_blocks import REPO
from tests.contract.unprivileged import NOBODY

PYTHON = """#!/usr/bin/env bash
here=$(dirname "$(realpath -s "$0")")
case "$*" in
    *"-m venv "*) mkdir -p "${*: -1}/bin" && cp "$0" "${*: -1}/bin/python" ;;
    *"-m pip "*) echo "pip $*" >> "$NOTES" ;;
    *Python.h*) [[ -z ${NO_HEADER:-} ]] ;;
    *"import flash_attn"*) exit 1 ;;
    *"import openrlhf_tir"*|*ensurepip*|*requires_dist*) exit 0 ;;
    *version_info\\[1\\]*) echo python3.11 ;;
    *--version*) echo "Python 3.11.7" ;;
esac
"""
"""An interpreter that makes environments of itself and notes what pip is asked to install."""
LEFT_OUT = {"nvidia-smi", "bwrap", "gcc", "cc", "clang", "c++", "g++", "apt-get", "df"}
"""Programs of this machine that a test's machine has only when the test says so."""


class Checkout:
    """A copy of what set-up reads, on a machine whose programs a test chooses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = root / "notes"
        (root / "train_scripts").mkdir()
        shutil.copy(REPO / "train_scripts/setup_env.sh", root / "train_scripts")
        for path in (*REPO.glob("requirements*.txt"), REPO / "pyproject.toml"):
            shutil.copy(path, root)
        self.programs = root / "programs"
        self.programs.mkdir()
        for directory in ("/bin", "/usr/bin"):
            for path in Path(directory).iterdir():
                if path.name not in LEFT_OUT and not (self.programs / path.name).exists():
                    (self.programs / path.name).symlink_to(path)
        self.add("my-python", PYTHON)
        self.add("gcc")
        self.add("bwrap")
        self.disk(100)

    def add(self, name: str, script: str = "#!/usr/bin/env bash\n") -> None:
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        (self.programs / name).unlink()

    def disk(self, free_gb: int) -> None:
        free = free_gb * 1024 * 1024
        self.add("df", f'#!/usr/bin/env bash\necho "df ${{*: -1}}" >> "$NOTES"\nprintf "h\\n- 0 0 {free} -\\n"\n')

    def driver(self, *versions: str) -> None:
        lines = "\n".join(versions)
        self.add("nvidia-smi", f"#!/usr/bin/env bash\necho '{lines}'\n")

    def run(self, *flags: str, prefix: list[str] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.programs),
            "NOTES": str(self.notes),
            "PYTHON": "my-python",
            "HOME": str(self.root),
            **environment,
        }
        return subprocess.run(
            [*(prefix or []), "bash", self.root / "train_scripts/setup_env.sh", *flags],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @property
    def installed(self) -> str:
        return self.notes.read_text() if self.notes.exists() else ""


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    return Checkout(tmp_path)


def refused(done: subprocess.CompletedProcess[str], checkout: Checkout, *values: str) -> None:
    """Assert that set-up ended before it installed anything, naming `values`."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(value in done.stderr for value in values), done.stderr
    assert "pip" not in checkout.installed


def test_set_up_for_gpus_installs_without_flash_attn(checkout):
    checkout.driver("580.65.06")
    done = checkout.run("--gpu")
    assert done.returncode == 0, done.stderr
    assert "-r requirements.txt" in checkout.installed and "-r requirements-nodeps.txt" in checkout.installed
    assert "flash" not in checkout.installed
    for name in ("requirements.txt", "requirements-nodeps.txt"):
        assert not any(line.startswith("flash") for line in (REPO / name).read_text().splitlines())
    checkout.notes.unlink()
    assert checkout.run("--gpu").returncode == 0 and not checkout.installed, "what is complete is left as it is"


def test_flash_attn_is_built_when_it_is_asked_for(checkout):
    checkout.driver("580.65.06")
    assert checkout.run("--gpu", "--with-flash-attn").returncode == 0
    assert checkout.installed.count("requirements-flash-attn.txt") == 1


def test_flash_attn_on_a_cpu_is_refused(checkout):
    refused(checkout.run("--with-flash-attn"), checkout, "--gpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("versions", "named"), [(["575.57.08"], "575.57.08"), (["580.65.06", "570.10"], "570.10"), (["99.1"], "99.1")]
)
def test_a_driver_older_than_cuda_13_needs_is_refused_before_anything_is_installed(checkout, versions, named):
    checkout.driver(*versions)
    refused(checkout.run("--gpu"), checkout, named, "580")
    assert checkout.run("--gpu", "--any-driver").returncode == 0


def test_a_driver_that_does_not_answer_is_refused(checkout):
    checkout.add("nvidia-smi", "#!/usr/bin/env bash\necho 'NVIDIA-SMI has failed because ...'\nexit 9\n")
    refused(checkout.run("--gpu"), checkout, "NVIDIA-SMI has failed", "--any-driver")


def test_a_later_driver_and_a_login_node_without_one_are_taken(checkout):
    assert checkout.run("--gpu").returncode == 0
    checkout.driver("1000.1")
    assert checkout.run("--gpu").returncode == 0


@pytest.mark.slow
def test_a_compiler_and_pythons_headers_are_asked_for_where_triton_runs(checkout):
    checkout.remove("gcc")
    refused(checkout.run("--gpu"), checkout, "gcc")
    refused(checkout.run("--gpu", CC="my-cc"), checkout, "my-cc")
    refused(checkout.run("--gpu", CC="bash", NO_HEADER="1"), checkout, "python3.11-dev")
    assert checkout.run("--gpu", CC="bash -O2").returncode == 0
    assert checkout.run(TIR_VENV=str(checkout.root / "cpu"), NO_HEADER="1").returncode == 0, "no Triton on CPU"


def test_an_old_node_is_refused_though_the_environment_that_nodes_share_is_complete(checkout):
    checkout.driver("580.1")
    assert checkout.run("--gpu").returncode == 0
    checkout.notes.unlink()
    checkout.driver("550.1")
    refused(checkout.run("--gpu"), checkout, "550.1")


@pytest.mark.parametrize("apt", [None, "exit 100"])
def test_a_node_without_bubblewrap_is_set_up_all_the_same(checkout, apt):
    checkout.remove("bwrap")
    if apt:
        checkout.add("apt-get", f"#!/usr/bin/env bash\n{apt}\n")
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert "bubblewrap" in done.stdout and "pip" in checkout.installed


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to give it up")
def test_a_user_who_is_not_root_sets_a_node_without_bubblewrap_up():
    with tempfile.TemporaryDirectory() as directory:  # pytest's own is closed to other users
        checkout = Checkout(Path(directory))
        checkout.remove("bwrap")
        checkout.add("apt-get", '#!/usr/bin/env bash\necho apt >> "$NOTES"\n')
        for path in (checkout.root, *checkout.root.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o777)
        done = checkout.run("--gpu", prefix=NOBODY)
        assert done.returncode == 0, done.stderr
        assert "bubblewrap" in done.stdout and "pip" in checkout.installed and "apt" not in checkout.installed.split()


@pytest.mark.slow
def test_disk_is_checked_where_the_environment_goes_and_where_pip_downloads(checkout):
    checkout.disk(20)
    refused(checkout.run("--gpu", TIR_VENV=str(checkout.root / "big/venv")), checkout, "25", "20", "TIR_VENV")
    assert f"df {checkout.root}\n" in checkout.installed
    assert checkout.run().returncode == 0, "without CUDA's libraries it is enough"
    checkout.notes.unlink()
    small = checkout.root / "small"
    small.mkdir()
    free = 100 * 1024 * 1024
    checkout.add("df", f'#!/usr/bin/env bash\n[[ $* == *small* ]] && n=1024 || n={free}\nprintf "h\\n- 0 0 $n -\\n"\n')
    refused(checkout.run("--gpu", TIR_VENV=str(checkout.root / "v"), TMPDIR=str(small)), checkout, str(small), "TMPDIR")


@pytest.mark.slow
@pytest.mark.extended
def test_byte_code_is_kept_though_the_image_says_otherwise(tmp_path):
    """Else every process of a run compiles torch and vLLM anew, 10 s each."""
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPYCACHEPREFIX": str(tmp_path),
        "PYTHONPATH": str(REPO),
    }
    words = [sys.executable, "-m", "openrlhf_tir.cli", "show-config", "--help"]
    subprocess.run(words, env=environment, capture_output=True, check=True, timeout=120)
    assert any(tmp_path.rglob("show_config*.pyc"))
