"""The house rules that a machine can check: who may import whom, file sizes, links, wording."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Crate -> the ingle crates it may depend on (docs/ARCHITECTURE.md draws this).
CRATE_DEPENDENCIES = {
    "ingle-core": set(),
    "ingle-jinja": set(),
    "ingle-text": {"ingle-jinja"},
    "ingle-model": set(),
    "ingle-cpu": {"ingle-core", "ingle-model"},
    "ingle-cuda": {"ingle-core", "ingle-model"},
    "ingle-sim": {"ingle-core"},
    "ingle-engine": {
        "ingle-core",
        "ingle-cpu",
        "ingle-cuda",
        "ingle-model",
        "ingle-sim",
        "ingle-text",
        "ingle-zmtp",
    },
    "ingle-zmtp": set(),
    "ingle-hardening": set(),
    "ingle-python": {"ingle-engine", "ingle-hardening"},
    # Tests only: the parsers of untrusted bytes against hostile inputs.
    "ingle-fuzz": {
        "ingle-core",
        "ingle-engine",
        "ingle-model",
        "ingle-sim",
        "ingle-text",
        "ingle-zmtp",
    },
}
FORBID_UNSAFE = ["core", "jinja", "text", "model", "sim", "zmtp", "engine"]
# What the worker may not import: slow to load, or a way to run what it is fed.
BANNED_IMPORTS = {"torch", "transformers", "pickle", "marshal", "subprocess", "numpy", "requests"}
MAX_LINES = 600


def tracked(*patterns: str) -> list[Path]:
    output = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True
    ).stdout
    return [ROOT / name for name in output.decode().split("\0") if name]


def test_crates_depend_only_downwards():
    output = subprocess.run(
        ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    packages = json.loads(output)["packages"]
    assert {package["name"] for package in packages} == set(CRATE_DEPENDENCIES)
    for package in packages:
        used = {
            dependency["name"]
            for dependency in package["dependencies"]
            if dependency["name"].startswith("ingle-") and dependency["kind"] != "dev"
        }
        surplus = used - CRATE_DEPENDENCIES[package["name"]]
        assert not surplus, f"{package['name']} must not depend on {surplus}"


def test_one_device_is_named_only_where_devices_live():
    """Elsewhere a device is its `ExecutorShape`, `DeviceOwn` or `may_use_gpu`."""
    named = re.compile(r"cuda|nvrtc|cublas", re.IGNORECASE)
    homes = ("rust/cuda/", "rust/engine/src/device/")
    elsewhere = {
        "rust/hardening/src/policies.rs": "the names of policy files",
        "python/ingle/config.py": "values and names of settings",
        "python/ingle/engine.py": "the same as arguments",
        "python/ingle/model_set.py": "the same, which the table of a model cannot have",
        "python/ingle/server/guard.py": "files that these settings name",
        "python/ingle/places.py": "where pip puts NVIDIA's libraries",
        "python/ingle/hardening.py": "a variable that the driver reads",
        "python/ingle/integrations/dynamo.py": "an example in a docstring",
        "python/ingle/integrations/ray/__init__.py": "an example in a docstring",
    }
    found = set()
    for path in tracked("rust/*/src/*.rs", "python/*.py", "python/*.pyi"):
        name = path.relative_to(ROOT).as_posix()
        lines = [line for line in path.read_text().splitlines() if named.search(line)]
        if lines and not name.startswith(homes):
            assert name in elsewhere, (name, lines)
            found.add(name)
    assert found == elsewhere.keys()


def test_only_the_device_layer_uses_bare_device_addresses():
    """Other code passes typed slices, whose lengths are checked before a launch."""
    layer = {"arena", "device_slice", "gemm", "memory", "module", "tensor_map"}
    bare = re.compile(r"\.address\(\)|DevicePtr::new\(|CuDevicePtr")
    paths = [path for path in tracked("rust/cuda/src/*.rs") if "sys" not in path.parts]
    assert layer <= {path.stem for path in paths}
    found = {}
    for path in paths:
        product = path.read_text().split("#[cfg(test)]")[0]
        is_test = path.stem == "fake" or path.name == "tests.rs"
        if path.stem not in layer and not is_test and bare.search(product):
            found[path.relative_to(ROOT).as_posix()] = bare.findall(product)
    assert not found


def test_each_model_family_has_a_reference_model_and_stands_in_the_readme():
    facts = re.compile(r'FACTS: Facts = Facts \{\s*model_type: "(\w+)"')
    sources = [path.read_text() for path in tracked("rust/model/src/config/family/*.rs")]
    families = {name for text in sources for name in facts.findall(text)}
    assert families
    configs = tracked("tests/golden/models/*/config.json")
    tested = {json.loads(path.read_text()).get("model_type") for path in configs}
    assert families <= tested
    (row,) = re.findall(r"^\| architectures \|.*$", (ROOT / "README.md").read_text(), re.M)
    assert {name.removesuffix("_text") for name in families} <= set(re.findall(r"\w+", row))


@pytest.mark.parametrize("crate", FORBID_UNSAFE)
def test_safe_crates_forbid_unsafe(crate):
    assert "#![forbid(unsafe_code)]" in (ROOT / f"rust/{crate}/src/lib.rs").read_text()


def imports(path: Path) -> set[str]:
    names = set()
    package = path.relative_to(ROOT / "python").with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def test_python_layers_import_only_what_lies_below():
    for path in tracked("python/*.py"):
        used = imports(path)
        top = {name.split(".")[0] for name in used}
        assert not top & BANNED_IMPORTS, f"{path}: {top & BANNED_IMPORTS}"
        inside_server = "server" in path.parts
        reaches_core = any(name.startswith("ingle._core") for name in used)
        if inside_server:
            assert not reaches_core, f"{path}: the server talks to ingle.engine, not to the core"
        elif path.name not in {"cli.py", "__init__.py"}:
            reaches_server = any(name.startswith("ingle.server") for name in used)
            assert not reaches_server, f"{path}: only the command line starts a server"


def code_lines(path: Path) -> int:
    """Lines of a file without a trailing Rust test module."""
    text = path.read_text()
    if path.suffix == ".rs":
        text = text.split("\n#[cfg(test)]\nmod tests {")[0]
    return text.count("\n")


def test_files_stay_readable():
    # Nobody edits what is generated: bindings, and the header of the contract.
    generated = {path for path in tracked("*.rs", "*.cuh") if "sys" in path.parts}
    generated.add(ROOT / "kernels" / "contract.cuh")
    too_long = {
        str(path.relative_to(ROOT)): code_lines(path)
        for path in tracked("*.rs", "*.py", "*.cu", "*.cuh", "*.pyi")
        if path not in generated and code_lines(path) > MAX_LINES
    }
    assert not too_long


def test_every_source_file_says_what_it_is():
    silent = []
    for path in tracked("rust/*.rs", "kernels/*.cu", "python/*.py"):
        first = path.read_text().lstrip()
        if not first.startswith(("//!", "//", "/*", '"""')):
            silent.append(str(path.relative_to(ROOT)))
    assert not silent


def test_links_in_documents_lead_somewhere():
    broken = []
    for path in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken


def test_a_decode_step_is_read_in_one_sitting():
    """The table of docs/ARCHITECTURE.md, from the step loop to the socket, whole files counted."""
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = text.split("## One decode step, in reading order")[1].split("\n## ")[0]
    rows = re.findall(r"^\| \[[^\]]+\]\(\.\./(\S+)\) \| (.+) \|$", section, re.M)
    files = [name for name, _ in rows]
    assert files[0].endswith("engine_thread.rs")
    assert {"rust/core/src/scheduler.rs", "rust/cuda/src/executor.rs"} < set(files)
    assert {"rust/engine/src/deliver.rs", "rust/engine/src/outbox.rs"} == set(files[-2:])
    assert all((ROOT / name).is_file() and what.strip() for name, what in rows)
    num_lines = sum(len((ROOT / name).read_text().splitlines()) for name in files)
    assert len(set(files)) == len(files) <= 15
    assert num_lines <= 3500


def test_request_path_is_marked():
    """Each step [1] to [9] of the request path stands in the first lines of some file."""
    heads = "\n".join(
        "\n".join(path.read_text().splitlines()[:3])
        for path in tracked("rust/*.rs", "python/*.py", "kernels/*.cu")
    )
    missing = [step for step in range(1, 10) if f"[{step}]" not in heads]
    assert not missing


def test_glossary_terms_are_not_renamed():
    """Words that the glossary replaces do not come back as names."""
    glossary = (ROOT / "docs/GLOSSARY.md").read_text()
    instead = re.findall(r"not `(\w+)`", glossary)
    assert instead
    pattern = re.compile(r"\b(?:fn|struct|enum|def|class)\s+(" + "|".join(instead) + r")\b")
    found = [
        f"{path.relative_to(ROOT)}: {match.group(1)}"
        for path in tracked("rust/*.rs", "python/*.py")
        for match in pattern.finditer(path.read_text())
    ]
    assert not found


def test_names_of_tests_use_the_terms_of_the_field():
    """A name is searched for by what it is about, and in the words that a stranger would use."""
    private = re.compile(r"\b(?:def|fn) (test_(?:\w+_)?(?:tol[d]|tell|tells|whoever)(?:_\w+)?)\b")
    paths = tracked("tests/*.py", "tests/**/*.py", "rust/*.rs", "rust/**/*.rs")
    assert len(paths) > 300
    assert not [name for path in paths for name in private.findall(path.read_text())]


def test_a_value_is_reported_or_returned_or_known():
    """Each of these says more than the one word that could stand for them all."""
    word = re.compile(r"(?:\b|_)[Tt]ol[d](?:\b|_)")
    folders = (
        "rust/*.rs",
        "python/*.py",
        "kernels/*.cu",
        "kernels/*.cuh",
        "tests/*.py",
        "docs/*.md",
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(*folders)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert not found


def test_every_safety_comment_stands_alone():
    """A reader of an unsafe block need not look for another comment to see why it is sound."""
    reference = re.compile(
        r"\b(as above|as in|as for|as `\w+`|passed on|by (the )?contract)\b", re.I
    )
    comments = [
        (path.relative_to(ROOT), " ".join(comment.replace("//", " ").split()))
        for path in tracked("rust/*.rs")
        for comment in re.findall(r"//+ SAFETY:.*(?:\n\s*//.*)*", path.read_text())
    ]
    assert len(comments) > 150
    assert not [comment for comment in comments if reference.search(comment[1])]
