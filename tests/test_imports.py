"""The import rules of the package, checked on the source text: direction, cycles, device seams.

Every import statement counts, those inside functions too; only `if TYPE_CHECKING:` blocks don't
take part in cycles, because they never run.  The layers are those in docs/design.md.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.folders import ROOT

PACKAGE = ROOT / "pyfuser"

# From the bottom to the top.  Names of one row don't import each other, but for ALLOWED below.
LAYERS = (
    {"errors", "locks", "memory", "nvfuser_direct_version", "other_names"},
    {"options", "collection"},
    {"trace"},
    {"dtypes"},
    {"ir"},
    {"ops"},
    {"target"},
    {"analysis"},
    {"preseg", "schedule"},
    {"segment", "lower"},
    {"devices"},
    {"reproducer"},
    {"kernel_cache", "caches", "fallback", "profiling"},
    {"decisions"},
    {"kernel_builds"},
    {"parts"},
    {"compiler"},
    {"plans"},
    {"executor"},
    {"interface"},
    {"tuning"},
    {"frontend", "torch_compile", "thunder", "distributed"},
    {"autotuning", "benchmark_utils", "idm", "multidevice", "nvf_cutlass", "pytorch_utils"},
    {"__init__"},
    {"_C_DIRECT"},
    {"command_line"},
    {"__main__"},
)
ALLOWED = {
    ("segment", "schedule"): "a group may grow as long as some scheduler accepts it",
    ("lower", "schedule"): "lowering cuts a grid reduction in two with the schedule's own rfactor",
}


@dataclass(frozen=True)
class Import:
    """`module` (a dotted name without the leading package) imports `target` at `line`."""

    module: str
    target: str
    line: int
    only_types: bool

    def __str__(self) -> str:
        return f"pyfuser.{self.module}:{self.line} imports pyfuser.{self.target}"


def module_names() -> dict[str, Path]:
    """Dotted name without the leading package -> file; `ir` stands for `ir/__init__.py`."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
        names[".".join(parts)] = path
    return names


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    """The imports of pyfuser's own modules in one file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    type_checking = {
        id(inner) for node in ast.walk(tree) if is_type_checking(node) for inner in ast.walk(node)
    }
    package = ["pyfuser", *(module.split(".") if module != "__init__" else [])]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(tree):
        for target in targets_of(node, package, modules):
            yield Import(module, target, node.lineno, id(node) in type_checking)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def targets_of(node: ast.AST, package: list[str], modules: dict[str, Path]) -> Iterator[str]:
    """The modules that an import statement in `package` asks for by name."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from known(alias.name, modules)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*base, *(node.module.split(".") if node.module else [])])
        for alias in node.names:
            # `from .ir import domains` asks for a module, `from .ir.domains import Split` doesn't.
            found = list(known(f"{source}.{alias.name}", modules))
            yield from found or known(source, modules)


def known(name: str, modules: dict[str, Path]) -> Iterator[str]:
    if name == "pyfuser":
        yield "__init__"
    elif name.startswith("pyfuser.") and name.removeprefix("pyfuser.") in modules:
        yield name.removeprefix("pyfuser.")


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    modules = module_names()
    return [each for name, path in modules.items() for each in imports_of(name, path, modules)]


def layer_of(module: str) -> int:
    top = module.split(".")[0]
    for number, names in enumerate(LAYERS):
        if top in names:
            return number
    raise AssertionError(f"pyfuser.{module}: expected a layer in LAYERS for {top!r}, got none")


def test_every_import_points_down(imports: list[Import]) -> None:
    wrong = []
    for each in imports:
        source, target = each.module.split(".")[0], each.target.split(".")[0]
        if source == target or (source, target) in ALLOWED:
            continue
        if layer_of(each.target) >= layer_of(each.module):
            wrong.append(str(each))
    assert wrong == [], "\n".join(wrong)


def test_every_module_has_a_layer() -> None:
    assert len(module_names()) > 200
    for name in module_names():
        layer_of(name)


def test_every_exception_to_the_layers_is_used(imports: list[Import]) -> None:
    used = {(each.module.split(".")[0], each.target.split(".")[0]) for each in imports}
    assert set(ALLOWED) <= used


def test_no_cycles(imports: list[Import]) -> None:
    graph: dict[str, set[str]] = {}
    for each in imports:
        if not each.only_types and each.target != each.module:
            graph.setdefault(each.module, set()).add(each.target)
    assert cycle_in(graph) is None


def cycle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """The modules of one cycle in order, or None."""
    finished: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in finished:
            return None
        path.append(module)
        for target in sorted(graph.get(module, ())):
            if found := visit(target):
                return found
        finished.add(path.pop())
        return None

    for module in sorted(graph):
        if found := visit(module):
            return found
    return None


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}}) is None


def test_only_the_command_line_names_a_device(imports: list[Import]) -> None:
    """A device registers itself: code above the devices finds it by the tensors' device."""
    named = ("devices.cpu", "devices.cuda")
    wrong = [
        str(each)
        for each in imports
        if each.target.startswith(named) and not each.module.startswith((*named, "command_line"))
    ]
    assert wrong == [], "\n".join(wrong)


def test_devices_do_not_import_each_other(imports: list[Import]) -> None:
    pairs = (("devices.cpu", "devices.cuda"), ("devices.cuda", "devices.cpu"))
    wrong = [
        str(each)
        for each in imports
        for source, target in pairs
        if each.module.startswith(source) and each.target.startswith(target)
    ]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("pyfuser.devices.cuda.nvrtc", "llvmlite"),
        ("pyfuser.devices.cuda.runtime", "llvmlite"),
        ("pyfuser.devices.cpu.jit", "pyfuser.devices.cuda"),
        ("pyfuser", "llvmlite"),
        ("pyfuser", "pyfuser.devices"),
        ("pyfuser", "pyfuser.frontend"),
        ("pyfuser.torch_compile.backend", "pyfuser.frontend"),
        ("pyfuser.torch_compile.backend", "pyfuser.tuning"),
        ("pyfuser.devices.cpu.runtime", "pyfuser.devices.cpu.codegen"),
        ("pyfuser.__main__", "pyfuser.devices.cuda.emulator"),
        ("pyfuser.devices.cuda.runtime", "pyfuser.devices.cuda.emulator"),
    ],
)
def test_a_device_loads_only_when_it_is_used(imported: str, absent: str) -> None:
    script = f"import sys, {imported}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
