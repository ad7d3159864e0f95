"""The text that `ingle serve` prints when the server has started. Runs once."""

from collections.abc import Iterable, Mapping
from typing import Any

from ingle.config import with_flags
from ingle.hardening import Lockdown
from ingle.server.models import ServedModel


def summary(
    models: Iterable[ServedModel], address: str, keys: str, lockdown: Lockdown, age_s: float
) -> str:
    """Of each model device, limits, memory and more, then lock-down and address, in lines.

    `age_s`: how long ago the process began.
    """
    hardening, *lacks = lockdown.lines()
    lines = [line for model in models for line in model_lines(model)]
    lines += [
        ("hardening", hardening),
        *(("", lack) for lack in lacks),
        ("ready", f"{age_s:.2f} s after the process began"),
        ("address", f"{address}, {keys}"),
    ]
    return "\n".join(f"{name:12}{text}" for name, text in lines)


def model_lines(model: ServedModel) -> list[tuple[str, str]]:
    """Device, limits, memory, defaults, end-of-text ids of one model."""
    info, settings = model.info, model.engine.settings
    limits, memory, start_up = info["limits"], info["memory"], info["start_up"]
    defaults = ", ".join(f"{k} {round(v, 4):g}" for k, v in info["sampling_defaults"].items())
    source = "the model's" if settings.generation_config == "auto" else "OpenAI's"
    return [
        ("model", f"{info['model']} ({info['architecture']}, {info['weight_type']}, "
                  f"{info['num_layers']} layers) from {info['path']}"),
        *([("aliases", ", ".join(model.aliases))] if model.aliases else []),
        ("device", f"{info['device']}; loaded in {start_up['total_s']:.2f} s"),
        ("", "; ".join(phase(each) for each in start_up["phases"])),
        ("context", f"{info['max_model_len']} tokens"),
        ("limits", f"{limits['max_num_seqs']} requests and {limits['max_num_batched_tokens']} "
                   f"tokens a step{per_engine(info)}, {limits['max_queue']} waiting"),
        ("memory", memory_sum(memory)),
        *(("", with_flags(note)) for note in info["notes"]),
        ("defaults", f"{defaults} ({source})"),
        ("end of text", ", ".join(map(str, info["eos_token_ids"])) or "none"),
        ("serves", serves(info)),
        *(("kv events", where) for where in info["kv_events"]),
    ]  # fmt: skip


def phase(values: Mapping[str, Any]) -> str:
    """One phase of the load."""
    return f"{values['name']} {values['time_s']:.2f}"


def per_engine(info: Mapping[str, Any]) -> str:
    """What the limits of a step belong to where there are several engines."""
    num_engines = info["num_engines"]
    return f" on each of {num_engines} engines" if num_engines > 1 else ""


def serves(info: Mapping[str, Any]) -> str:
    """What the model can be asked for."""
    if reason := info["embeddings_only"]:
        return f"embeddings only, since {reason}"
    if not info["has_chat_template"]:
        return "completions, no chats (the model has no chat template), embeddings"
    parts = {"tool calls": info["tool_call_parser"], "reasoning": info["reasoning_parser"]}
    shown = ", ".join(f"{part}: {name or 'none'}" for part, name in parts.items())
    return f"completions, chats ({shown}), embeddings"


def memory_sum(memory: Mapping[str, int]) -> str:
    """`kv_cache_bytes` and its neighbours as a sum in MiB."""
    parts = {name.removesuffix("_bytes").replace("_", " "): n for name, n in memory.items()}
    terms = " + ".join(f"{name} {n / 2**20:.1f}" for name, n in parts.items())
    return f"{terms} = {sum(parts.values()) / 2**20:.1f} MiB"
