"""Rendering of chat templates in our engine and in jinja2, in one run on one core.

`python tools/bench_templates.py template_cost`, the argument being the release build of
rust/text/examples/template_cost.rs. Templates are those of tests/templates, in the manner of the
published ones. jinja2 gets compiled templates and ready variables; our engine is timed from the
request's messages on.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from templates.oracle import environment
from templates.whole_families import WHOLE

TEMPLATES = ("Llama 3.1", "Qwen2.5", "Hermes 2 Pro, tool_use")
LENGTHS = (2, 20, 200)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city."},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    }
]
TEXT = "Tell me in a few words what to see in Köln, and how to get there by train from Ulm. "
ROUNDS, ROUND_S = 25, 0.01


def conversation(length: int) -> list[dict[str, str]]:
    """So many messages: a system message, then turns in alternation, the last one the user's."""
    system = {"role": "system", "content": "You are a helpful assistant."}
    roles = ("assistant", "user")
    return [system, *({"role": roles[i % 2], "content": f"{i}. {TEXT}"} for i in range(1, length))]


def median_us(call: Callable[[], object]) -> float:
    """The median of rounds, as template_cost.rs has it."""
    began = time.perf_counter()
    call()
    count = max(1, int(ROUND_S / (time.perf_counter() - began)))
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - began) * 1e6 / count)
    return statistics.median(rounds)


def main() -> None:
    """Prints one line for each template, length and choice of tools."""
    cases = [
        {
            "name": [name, length, bool(tools)],
            "source": WHOLE[name],
            "messages": conversation(length),
            "tools": tools,
        }
        for name in TEMPLATES
        for length in LENGTHS
        for tools in (None, TOOLS)
        if tools or "tool_use" not in name
    ]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    env = environment()
    print("template, messages, tools: ingle us, jinja2 us, ratio, characters")
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        ours = json.loads(line)
        template = env.from_string(case["source"])
        variables = {
            "messages": case["messages"],
            "tools": case["tools"],
            "documents": None,
            "add_generation_prompt": True,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        assert len(template.render(variables)) == ours["chars"], case["name"]
        theirs = median_us(lambda: template.render(variables))  # noqa: B023 # Called at once.
        name, length, tools = case["name"]
        print(
            f"{name}, {length}, {'one' if tools else 'no'}: {ours['us']:.1f}, {theirs:.1f}, "
            f"{theirs / ours['us']:.1f}, {ours['chars']}"
        )


if __name__ == "__main__":
    main()
