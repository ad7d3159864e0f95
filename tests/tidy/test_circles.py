"""No file of a crate or of the Python package uses, even indirectly, a file that uses it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CRATES = sorted(path.parent.name for path in ROOT.glob("rust/*/Cargo.toml"))

COMMENT = re.compile(r"//[^\n]*")
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub\(\w+\) )?mod \w+(?:;|\s*\{.*?^\})", re.S | re.M)
USE = re.compile(r"^\s*(pub(?:\([\w: ]+\))? )?use ([^;]+);", re.M)


class Crate:
    """The modules of one crate: which file each is, and where each re-exported name comes from."""

    def __init__(self, src: Path) -> None:
        self.files: dict[tuple[str, ...], Path] = {}
        self.texts: dict[tuple[str, ...], str] = {}
        for path in sorted(src.rglob("*.rs")):
            module = path.relative_to(src).with_suffix("").parts
            if module[-1] in {"mod", "lib"}:
                module = module[:-1]
            if "tests" in module or module == ("testing",):
                continue
            self.files[module] = path
            self.texts[module] = TESTS.sub("", COMMENT.sub("", path.read_text()))
        self.exports: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
        for module, text in self.texts.items():
            self.exports[module] = {
                names[-1]: self.absolute(module, names)
                for public, tree in USE.findall(text)
                if public
                for names in flatten(tree)
            }

    def absolute(self, module: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
        """A path as seen from the crate's root; an unknown first name is another crate's."""
        at = module
        if names[0] == "crate":
            at, names = (), names[1:]
        while names and names[0] in {"self", "super"}:
            at, names = (at[:-1] if names[0] == "super" else at), names[1:]
        return (*at, *names)

    def owner(self, path: tuple[str, ...], depth: int = 0) -> tuple[str, ...] | None:
        """The module that defines what a path names, through re-exports; None outside the crate."""
        assert depth < 10, f"re-exports of {path} lead in a ring"
        for length in range(len(path), -1, -1):
            module = path[:length]
            if module not in self.files:
                continue
            if length == len(path):
                return module
            exported = self.exports[module].get(path[length])
            if exported is not None and exported != path:
                return self.owner(exported, depth + 1)
            return module
        return None

    def uses(self) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
        """Which modules each module's code names; a re-export alone is no use."""
        edges: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        for module, text in self.texts.items():
            found = edges.setdefault(module, set())
            rest = USE.sub("", text)
            uses = [
                (public, names) for public, tree in USE.findall(text) for names in flatten(tree)
            ]
            is_named = {names: re.search(rf"\b{names[-1]}\b", rest) for _, names in uses if names}
            children = [name[-1] for name in self.files if name[:-1] == module and name]
            inside = r"(?<![\w:])(?:crate|self|super|" + "|".join(["_", *children]) + r")(?:::\w+)+"
            paths = [names for public, names in uses if not public or is_named[names]]
            paths += [tuple(match.split("::")) for match in re.findall(inside, rest)]
            for names in paths:
                first = names[0]
                is_child = (*module, first) in self.files
                if first not in {"crate", "self", "super"} and not is_child:
                    continue
                owner = self.owner(self.absolute(module, names))
                if owner is not None and owner != module:
                    found.add(owner)
        return edges


def package_uses(root: Path) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Which modules each module of a Python package imports, also inside functions."""
    files = {}
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.pyi")]):
        module = path.relative_to(root).with_suffix("").parts
        files[module[:-1] if module[-1] == "__init__" else module] = path
    edges = {}
    for module, path in files.items():
        package = module if path.stem == "__init__" else module[:-1]
        named = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named.update(tuple(alias.name.split(".")) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                base += tuple((node.module or "").split(".")) if node.module else ()
                named.update((*base, alias.name) for alias in node.names)
        owners = {
            next((name[:n] for n in range(len(name), 0, -1) if name[:n] in files), module)
            for name in named
        }
        edges[module] = owners - {module}
    return edges


def flatten(tree: str, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of a `use` tree: `a::{b, c::d as e}` is `a::b` and `a::c::d`."""
    tree = " ".join(tree.split())
    paths, depth, start = [], 0, 0
    parts = []
    for place, char in enumerate(tree + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(tree[start:place].strip())
            start = place + 1
    for part in filter(None, parts):
        head, brace, inner = part.partition("{")
        names = tuple(name.split(" as ")[0].strip() for name in head.split("::") if name.strip())
        if brace:
            paths += flatten(inner.rpartition("}")[0], prefix + names)
        else:
            paths.append(prefix + tuple(name for name in names if name != "*"))
    return paths


def circles(edges: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[list[str]]:
    """Groups of modules that can all reach each other (strongly connected, Tarjan 1972)."""
    index: dict[tuple[str, ...], int] = {}
    low: dict[tuple[str, ...], int] = {}
    stack: list[tuple[str, ...]] = []
    groups = []

    def visit(node: tuple[str, ...]) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            group, stack[place:] = stack[place:], []
            if len(group) > 1:
                groups.append(sorted("::".join(module) or "lib" for module in group))

    for node in edges:
        if node not in index:
            visit(node)
    return groups


@pytest.mark.parametrize("crate", CRATES)
def test_files_of_a_crate_do_not_use_each_other_in_a_circle(crate):
    edges = Crate(ROOT / f"rust/{crate}/src").uses()
    assert sum(map(len, edges.values())) >= 1, "the search finds no use of any file"
    assert circles(edges) == []


def test_files_of_the_python_package_do_not_use_each_other_in_a_circle():
    edges = package_uses(ROOT / "python")
    assert ("ingle", "server", "status") in edges[("ingle", "server", "app")]
    assert circles(edges) == []


def test_a_circle_of_the_python_package_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/__init__.py").write_text("from a.b import c\n")
    (tmp_path / "a/b.py").write_text("def c():\n    from . import d\n")
    (tmp_path / "a/d.py").write_text("import a.b\n")
    assert circles(package_uses(tmp_path)) == [["a::b", "a::d"]]


def test_a_circle_through_a_re_export_is_found(tmp_path):
    (tmp_path / "kv").mkdir()
    (tmp_path / "lib.rs").write_text("mod plan;\nmod kv;\npub use plan::{Plan, Row as Line};\n")
    (tmp_path / "plan.rs").write_text("use crate::kv::Block;\npub struct Plan(Block);\n")
    (tmp_path / "kv/mod.rs").write_text("mod pool;\npub(crate) use pool::Block;\n")
    (tmp_path / "kv/pool.rs").write_text(
        "use std::fmt;\nuse crate::{\n    // crate::kv\n    Plan,\n};\npub struct Block;\n"
    )
    assert circles(Crate(tmp_path).uses()) == [["kv::pool", "plan"]]
    (tmp_path / "kv/pool.rs").write_text(
        "pub struct Block;\n#[cfg(test)]\nmod tests {\n    use crate::Plan;\n}\n"
    )
    assert circles(Crate(tmp_path).uses()) == []
