import argparse
import dataclasses
import json

import pytest

from ingle import config, places
from ingle.config import Settings, with_flags
from ingle.errors import ConfigError
from ingle.places import cuda_libraries


def parse(arguments, groups=("engine", "server")):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", nargs="?")
    config.add_flags(parser, groups)
    return config.load(vars(parser.parse_args(arguments)))


def test_flag_wins_over_file_wins_over_default(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text('port = 1\nmax-num-seqs = 7\nhost = "0.0.0.0"\n')
    settings = parse(["m", "--config", str(file), "--port", "2"])
    assert (settings.port, settings.max_num_seqs, settings.host) == (2, 7, "0.0.0.0")
    assert settings.shutdown_timeout == 30.0


def test_model_may_come_from_the_file(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text('model = "there"\n')
    assert parse(["--config", str(file)]).model == "there"
    assert parse(["here", "--config", str(file)]).model == "here"
    with pytest.raises(ConfigError, match="model: no model given"):
        parse([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown setting 'prot'"),
        ("port = '1'", 'ingle.toml: port: must be a whole number from 0 to 65535, not "1"'),
        ("port = true", "port: must be a whole number from 0 to 65535, not true"),
        ("port = 70000", "ingle.toml: port: must be a whole number from 0 to 65535, not 70000"),
        (
            "shutdown-timeout = nan",
            "ingle.toml: shutdown-timeout: must be a number from 0 to 86400, not nan",
        ),
        ("unknown-fields = 'ignore'", 'unknown-fields: must be "refuse" or "warn", not "ignore"'),
        ("sim-speed = -1", "sim-speed: must be a number above 0 or inf"),
        ("block-size = -1", "block-size: must be a whole number from 1 to 65536, not -1"),
        ("kv-cache-memory-bytes = -1", "kv-cache-memory-bytes: must be a whole number from 1 to"),
        ("port =", "Invalid value"),
        ("port = " + "[" * 10_000, "recursion"),
    ],
)
def test_bad_file_is_refused_by_name(tmp_path, text, message):
    file = tmp_path / "ingle.toml"
    file.write_text('model = "m"\n' + text)
    with pytest.raises(ConfigError, match=message):
        parse(["--config", str(file)])


def test_unknown_flag_is_refused_and_none_is_abbreviated(capsys):
    for flag in ("--max-modell-len", "--max-model"):
        with pytest.raises(SystemExit) as ended:
            parse(["m", flag, "5"])
        assert ended.value.code == 2
        assert flag in capsys.readouterr().err


def test_every_setting_has_a_flag_that_sets_it():
    samples = {"int": "1024", "float": "3", "str": "4", "Path": "/x"}
    for field in dataclasses.fields(Settings):
        if field.name == "model":
            continue
        flag = config.flag_name(field.name)
        kind = config.plain_type(field.type)
        if kind is bool:
            settings = parse(["m", ("--no-" if field.default else "--") + flag])
        else:
            choices = config.get_args(kind)
            value = choices[-1] if choices else samples[kind.__name__]
            special = {
                "gpu_memory_utilization": "0.5",
                "allowed_origins": "*",
                "kv_events_config": "{}",
                "otlp_traces_endpoint": "http://127.0.0.1:4318/v1/traces",
                "tensor_parallel_size": "2",
                "trace_sample_ratio": "0.5",
            }
            value = special.get(field.name, value)
            settings = parse(["m", "--" + flag, value])
        assert getattr(settings, field.name) != field.default, field.name


def test_engine_options_hold_what_differs_from_the_defaults(tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    settings = Settings(
        model="/models/llama-tiny/",
        device="sim",
        sim_speed="inf",
        chat_template=template,
        enable_prefix_caching=False,
        port=1,
    )
    options = json.loads(settings.engine_options())
    assert options.pop("places") == {"cuda_libraries": cuda_libraries()}
    assert options == {
        "model": "/models/llama-tiny/",
        "served_model_name": "llama-tiny",
        "device": "sim",
        "sim_speed": "inf",
        "chat_template": "{{ messages }}",
        "enable_prefix_caching": False,
    }
    assert json.loads(Settings(model="m", sim_speed="2").engine_options())["sim_speed"] == 2.0


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1", "cpu", "sim"])
def test_kernels_of_the_wheel_reach_the_core_where_a_gpu_may_be_used(device, tmp_path, monkeypatch):
    def given():
        options = json.loads(Settings(model="m", device=device).engine_options())
        return options["places"].get("prebuilt_kernels")

    monkeypatch.setattr(places, "PREBUILT_KERNELS", tmp_path / "kernels")
    assert given() is None
    (tmp_path / "kernels").mkdir()
    assert given() == (None if device in ("cpu", "sim") else str(tmp_path / "kernels"))


def test_missing_template_is_named():
    with pytest.raises(ConfigError, match="chat_template: cannot read /nowhere/t"):
        Settings(model="m", chat_template="/nowhere/t.jinja").engine_options()
    with pytest.raises(ConfigError, match="/dev/zero: it is neither a file nor a pipe"):
        Settings(model="m", chat_template="/dev/zero").engine_options()


def test_demo_brings_the_sampling_that_its_authors_recommend(monkeypatch):
    monkeypatch.setattr("ingle.config.resolve_model", lambda model: "/x/" + model)

    def defaults(model):
        return json.loads(Settings(model=model).engine_options()).get("sampling_defaults")

    assert defaults("demo") == {"temperature": 0.2, "top_p": 0.9}
    assert defaults("other") is None


def test_a_model_is_served_under_its_given_name_or_its_file():
    assert Settings(model="demo").model_name() == "demo"
    assert Settings(model="demo", served_model_name="x").model_name() == "x"
    assert Settings(model="/a/b.gguf").model_name() == "b.gguf"


def test_messages_of_the_core_name_settings_as_flags():
    given = "max_num_batched_tokens: 1 is less than max_num_seqs: 32"
    assert with_flags(given) == "--max-num-batched-tokens: 1 is less than --max-num-seqs: 32"
    for kept in ("/models/max_num_seqs/x: not there", "my_max_num_seqs", "model: m", "seed"):
        assert with_flags(kept) == kept


def test_a_snapshot_of_a_cache_has_the_model_s_name(tmp_path):
    cache = tmp_path / "models--org--name--v2"
    snapshot = cache / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    assert Settings(model=str(snapshot)).model_name() == "org/name--v2"
    link = tmp_path / "current"
    link.symlink_to(snapshot)
    assert Settings(model=f"{link}/").model_name() == "org/name--v2"
    assert Settings(model=str(snapshot), served_model_name="x").model_name() == "x"
    for other in (tmp_path / "snapshots" / "v1", tmp_path / "datasets--a--b" / "snapshots" / "v2"):
        other.mkdir(parents=True)
        assert Settings(model=str(other)).model_name() == other.name
    (tmp_path / "models--gpt" / "snapshots" / "1").mkdir(parents=True)
    assert Settings(model=str(tmp_path / "models--gpt" / "snapshots" / "1")).model_name() == "gpt"


def test_a_file_of_a_cache_is_not_named_after_its_blob(tmp_path):
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.touch()
    file = tmp_path / "snapshots" / "0123" / "model-Q4_0.gguf"
    file.parent.mkdir(parents=True)
    file.symlink_to(blob)
    assert Settings(model=str(file)).model_name() == "model-Q4_0.gguf"


def test_an_empty_model_is_refused():
    with pytest.raises(ConfigError, match=r"^model: must be a string of at least 1 character"):
        Settings(model="")
