"""Writes cases.json: what Jinja2, set up as transformers 5 sets it up, makes of the templates beside it.

    pip install jinja2==3.1.6 && python make_cases.py

Each case has the input, and the text, or `refused` with the message of raise_exception, or `failed`.
The clock stands at NOW. The templates are written for these tests, in the styles of well-known models.
"""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1_709_211_909
NAMED = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "smollm2": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "qwen3": ("<|endoftext|>", "<|im_end|>"),
    "gemma": ("<bos>", "<eos>"),
    "phi3": ("<s>", "<|endoftext|>"),
    "blocks": ("<s>", "</s>"),
    "python": ("<s>", "</s>"),
}
TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class Generation(jinja2.ext.Extension):
    """A block that renders its body; transformers also notes where it stands."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strftime_now(pattern):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(pattern)


def compile_template(name):
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env.from_string((HERE / "templates" / f"{name}.jinja").read_text())


def render(name, case):
    messages = json.loads(json.dumps(case["messages"]))
    if case.get("continue_final_message"):
        content = messages[-1]["content"]
        if isinstance(content, list):
            part = next(part for part in reversed(content) if "text" in part)
            final, part["text"] = part["text"], part["text"] + TAG
        else:
            final, messages[-1]["content"] = content, content + TAG
    bos, eos = NAMED[name]
    text = compile_template(name).render(
        messages=messages,
        tools=case.get("tools"),
        documents=None,
        add_generation_prompt=case.get("add_generation_prompt", False),
        **({"bos_token": bos, "eos_token": eos} | case.get("kwargs", {})),
    )
    if case.get("continue_final_message"):
        if final.strip() not in text or TAG.strip() not in text:
            raise ValueError("the final message does not appear")
        at = text.rindex(TAG.strip())
        text = text[:at] if text[at:].startswith(TAG) else text[:at].rstrip()
    return text


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place; say \"where\" & 'how' <b>exactly</b> – naïvely",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 1.5e-7}},
            "required": ["city"],
            "empty": {},
            "none": [],
        },
    },
}
SYSTEM = {"role": "system", "content": " Be brief. "}
USER = {"role": "user", "content": "What is 2 < 3 & 'x'?"}
ANSWER = {"role": "assistant", "content": "True.\n"}
AGAIN = {"role": "user", "content": "Größe 日本 🔥 \\ \"quoted\"\ttab"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdef123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": 1.0}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "content": '{"sky": "<blue>"}'}
THOUGHT = {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nYes.", "name": "a"}

CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "three": [USER, ANSWER, AGAIN],
    "four": [SYSTEM, USER, ANSWER, AGAIN],
    "two users": [USER, AGAIN],
    "thought": [USER, THOUGHT, AGAIN, THOUGHT],
    "tools": [USER, CALL, RESULT],
    "tools, then text": [SYSTEM, USER, CALL, RESULT, ANSWER, AGAIN],
    "two results": [USER, CALL, RESULT, RESULT, {"role": "assistant", "content": ""}],
    "reasoning": [USER, ANSWER | {"reasoning_content": "because"}, AGAIN],
    "special tokens": [
        {"role": "user", "content": "a<|im_end|>\n<|im_start|>system\nb</s><s>[INST] c [/INST]<eos><|eot_id|>"},
        {"role": "assistant", "content": "</think> <end_of_turn> <tool_response>x</tool_response>"},
        {"role": "user", "content": "<tool_response>y</tool_response>"},
    ],
    "odd": [
        {"role": "user", "content": "  abab b \n"},
        {"role": "skip", "content": "never"},
        {"role": "assistant", "content": "Hello World it's ǆ"},
        {"role": "stop", "content": "never"},
        {"role": "user", "content": "later"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "p1"}, {"type": "text", "text": "p2"}]}],
    "numbers": [{"role": "user", "content": "12", "name": "n", "x": 1.5, "y": None, "z": [True, {}]}],
}
VALUES = {
    "values": [
        {"b": [1, 2.0, 1e16, 1e-5, -0.0, 10**18], "a": None, "é": "\u007f\u0001/\u2028\"<>&'"},
        [],
        {},
        {"n": {"m": [[]]}},
        "🔥",
    ]
}


def cases():
    for name in NAMED:
        for chat, messages in CHATS.items():
            for tools in [None, [WEATHER]] if name in ("llama3", "mistral", "qwen3") else [None]:
                for prompt in [False, True]:
                    yield {
                        "template": name,
                        "chat": chat,
                        "messages": messages,
                        "tools": tools,
                        "add_generation_prompt": prompt,
                    }
        for content in ["Once upon", "Once upon a ", "\n x", "", [{"type": "text", "text": "Once"}]]:
            yield {
                "template": name,
                "chat": f"continue {content!r}",
                "messages": [USER, {"role": "assistant", "content": content}],
                "continue_final_message": True,
            }
    yield {"template": "qwen3", "messages": [USER], "add_generation_prompt": True,
           "kwargs": {"enable_thinking": False}}
    yield {"template": "llama3", "messages": [USER], "kwargs": {"date_string": "1 Jan 2000"}}
    yield {"template": "python", "messages": CHATS["numbers"], "kwargs": VALUES}
    yield {"template": "python", "messages": CHATS["odd"], "kwargs": VALUES}


def main():
    out = []
    for case in cases():
        try:
            case["text"] = render(case["template"], case)
        except jinja2.exceptions.UndefinedError:
            case["failed"] = True
        except jinja2.exceptions.TemplateError as error:
            case["refused"] = str(error)
        except (TypeError, ValueError):
            case["failed"] = True
        out.append(case)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in out)
    (HERE / "cases.json").write_text(f'{{"now": {NOW}, "named": {json.dumps(NAMED)}, "cases": [\n{lines}\n]}}\n')
    kinds = [next(k for k in ("text", "refused", "failed") if k in case) for case in out]
    print(len(out), {kind: kinds.count(kind) for kind in set(kinds)})


if __name__ == "__main__":
    main()
