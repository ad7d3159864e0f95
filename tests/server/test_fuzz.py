"""Nothing a client sends gives 5xx, ends another stream or kills the process."""

import json
import random

import pytest

from server.worker import whole

VALUES = [
    None, True, False, 0, 1, -1, 2, 0.5, 1e30, -1e30, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**40,
    "", "x", "stop", "\0", "🙂", "x" * 5000, [], [0], [1, 2], ["a"], [[1]], [[]], [None], {},
    {"1": 1}, {"type": "text"}, {"include_usage": True}, [{"role": "user", "content": "x"}],
    [{"type": "text", "text": "x"}],
]  # fmt: skip
PLAUSIBLE = [None, True, False, 0, 1, 0.5, "x", [1], {}]
FIELDS = """
prompt messages model n max_tokens max_completion_tokens min_tokens stop temperature top_p
top_k min_p repetition_penalty presence_penalty seed frequency_penalty logit_bias logprobs
top_logprobs stream stream_options stop_token_ids allowed_token_ids ignore_eos
include_stop_str_in_output priority skip_special_tokens truncate_prompt_tokens
add_special_tokens echo best_of suffix cache_salt request_id return_token_ids
add_generation_prompt continue_final_message chat_template_kwargs tools response_format user
tool_choice parallel_tool_calls guided_json guided_regex guided_choice guided_grammar regex
structured_outputs
tokens return_token_strs zzz
system stop_sequences thinking output_config metadata cache_control
""".split()
VALID = {
    "/v1/completions": {"prompt": "x", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
PATHS = list(VALID)
EXPECTED = {200, 400, 404}


@pytest.mark.parametrize("seed", range(4))
def test_random_fields_never_fail_us(cpu, seed):
    reference = cpu.complete("steady", max_tokens=5)
    choose = random.Random(seed)
    statuses = []
    for _ in range(250):
        path = choose.choice(PATHS)
        body = dict(VALID[path])
        for _ in range(choose.choice((1, 1, 1, 2))):
            values = choose.choice((VALUES, PLAUSIBLE))
            body[choose.choice(FIELDS)] = choose.choice(values)
        if body.get("max_tokens", 3) is None and path == "/v1/chat/completions":
            body["max_tokens"] = 3  # The rest of the context is right and slow.
        reply = cpu.post(path, body)
        assert reply.status in EXPECTED, f"seed {seed}: {path} {body} {reply.body}"
        statuses.append(reply.status)
        if reply.status != 200:
            assert reply.json["error"]["message"], f"seed {seed}: {path} {body}"
    assert statuses.count(200) > 5, f"seed {seed}: hardly anything was valid"
    assert whole(cpu.complete("steady", max_tokens=5)) == whole(reference)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_never_fail_us(cpu, seed):
    choose = random.Random(seed)
    valid = json.dumps(
        {"prompt": "x", "max_tokens": 2, "stop": ["a"], "logit_bias": {"5": 1}, "stream": True}
    ).encode()
    for _ in range(100):
        body = bytearray(valid)
        for _ in range(choose.randint(1, 5)):
            place = choose.randrange(len(body))
            match choose.randrange(3):
                case 0:
                    body[place] = choose.randrange(256)
                case 1:
                    del body[place : place + choose.randint(1, 8)]
                case 2:
                    body[place:place] = choose.randbytes(choose.randint(1, 4))
        reply = cpu.post(choose.choice(PATHS), bytes(body))
        assert reply.status in EXPECTED, f"seed {seed}: {bytes(body)} {reply.body}"
