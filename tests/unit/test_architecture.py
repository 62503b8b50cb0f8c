# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/design.md that a program can check: imports, and the first line of each file."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import textwrap
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.docs.pages import ROOT, section, tables

PACKAGE = ROOT / "wptrace"
GENERATED = {PACKAGE / "bpf/_libbpf.py"}


def _may_import() -> dict[str, set[str]]:
    """Read from the page what each part may import of the package."""
    found: dict[str, set[str]] = {"__init__": set(), "__main__": {"cli", "wptrace"}}
    (rows,) = tables(section("design.md", "## The house"))
    for names, allowed in rows:
        for name in names.split(", "):
            found[name] = {name, "errors", *re.findall(r"\w+", allowed.partition(";")[0])} - {"nothing"}
    found["cli"] |= found.keys()
    # `wptrace` alone is what holds for all of it.
    for name in ("engine", "flows", "outputs", "agent", "cli"):
        found[name].add("wptrace")
    return found


MAY_IMPORT = _may_import()


class Import(NamedTuple):
    module: str
    line: int
    lazy: bool
    """It is in a function, so it costs nothing before that runs."""
    typing: bool
    """It is only for type checkers."""


class Module(NamedTuple):
    """The facts about a file that the rules concern."""

    imports: list[Import]
    raised: list[tuple[int, str]]
    asserts: list[int]
    needs_docstring: bool


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path not in GENERATED)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def read(path: Path) -> Module:
    """Parse a file once for all rules, as the oldest Python that is promised; lint parses the tests so."""
    return of(path.read_text())


def of(source: str) -> Module:
    tree = ast.parse(source, feature_version=(3, 9))
    defines = any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign)) for node in tree.body)
    found = Module([], [], [], defines and not ast.get_docstring(tree))
    _look(tree, found, lazy=False, typing=False)
    return found


def _look(node: ast.AST, found: Module, lazy: bool, typing: bool) -> None:
    if isinstance(node, ast.Import):
        found.imports.extend(Import(alias.name, node.lineno, lazy, typing) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            raise ValueError(f"line {node.lineno} imports relatively: its module cannot be told from the line")
        # `from wptrace.bpf import ring` is an import of wptrace.bpf.ring.
        found.imports.extend(Import(f"{node.module}.{alias.name}", node.lineno, lazy, typing) for alias in node.names)
    elif isinstance(node, ast.Call) and _is_import_call(node):
        name = node.args[0]
        literal = name.value if isinstance(name, ast.Constant) else _prefix(name)
        found.imports.append(Import(str(literal), node.lineno, lazy, typing))
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        found.raised.append((node.lineno, ast.unparse(node.exc.func)))
    elif isinstance(node, ast.Assert):
        found.asserts.append(node.lineno)
    lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    typing = typing or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    for child in ast.iter_child_nodes(node):
        _look(child, found, lazy, typing)


def _is_import_call(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
    return name in ("import_module", "__import__") and bool(node.args)


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


def test_the_page_has_every_package() -> None:
    assert MAY_IMPORT.keys() == {owner(path) for path in modules()}
    assert MAY_IMPORT["model"] == {"model", "errors"}


def test_arrows_point_one_way() -> None:
    for path in modules():
        allowed = MAY_IMPORT[owner(path)]
        for found in read(path).imports:
            wanted = part(found.module)
            assert not wanted or wanted in allowed, f"{relative(path)}:{found.line} imports {found.module}"


def test_no_modules_import_each_other() -> None:
    """Neither late imports nor imports for type checkers may be circular."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in modules()
    }
    graph = {}
    for name, path in names.items():
        found = (one.module for one in read(path).imports)
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
            for found in read(path).imports:
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
    found = of(source).imports
    assert [one.module for one in found] == [
        "a.b", "c", "wptrace.bpf.ring", "wptrace.__version__", "d.e", "f", "g", "wptrace.cli.*", "h", "i",
    ]  # fmt: skip
    assert [one.module for one in found if one.lazy] == ["g", "wptrace.cli.*"]
    assert [one.module for one in found if one.typing] == ["d.e"]
    assert [part(one.module) for one in found] == ["", "", "bpf", "wptrace", "", "", "", "cli", "", ""]
    with pytest.raises(ValueError, match="imports relatively"):
        of("from . import x")


def test_what_is_slow_to_import_is_imported_late() -> None:
    for path in modules():
        for found in read(path).imports:
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
    pure = ("model", "analysis", "correlation")
    paths = [path for name in pure for path in sorted((PACKAGE / name).glob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.stem != "__init__"]
    found = imported("; ".join(f"import {name}" for name in names))
    assert not found & (SLOW | {f"wptrace.{part}" for part in MAY_IMPORT.keys() - {*pure, "errors"}})


def test_every_module_says_what_it_is() -> None:
    assert [relative(path) for path in modules() if read(path).needs_docstring] == []


def test_the_package_asserts_nothing() -> None:
    """`python -O` would remove an assertion, and its message is no sentence for a user."""
    assert {relative(path): read(path).asserts for path in modules() if read(path).asserts} == {}


def test_errors_are_raised_of_the_one_tree() -> None:
    """Other exceptions are for callers in Python: a wrong key, attribute or value, never a user's mistake."""
    plain = {"LookupError", "KeyError", "AttributeError", "TypeError", "ValueError", "NotImplementedError"}
    plain |= {"TimeoutError", "IsADirectoryError"}  # caught as what the operating system reports
    for path in modules():
        for line, name in read(path).raised:
            ours = name.endswith("Error") and name not in dir(builtins)
            factory = name.split(".")[-1].startswith("_")
            assert ours or factory or name in plain, f"{relative(path)}:{line} raises {name}"


def test_every_python_file_says_its_license() -> None:
    first = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [relative(path) for path in modules() if not path.read_text().startswith(first)] == []
    tests = (ROOT / "tests").rglob("*.py")
    assert [relative(path) for path in tests if not path.read_text().startswith((first, "#!/"))] == []


def sources() -> list[Path]:
    return sorted([*(ROOT / "bpf_src").rglob("*.[ch]")])


def test_bpf_sources_have_both_licenses() -> None:
    both = "SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)"
    assert len(sources()) >= 5
    for path in sources():
        first = path.read_text().split("\n", 1)[0]
        assert first == (f"/* {both} */" if path.suffix == ".h" else f"// {both}"), relative(path)


def test_programs_of_the_path_call_what_is_named_by_what_happened() -> None:
    source = (ROOT / "bpf_src/block/io_path.bpf.c").read_text()
    called = re.findall(r"^(?:TRACEPOINT\(\w+, \w+,|\t+return)\s+(\w+)\(", source, re.M)
    assert len(called) > 40
    assert not [name for name in called if not name.startswith("on_")]
