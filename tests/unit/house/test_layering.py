"""Dependencies point one way: every import of every module, read from the source, against LAYERS below."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[3]

LAYERS = [
    {
        "types",
        "pushes",
        "protocol",
        "errors",
        "http_guard",
        "machine",
        "user_code",
        "waiting",
        "algorithms",
        "config",
        "inert",
    },
    {"ports", "memory", "telemetry"},
    {"rewards", "filters"},
    {"engines", "data", "evaluation", "weights", "learner"},
    {"rollout"},
    {"pipeline"},
    {"observability", "simulation"},
    {"cluster"},
    {"cli", "__main__"},
]
"""Lowest first. A part may import its own layer and those below."""

OWNERS = {
    "openrlhf": {"openrlhf_tir/learner/openrlhf_adapter.py"},
    "ray": {"openrlhf_tir/cluster/"},
    "deepspeed": {"openrlhf_tir/learner/"},
    "vllm": {"openrlhf_tir/engines/", "openrlhf_tir/weights/"},
}
"""A library -> the only places that import it, at any depth of the file."""

TORCH_FREE = {
    "cli", "config", "data", "errors", "evaluation", "filters", "http_guard", "inert", "machine", "memory",
    "observability", "pipeline", "ports", "protocol", "pushes", "rewards", "rollout",
    "simulation", "telemetry", "types", "user_code", "waiting",
}  # fmt: skip
ENV_MAY_SHARE = {
    # One guard between the network and every HTTP server, so that a hole is closed once.
    # Torch-free: http_guard is in TORCH_FREE.
    "env_servers/": {
        f"openrlhf_tir.http_guard.{module}" for module in ("connections", "guard", "json_body", "leaving", "origin")
    },
    # One way to raise the limit of open files. Standard library only.
    "env_servers/launch.py": {"openrlhf_tir.machine.open_files"},
    # The class is looked up as every function of one's own is. Standard library only.
    # A tool's schema is what transformers makes of its type hints and docstring, as in TRL. Imported when one is made.
    # One way to run a call for a future in a thread that may be left behind. Standard library only.
    "env_servers/own/": {
        "openrlhf_tir.user_code.plugins",
        "openrlhf_tir.waiting.daemon_threads",
        "transformers.utils",
    },
    # One way to say where user code failed, and whether it is an outage. Standard library only.
    "env_servers/defects.py": {"openrlhf_tir.user_code.plugins", "openrlhf_tir.user_code.failures"},
    "env_servers/replies.py": {"openrlhf_tir.user_code.failures"},
    "env_servers/serving.py": {"openrlhf_tir.user_code.failures", "openrlhf_tir.user_code.loop_watch"},
    # One remedy for a machine without user namespaces and one reading of control groups, for a run's checks and for the
    # server. Standard library only.
    "env_servers/python_tir/isolation/": {
        "openrlhf_tir.machine.control_group",
        "openrlhf_tir.machine.namespaces",
    },
    "env_servers/python_tir/__main__.py": {"openrlhf_tir.machine.control_group"},
    # One back-off for everything that retries. Standard library only.
    "env_servers/swe/remote/": {"openrlhf_tir.waiting.backoff"},
    # One check of answers for trainer and service, so that they never disagree. Torch-free: rewards is in TORCH_FREE.
    "env_servers/math/": {
        "openrlhf_tir.rewards.checking.answer_check",
        "openrlhf_tir.rewards.checking.symbolic",
        "openrlhf_tir.rewards.workers",
        "openrlhf_tir.waiting.deadlines",
    },
    # One reading of BFCL's rows and functions for a run's data, its suites and their environment; a step is done in a
    # process that can be killed.
    "env_servers/adapters/bfcl/": {
        *(f"openrlhf_tir.data.{module}" for module in ("bfcl.functions", "bfcl.prompt", "bfcl.rows", "json_rows")),
        "openrlhf_tir.rewards.workers",
        "openrlhf_tir.waiting.deadlines",
    },
    # An encoder is a model: who retrieves by one has torch. Imported when --dense asks for it.
    "env_servers/search/encoder.py": {"torch", "transformers", "transformers.utils"},
}
"""Environment -> modules of the trainer that it imports besides protocol and errors, each with its reason."""
HEAVY = {"torch", "ray", "vllm", "deepspeed", "openrlhf", "transformers"}


def modules(package: str) -> list[Path]:
    return sorted((REPO / package).rglob("*.py"))


class Imported(NamedTuple):
    name: str
    """Absolute and dotted; relative imports are resolved."""
    line: int
    at_import: bool
    """Not inside of a function, not for type checkers only."""


@functools.cache
def every_import(path: Path) -> list[Imported]:
    """Each file is looked at by several tests."""
    package = path.relative_to(REPO).with_suffix("").parts[:-1]
    found = []
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), True)]
    while todo:
        node, at_import = todo.pop()
        if isinstance(node, ast.Import):
            found += [Imported(alias.name, node.lineno, at_import) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(p for p in (base, node.module or "") if p)
            found += [Imported(f"{name}.{alias.name}", node.lineno, at_import) for alias in node.names]
        elif not isinstance(node, ast.expr):
            inside = (
                at_import
                and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and not _is_type_checking(node)
            )
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]
    return found


def imports(path: Path, *, top_level_only: bool = False) -> list[tuple[str, int]]:
    """(name, line)."""
    return [(i.name, i.line) for i in every_import(path) if i.at_import or not top_level_only]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def part_of(dotted: str) -> str | None:
    """openrlhf_tir.learner.packing -> learner; the package itself and other packages -> None."""
    head, _, rest = dotted.partition(".")
    return rest.split(".")[0] if head == "openrlhf_tir" and rest else None


def layer(part: str) -> int:
    level = next((i for i, parts in enumerate(LAYERS) if part in parts), None)
    assert level is not None, f"openrlhf_tir/{part} has no layer: add it to LAYERS, and to docs/architecture.md"
    return level


@pytest.mark.slow
def test_a_module_imports_only_its_own_layer_and_those_below():
    faults = []
    for path in modules("openrlhf_tir"):
        part = path.relative_to(REPO / "openrlhf_tir").parts[0].removesuffix(".py")
        for name, line in imports(path) if part != "__init__" else ():
            target, where = part_of(name), f"{path.relative_to(REPO)}:{line}"
            if target and target != "__version__" and layer(target) > layer(part):
                faults.append(f"{where}: {part} imports {name}, which is above it")
            if name.startswith("env_servers"):
                faults.append(f"{where}: the trainer reaches environments by HTTP only")
    assert not faults, "\n".join(faults)


def test_no_two_folders_import_each_other_not_even_by_way_of_others():
    """Within a layer the order above says nothing: a cycle of folders there would make one room of several."""
    edges: dict[str, set[str]] = {}
    for path in modules("openrlhf_tir"):
        here = path.relative_to(REPO / "openrlhf_tir").parts[0].removesuffix(".py")
        there = {part_of(name) for name, _ in imports(path)}
        edges.setdefault(here, set()).update(t for t in there if t and t not in (here, "__version__", "__init__"))
    assert not (cycle := _cycle(edges)), f"these import each other in a circle: {' -> '.join(cycle)}"


def _cycle(edges: dict[str, set[str]]) -> list[str]:
    """One cycle of the graph, its first node repeated at the end; empty when there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for other in sorted(edges.get(node, ())):
            if found := walk(other, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(edges) if (found := walk(node, []))), [])


def test_a_cycle_by_way_of_a_third_folder_is_found():
    assert _cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert _cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.slow
@pytest.mark.parametrize("library", OWNERS)
def test_a_heavy_library_is_imported_only_by_its_owner(library):
    for path in [*modules("openrlhf_tir"), *modules("env_servers"), *modules("miniatures")]:
        where = str(path.relative_to(REPO))
        if any(where.startswith(owner) for owner in OWNERS[library]):
            continue
        hits = [line for name, line in imports(path) if name.split(".")[0] == library]
        assert not hits, f"{where}:{hits[0]} imports {library}; only {', '.join(sorted(OWNERS[library]))} may"


def test_environment_servers_import_only_the_protocol_and_the_errors():
    for path in modules("env_servers"):
        where = str(path.relative_to(REPO))
        shared = {m for env, modules in ENV_MAY_SHARE.items() if where.startswith(env) for m in modules}
        for name, line in imports(path):
            target = part_of(name)
            if name in shared or name.rpartition(".")[0] in shared:
                continue
            assert target in (None, "protocol", "errors"), (
                f"{path.name}:{line}: imports {name}; an env image holds only protocol and errors"
            )
            assert name.split(".")[0] not in HEAVY, f"{path.name}:{line}: imports {name}"


@pytest.mark.parametrize("part", sorted(TORCH_FREE))
def test_base_modules_import_nothing_heavy_when_imported(part):
    root = REPO / "openrlhf_tir" / part
    for path in modules(f"openrlhf_tir/{part}") if root.is_dir() else [root.with_suffix(".py")]:
        for name, line in imports(path, top_level_only=True):
            assert name.split(".")[0] not in HEAVY, f"{path.relative_to(REPO)}:{line} imports {name} at the top"


def test_the_check_sees_an_import_that_points_up(tmp_path, monkeypatch):
    (tmp_path / "openrlhf_tir" / "data").mkdir(parents=True)
    bad = tmp_path / "openrlhf_tir" / "data" / "bad.py"
    bad.write_text("from ..cluster.main import train\nfrom . import rows\ndef f():\n    import torch\n")
    monkeypatch.setattr("tests.unit.house.test_layering.REPO", tmp_path)
    assert sorted(imports(bad), key=lambda i: i[1]) == [
        ("openrlhf_tir.cluster.main.train", 1),
        ("openrlhf_tir.data.rows", 2),
        ("torch", 4),
    ]
    assert ("torch", 4) not in imports(bad, top_level_only=True)
    with pytest.raises(AssertionError, match="which is above it"):
        test_a_module_imports_only_its_own_layer_and_those_below()


def test_of_the_trainer_only_the_commands_of_miniatures_import_them():
    importers = {
        str(path.relative_to(REPO / "openrlhf_tir"))
        for path in modules("openrlhf_tir")
        for name, _ in imports(path)
        if name.startswith("miniatures.")
    }
    assert importers == {f"cli/{command}.py" for command in ("model", "quickstart", "reproduce", "toy_model")}


def test_what_miniatures_train_on_knows_nothing_of_the_programs_that_run_and_judge_them():
    rooms = ("pipeline", "observability", "simulation", "cluster", "cli")
    above = ("miniatures.reproduce", *(f"openrlhf_tir.{room}" for room in rooms))
    runs_them = {"miniatures/toy/jobs.py", "miniatures/toy/base.py"}
    below = [
        path
        for path in modules("miniatures")
        if "reproduce" not in path.parts and str(path.relative_to(REPO)) not in runs_them
    ]
    faults = [
        f"{path.relative_to(REPO)}:{line} imports {name}"
        for path in below
        for name, line in imports(path)
        if name.startswith(above)
    ]
    assert below
    assert faults == []
