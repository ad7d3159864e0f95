import argparse

import pytest

from ingle import config
from ingle.errors import ConfigError
from ingle.model_set import Memory, add_model_flag, load_set, set_of


def parse(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", nargs="?")
    config.add_flags(parser, ("engine", "server"))
    add_model_flag(parser)
    return load_set(vars(parser.parse_args([str(each) for each in arguments])))


def test_one_model_is_a_set_of_one_under_its_own_name():
    [entry] = parse("/models/tiny", "--port", "1")
    assert (entry.name, entry.aliases, entry.settings.port) == ("tiny", (), 1)
    assert entry.settings.served_model_name is None


def test_flags_name_several_models_that_share_the_other_settings():
    models = parse("--model", "a=/x=y", "--model", "b=demo", "--max-num-seqs", "3", "--port", "7")
    assert [(e.name, e.settings.model) for e in models] == [("a", "/x=y"), ("b", "demo")]
    assert [entry.settings.model_name() for entry in models] == ["a", "b"]
    assert {entry.settings.max_num_seqs for entry in models} == {3}
    assert models.process.port == 7


FILE = """
max-num-seqs = 9
port = 1
[models.small]
source = "/small"
aliases = ["s", "gpt-4o-mini"]
weight = 3
max-model-len = 64
[models."org/big"]
source = "/big"
max_num_seqs = 2
"""


def test_a_models_table_overrides_what_holds_for_all(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text(FILE)
    small, big = parse("--config", file, "--port", "2", "--model", "small=/other")
    assert (small.name, small.aliases) == ("small", ("s", "gpt-4o-mini"))
    assert (small.weight, big.weight) == (3, 1)
    assert (small.settings.max_model_len, small.settings.max_num_seqs) == (64, 9)
    assert small.settings.model == "/other", "a flag wins over the file"
    assert (big.name, big.settings.max_num_seqs, big.settings.port) == ("org/big", 2, 2)


EVENTS = """
[models.{0}]
source = "x"
kv-events-config = {{ enable_kv_cache_events = true, endpoint = "tcp://127.0.0.1:{1}" }}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models.a]", "models.a: source: must be a folder"),
        ("models = 3", r"models: must be tables \[models.NAME\]"),
        ("[models]\na = 3", "models.a: must be a table with a source"),
        ("[models.a]\nsource = 'x'\nprot = 1", "models.a: unknown setting 'prot'"),
        ("[models.a]\nsource = 'x'\nport = 1", "models.a: port: is a setting of the whole process"),
        ("[models.a]\nsource = 'x'\ndevice = 'cpu'", "models.a: device: is a setting of the whole"),
        (
            "[models.a]\nsource = 'x'\nmax-num-seqs = 0",
            "ingle.toml: models.a: max-num-seqs: must be a whole number from 1 to 65536, not 0",
        ),
        ("[models.a]\nsource = 'x'\naliases = 'b'", "models.a: aliases: must be a list of names"),
        ("[models.a]\nsource = 'x'\nweight = 0", "models.a: weight: must be a whole number from 1"),
        ("[models.a]\nsource = 'x'\naliases = ['a']", "models.a: 'a' is already a name of 'a'"),
        (
            "[models.a]\nsource = 'x'\n[models.b]\nsource = 'x'\naliases = ['a']",
            "models.b: 'a' is already a name of 'a'",
        ),
        ("[models.'']\nsource = 'x'", "models: a name has 1 to 200 printable characters"),
        ("model = 'm'\n[models.a]\nsource = 'x'", "not both"),
        ("served-model-name = 'm'\n[models.a]\nsource = 'x'", "works with one model only"),
        (
            "[models.a]\nsource = 'x'\nload = 'lazy'",
            "models.a: load: must be at-start or on-request, not 'lazy'",
        ),
        (
            "[models.a]\nsource = 'x'\nload = 'on-request'",
            "models.a: load: on-request needs device_memory_bytes",
        ),
        (
            "[kv-events-config]\n[models.a]\nsource = 'x'\n[models.b]\nsource = 'x'",
            "kv-events-config: is not for several models; each may have kv-events-config in its",
        ),
        (
            EVENTS.format("a", 5557) + EVENTS.format("b", 5557),
            "models.b: KV events: tcp://127.0.0.1:5557 is already an endpoint of 'a'",
        ),
    ],
)
def test_a_bad_table_is_refused_by_model_and_key(tmp_path, text, message):
    file = tmp_path / "ingle.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        parse("--config", file)


def test_models_publish_kv_events_at_endpoints_of_their_own(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text(EVENTS.format("a", 5557) + EVENTS.format("b", 5558) + EVENTS.format("c", 0)
                    + EVENTS.format("d", 0))  # fmt: skip
    ports = [
        entry.settings.kv_events().endpoint.rpartition(":")[2] for entry in parse("--config", file)
    ]
    assert ports == ["5557", "5558", "0", "0"]
    [only] = parse("--model", "a=x", "--kv-events-config", '{"enable_kv_cache_events": false}')
    assert only.settings.kv_events_config is not None, "one model is one, also with a name"


def test_the_memory_of_all_models_is_a_setting_of_the_file_or_a_flag(tmp_path):
    file = tmp_path / "ingle.toml"
    file.write_text("device-memory-bytes = 7\n[models.a]\nsource = 'x'\npinned = true\n")
    models = parse("--config", file)
    assert (models.memory, models.entries[0].is_pinned) == (Memory(7, 60), True)
    both = ("--device-memory-bytes", 9, "--swap-timeout", 5)
    assert parse("--config", file, *both).memory == Memory(9, 5)
    assert parse("--model", "a=x").memory is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "a=x", "--device-memory-bytes", 0), "--device-memory-bytes: must be"),
        (("--model", "a=x", "--swap-timeout", 5), "--swap-timeout: has no effect without --device"),
        (
            ("--model", "a=x", "--device-memory-bytes", 1, "--swap-timeout", 0),
            "--swap-timeout: must be a whole number of seconds from 1 to 86400, not 0",
        ),
        (("m", "--device-memory-bytes", 1), "--device-memory-bytes: is for several models"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused_by_name(flags, message):
    with pytest.raises(ConfigError, match=message):
        parse(*flags)


def test_a_pin_without_a_limit_is_refused():
    with pytest.raises(ConfigError, match="pinned has no effect without device_memory_bytes"):
        set_of({"a": {"source": "x", "pinned": True}}, {})
    with pytest.raises(ConfigError, match=r"models\.a: pinned: must be true or false"):
        set_of({"a": {"source": "x", "pinned": 1}}, {}, Memory(1, 1))


@pytest.mark.parametrize("text", ["a", "=x", "a="])
def test_a_flag_without_name_or_source_is_refused(text):
    with pytest.raises(ConfigError, match="--model: must be NAME=SOURCE"):
        parse("--model", text)


def test_a_name_with_two_sources_is_refused():
    with pytest.raises(ConfigError, match="--model: 'a' has two sources"):
        parse("--model", "a=x", "--model", "b=x", "--model", "a=y")


def test_model_and_named_models_exclude_each_other():
    with pytest.raises(ConfigError, match="not both"):
        parse("m", "--model", "a=x")


def test_a_command_for_one_model_refuses_several():
    models = set_of({"a": {"source": "x"}, "b": {"source": "y"}}, {})
    with pytest.raises(ConfigError, match="generate takes one model, not a, b"):
        models.only("generate")
    assert set_of({"a": {"source": "x"}}, {}).only("generate").model == "x"


def test_no_models_and_too_many_are_refused():
    for number in (0, 257):
        tables = {str(each): {"source": "x"} for each in range(number)}
        with pytest.raises(ConfigError, match="models: must be 1 to 256 models"):
            set_of(tables, {})
