# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/design.md that a program can check: imports, and the first line of each file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "wptrace"
GENERATED = {PACKAGE / "bpf/_libbpf.py"}

# The modules that each part may import of the package, itself included; `wptrace` alone is what holds for all of it.
_PURE = {"model", "errors"}
_FINDS = {"analysis", "correlation", *_PURE}
MAY_IMPORT = {
    "__init__": set(),
    "__main__": {"cli", "wptrace"},
    "errors": set(),
    "model": _PURE,
    "bpf": {"bpf", "errors"},
    "kernel": {"kernel", "errors"},
    "analysis": {"analysis", *_PURE},
    "correlation": {"correlation", *_PURE},
    "capture": {"capture", "bpf", "kernel", "analysis", *_PURE},
    "engine": {"engine", "capture", "bpf", "kernel", "wptrace", *_FINDS},
    "flows": {"flows", "engine", "capture", "bpf", "kernel", "wptrace", *_FINDS},
    "outputs": {"outputs", "kernel", "wptrace", *_FINDS},
    "agent": {"agent", "outputs", "engine", "capture", "bpf", "kernel", "wptrace", *_FINDS},
    "tools": {"tools", "engine", "capture", "flows", "bpf", "kernel", "analysis", *_PURE},
    "cli": {"cli", "tools", "agent", "flows", "outputs", "engine", "capture", "bpf", "kernel", "wptrace", *_FINDS},
}


class Import(NamedTuple):
    module: str
    line: int
    lazy: bool
    """It is in a function, so it costs nothing before that runs."""
    typing: bool
    """It is only for type checkers."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path not in GENERATED)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def of(source: str) -> list[Import]:
    return list(_imports(ast.parse(source), lazy=False, typing=False))


def _imports(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, lazy, typing)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            raise ValueError(f"line {node.lineno} imports relatively: its module cannot be told from the line")
        for alias in node.names:
            # `from wptrace.bpf import ring` is an import of wptrace.bpf.ring.
            yield Import(f"{node.module}.{alias.name}", node.lineno, lazy, typing)
    elif isinstance(node, ast.Call) and _is_import_call(node):
        name = node.args[0]
        literal = name.value if isinstance(name, ast.Constant) else _prefix(name)
        yield Import(str(literal), node.lineno, lazy, typing)
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checked = typing or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        yield from _imports(child, inside, checked)


def _is_import_call(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__") and bool(node.args)


def _prefix(node: ast.AST) -> str:
    """Return the beginning of an f-string."""
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        return f"{node.values[0].value!s}*"
    return "*"


def part(module: str) -> str:
    """Return the part of the package that a module belongs to; empty for others."""
    names = module.split(".")
    if names[0] != "wptrace":
        return ""
    if len(names) > 1 and (names[1] in MAY_IMPORT and not names[1].startswith("__")):
        return names[1]
    return "wptrace"


def owner(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first[:-3] if first.endswith(".py") else first


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_arrows_point_one_way(path: Path) -> None:
    allowed = MAY_IMPORT[owner(path)]
    for found in of(path.read_text()):
        wanted = part(found.module)
        assert not wanted or wanted in allowed, f"{relative(path)}:{found.line} imports {found.module}"


def test_no_modules_import_each_other() -> None:
    """Neither late imports nor imports for type checkers may be circular."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in modules()
    }
    graph = {}
    for name, path in names.items():
        found = (one.module for one in of(path.read_text()))
        # The longest part that is a module.
        graph[name] = {one if one in names else one.rpartition(".")[0] for one in found} & names.keys() - {name}
    assert sum(map(len, graph.values())) > 1000
    TopologicalSorter(graph).prepare()


def test_flows_do_not_know_each_other() -> None:
    """A flow has to be independent of others."""
    top = PACKAGE / "flows"
    for path in modules():
        if path.is_relative_to(top) and path != top / "__init__.py":
            own = path.relative_to(top).parts[0].removesuffix(".py")
            for found in of(path.read_text()):
                if f"{found.module}.".startswith("wptrace.flows."):
                    assert f"{found.module}.".startswith(f"wptrace.flows.{own}."), f"{own} imports {found.module}"


def test_the_reader_of_imports_sees_all_of_them() -> None:
    source = textwrap.dedent(
        """
        import a.b, c
        from wptrace.bpf import ring
        from wptrace import __version__
        if TYPE_CHECKING:
            from d import e
        class C:
            import f
            def method(self):
                import g
                importlib.import_module(f"wptrace.cli.{self}")
        try:
            import h
        except ImportError:
            __import__("i")
        """
    )
    found = of(source)
    assert [one.module for one in found] == [
        "a.b", "c", "wptrace.bpf.ring", "wptrace.__version__", "d.e", "f", "g", "wptrace.cli.*", "h", "i",
    ]  # fmt: skip
    assert [one.module for one in found if one.lazy] == ["g", "wptrace.cli.*"]
    assert [one.module for one in found if one.typing] == ["d.e"]
    assert [part(one.module) for one in found] == ["", "", "bpf", "wptrace", "", "", "", "cli", "", ""]
    with pytest.raises(ValueError, match="imports relatively"):
        of("from . import x")


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_what_is_slow_to_import_is_imported_late(path: Path) -> None:
    for found in of(path.read_text()):
        if found.module.partition(".")[0] in {"rich", "numpy"}:
            assert found.lazy or found.typing, f"{relative(path)}:{found.line} imports {found.module} at once"


def imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    command = [sys.executable, "-W", "error", "-c", code]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())


SLOW = {"rich", "elftools", "cffi", "_cffi_backend", "numpy"}


def test_the_command_line_starts_without_what_is_slow() -> None:
    found = imported("import wptrace.cli.main")
    assert "wptrace.cli.main" in found
    assert not found & (SLOW | {"wptrace.flows", "wptrace.outputs", "wptrace.bpf", "asyncio", "hypothesis"})


def test_the_commands_are_listed_without_their_flows() -> None:
    found = imported("import wptrace.cli.main as m; sys.argv[1:] = ['--help']; m._main()")
    assert "wptrace.cli.stacks" in found
    assert not found & (SLOW | {"wptrace.flows", "wptrace.bpf"})


def test_a_flow_is_imported_without_what_a_start_does_not_need() -> None:
    found = imported("from wptrace.flows import discover; discover()")
    assert "wptrace.flows.io.block" in found
    assert not found & {"rich", "elftools", "numpy", "wptrace.bpf.elf", "wptrace.outputs", "wptrace.cli", "asyncio"}


def test_a_run_is_imported_without_what_dumps_alone_need() -> None:
    assert not imported("import wptrace.engine.run, wptrace.flows.io.path") & {"wptrace.engine.dumps", "subprocess"}


def test_what_is_pure_needs_no_kernel() -> None:
    pure = [path for name in ("model", "analysis", "correlation") for path in sorted((PACKAGE / name).glob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in pure if path.stem != "__init__"]
    found = imported("; ".join(f"import {name}" for name in names))
    assert not found & (SLOW | {f"wptrace.{part}" for part in MAY_IMPORT} - {f"wptrace.{part}" for part in _FINDS})


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_every_module_says_its_license_and_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    tree = ast.parse(text)
    defines = any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)) for node in tree.body)
    assert ast.get_docstring(tree) or not defines, "it has no docstring"


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_the_package_asserts_nothing(path: Path) -> None:
    """`python -O` would remove an assertion, and its message is no sentence for a user."""
    asserts = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert asserts == []


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_errors_are_raised_of_the_one_tree(path: Path) -> None:
    """Other exceptions are for callers in Python: a wrong key, attribute or value, never a user's mistake."""
    plain = {"KeyError", "AttributeError", "ValueError", "NotImplementedError"}
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        name = ast.unparse(node.exc.func)
        ours = name.endswith("Error") and name not in dir(__builtins__)
        factory = name.split(".")[-1].startswith("_")
        assert ours or factory or name in plain, f"{relative(path)}:{node.lineno} raises {name}"


@pytest.mark.parametrize("path", [*modules(), *sorted((ROOT / "tests").rglob("*.py"))], ids=relative)
def test_every_python_file_parses_as_the_oldest_python_that_is_promised(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
    assert path.read_text().startswith(("# SPDX-License-Identifier: Apache-2.0\n", "#!/"))


def sources() -> list[Path]:
    return sorted([*(ROOT / "bpf_src").rglob("*.[ch]")])


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_bpf_sources_have_both_licenses(path: Path) -> None:
    both = "SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)"
    first = path.read_text().split("\n", 1)[0]
    assert first == (f"/* {both} */" if path.suffix == ".h" else f"// {both}")


def test_there_are_bpf_sources() -> None:
    assert len(sources()) >= 5


def test_programs_of_the_path_call_what_is_named_by_what_happened() -> None:
    source = (ROOT / "bpf_src/block/io_path.bpf.c").read_text()
    called = re.findall(r"^(?:TRACEPOINT\(\w+, \w+,|\t+return)\s+(\w+)\(", source, re.M)
    assert len(called) > 40
    assert not [name for name in called if not name.startswith("on_")]
