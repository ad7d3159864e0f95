from types import SimpleNamespace

from ingle.config import Settings
from ingle.hardening import Layer, Lockdown
from ingle.server.summary import summary

INFO = {
    "kv_events": [],
    "model": "tiny",
    "architecture": "llama",
    "weight_type": "bf16",
    "num_layers": 2,
    "num_engines": 1,
    "path": "/models/tiny",
    "device": "cpu (avx512, 2 threads)",
    "max_model_len": 2048,
    "limits": {"max_num_seqs": 32, "max_num_batched_tokens": 512, "max_queue": 128},
    "memory": {"weights_bytes": 3 << 20, "kv_cache_bytes": 1 << 20},
    "notes": ["KV pool: 4 blocks"],
    "sampling_defaults": {"temperature": 0.6000000238, "top_k": 0},
    "eos_token_ids": [1, 2],
    "has_chat_template": False,
    "tool_call_parser": None,
    "reasoning_parser": None,
    "embeddings_only": None,
    "start_up": {
        "began_s": 7.0,
        "total_s": 0.123,
        "phases": [
            {"name": "model files", "thread": "x", "start_s": 0.0, "time_s": 0.011},
            {"name": "device", "thread": "x", "start_s": 0.011, "time_s": 0.08},
        ],
    },
}

OPEN = Lockdown("off")


class Loaded:
    """A model as the summary sees it."""

    def __init__(self, info, aliases=()):
        self.info = info
        self.aliases = aliases
        self.engine = SimpleNamespace(settings=Settings(model="tiny"))


def test_summary_shows_what_an_operator_needs():
    text = summary([Loaded(INFO)], "http://127.0.0.1:8000", "without API keys", OPEN, 0.45)
    for part in (
        "tiny (llama, bf16, 2 layers) from /models/tiny",
        "cpu (avx512, 2 threads); loaded in 0.12 s",
        "model files 0.01; device 0.08",
        "0.45 s after the process began",
        "2048 tokens",
        "32 requests and 512 tokens a step, 128 waiting",
        "weights 3.0 + kv cache 1.0 = 4.0 MiB",
        "KV pool: 4 blocks",
        "temperature 0.6, top_k 0 (the model's)",
        "1, 2",
        "completions, no chats (the model has no chat template), embeddings",
        "http://127.0.0.1:8000, without API keys",
    ):
        assert part in text


def test_summary_says_why_a_model_makes_embeddings_only():
    info = INFO | {"embeddings_only": "its attention is bidirectional"}
    text = summary([Loaded(info)], "http://127.0.0.1:8000", "without API keys", OPEN, 0.45)
    assert "serves      embeddings only, since its attention is bidirectional\n" in text
    info = INFO | {"has_chat_template": True}
    text = summary([Loaded(info)], "http://127.0.0.1:8000", "without API keys", OPEN, 0.45)
    shown = "serves      completions, chats (tool calls: none, reasoning: none), embeddings\n"
    assert shown in text
    info |= {"tool_call_parser": "hermes", "reasoning_parser": "think"}
    text = summary([Loaded(info)], "http://127.0.0.1:8000", "without API keys", OPEN, 0.45)
    assert "chats (tool calls: hermes, reasoning: think)" in text


def test_summary_names_what_the_lockdown_misses():
    lockdown = Lockdown("auto")
    lockdown.layers += [Layer("filter", True, "68 calls"), Layer("user", False, "runs as root")]
    text = summary([Loaded(INFO)], "http://127.0.0.1:8000", "without keys", lockdown, 0.45)
    assert "hardening   auto: layers in force: 1\n            missing: user: runs as root\n" in text
    assert "hardening   off\n" in summary([Loaded(INFO)], "x", "y", OPEN, 0.45)


def test_summary_of_several_models_shows_each_and_the_address_once():
    second = Loaded(INFO | {"model": "other"}, ("short", "gpt-4"))
    text = summary([Loaded(INFO), second], "http://x", "without keys", OPEN, 0.45)
    lines = text.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("model ")] == ["tiny", "other"]
    assert "aliases     short, gpt-4" in lines
    assert sum(line.startswith("address ") for line in lines) == 1
    assert lines[-1] == "address     http://x, without keys"
