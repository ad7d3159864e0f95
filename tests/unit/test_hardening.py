import os

import pytest

from ingle import _core, hardening
from ingle.errors import HardeningError
from ingle.hardening import Layer, Lockdown


@pytest.fixture
def environment(monkeypatch):
    """An environment of the test's own, which is put back."""
    monkeypatch.setattr(os, "environ", {})
    return os.environ


def test_only_listed_variables_stay(environment):
    environment |= {"PATH": "/bin", "LC_ALL": "C", "OPENAI_API_KEY": "x", "LD_PRELOAD": "x.so"}
    assert hardening.empty_environment() >= 2
    assert environment["PATH"] == "/bin"
    assert environment["LC_ALL"] == "C"
    assert not {"OPENAI_API_KEY", "LD_PRELOAD"} & set(environment)
    assert environment["TZ"] == ":/etc/localtime"


def test_a_model_is_where_its_links_lead(tmp_path):
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots/1"
    blobs.mkdir()
    model.mkdir(parents=True)
    (blobs / "a").write_text("x")
    (model / "config.json").symlink_to(blobs / "a")
    (model / "own.json").write_text("x")
    (model / "templates").mkdir()
    (blobs / "b").write_text("x")
    (model / "templates/rag.jinja").symlink_to(blobs / "b")
    (model / "loop").symlink_to(model / "loop")
    assert set(hardening.model_places(model)) >= {model, blobs / "a", blobs / "b"}
    deep = model / "templates/deep"
    deep.mkdir()
    (deep / "link").symlink_to(tmp_path)
    assert tmp_path not in hardening.model_places(model), (
        "only a model's own folders are looked into"
    )
    alias = tmp_path / "alias"
    alias.symlink_to(model)
    assert model in hardening.model_places(alias)


def test_a_link_to_a_secret_does_not_bring_it_within_reach(tmp_path):
    model, keys = tmp_path / "model", tmp_path / "keys"
    model.mkdir()
    keys.write_text("secret")
    keys.chmod(0o600)
    (model / "tokenizer.json").symlink_to(keys)
    assert keys not in hardening.model_places(model)


def test_strict_names_all_that_is_missing(monkeypatch):
    report = (
        b'{"layers":[{"name":"files","on":false,"what":"none"},{"name":"a","on":true,"what":""}]}'
    )
    monkeypatch.setattr(_core, "harden_confine", lambda start: report)
    Lockdown("auto").confine()
    with pytest.raises(HardeningError, match=r"missing here: files: none$"):
        Lockdown("strict").confine()


def test_off_does_nothing_and_says_so(monkeypatch):
    for step in ("harden_shed", "harden_confine", "harden_finish"):
        monkeypatch.delattr(_core, step)
    lockdown = Lockdown("off")
    lockdown.shed()
    lockdown.confine()
    lockdown.finish()
    assert lockdown.summary() == {"mode": "off", "on": {}, "missing": {"all": "hardening is off"}}
    assert lockdown.metrics().endswith(b'ingle:hardening{layer="all"} 0\n')


def test_each_layer_is_a_gauge_and_a_line():
    lockdown = Lockdown("auto")
    lockdown.layers += [Layer("filter", True, "67 calls"), Layer("user", False, "root")]
    assert b'{layer="filter"} 1\ningle:hardening{layer="user"} 0\n' in lockdown.metrics()
    assert lockdown.lines() == ["auto: layers in force: 1", "missing: user: root"]


def test_a_gpu_asks_for_the_rules_of_its_driver(monkeypatch):
    asked = []
    monkeypatch.setattr(
        _core, "harden_finish", lambda readiness: asked.append(readiness) or b'{"layers":[]}'
    )
    monkeypatch.setattr(hardening, "driver_version", lambda: 580)
    gpu = Lockdown("auto", device="auto")
    gpu.finish("cuda:0 (NVIDIA H200)", recording=True)
    cpu = Lockdown("auto", device="auto")
    cpu.finish("cpu (avx512, 2 threads)", open_files=["/srv/model.gguf"], sleeps=True)
    assert asked == [
        b'{"gpu_driver": 580, "recording": true, "sleeps": false, '
        b'"open_files": [], "trace": false}',
        b'{"gpu_driver": null, "recording": false, "sleeps": true, '
        b'"open_files": ["/srv/model.gguf"], "trace": false}',
    ]
    gpu.layers = [Layer("files", True, "Landlock 6"), Layer("device_calls", True, "more")]
    ended = b'{"layers": [{"name": "device_calls", "on": true, "what": "those listed"}]}'
    monkeypatch.setattr(
        _core, "harden_end_recording", lambda readiness: asked.append(readiness) or ended
    )
    gpu.end_recording()
    assert asked[2] == asked[0]
    assert [layer.what for layer in gpu.layers] == ["Landlock 6", "those listed"]
