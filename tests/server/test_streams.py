"""Streams say exactly what plain answers say, over real HTTP.

The sim device recites English, the tiny model on the CPU utters broken UTF-8: both matter here.
"""

import concurrent.futures

import pytest

from server.twice import ASKED, refused_twice
from server.worker import joined, parse_events, whole


@pytest.fixture(params=["cpu", "sim"])
def worker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["complete", "chat"])
def ask(request, worker):
    return getattr(worker, request.param)


def both(ask, **fields):
    """The same request plain and streamed, which must agree on text, ends and usage."""
    plain = ask(**fields)
    events = ask(stream=True, stream_options={"include_usage": True}, **fields)
    assert joined(events) == whole(plain)
    assert events[-1]["choices"] == []
    usage, streamed = plain["usage"], events[-1]["usage"]
    # The second run finds the first one's blocks; that is no difference in the answer.
    usage.pop("prompt_tokens_details"), streamed.pop("prompt_tokens_details")
    assert usage == streamed
    return plain, events


def text_of(plain):
    return whole(plain)[0][0]


@pytest.mark.parametrize("max_tokens", [1, 2, 60])
def test_joined_deltas_equal_the_plain_text(ask, max_tokens):
    both(ask, max_tokens=max_tokens)


@pytest.mark.parametrize("seed", range(4))
def test_invalid_utf8_streams_as_the_plain_text(ask, seed):
    plain, _ = both(ask, max_tokens=300, temperature=2, seed=seed)
    text_of(plain).encode()


def test_events_have_one_form(ask):
    events = ask(stream=True, max_tokens=20)
    assert len({(e["id"], e["object"], e["created"], e["model"]) for e in events}) == 1
    choices = [choice for event in events for choice in event["choices"]]
    assert all(len(event["choices"]) == 1 for event in events), "no usage event unasked"
    assert all("usage" not in event or event["usage"] is None for event in events)
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    texts = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    assert all(texts[:-1]), "no empty event before the last"


def test_role_rides_on_the_first_text(worker):
    events = worker.chat(stream=True, max_tokens=5)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"]
    assert not any("role" in delta for delta in deltas[1:])


def test_a_stop_is_never_sent_wherever_it_falls(ask, worker):
    text = text_of(ask(max_tokens=60))
    # Every place and several lengths: within tokens, over two tokens, over many.
    for start in range(1, len(text) - 9, 4):
        for length in (1, 2, 5, 9):
            stop = text[start : start + length]
            if "\ufffd" in stop:
                continue
            plain, _ = both(ask, max_tokens=60, stop=stop)
            expected = text[: text.index(stop)]
            assert whole(plain) == {0: (expected, ["stop"])}, repr(stop)


def test_nothing_follows_the_stop_and_usage_ends_with_it(sim):
    text = text_of(sim.complete(max_tokens=60))
    stop = text[20:24]
    plain, _ = both(sim.complete, max_tokens=60, stop=stop)
    assert plain["choices"][0]["text"] == text[: text.index(stop)]
    assert plain["usage"]["completion_tokens"] < 60
    assert plain["choices"][0]["stop_reason"] == stop
    with_stop = sim.complete(max_tokens=60, stop=stop, include_stop_str_in_output=True)
    assert with_stop["choices"][0]["text"] == text[: text.index(stop) + len(stop)]


def test_stop_that_never_comes_is_released_at_the_end(ask):
    text = text_of(ask(max_tokens=40))
    tail = text[-3:]
    plain, _ = both(ask, max_tokens=40, stop=[tail + "never", "x" * 50])
    assert text_of(plain) == text


def test_first_of_several_overlapping_stops_wins(sim):
    text = text_of(sim.complete(max_tokens=60))
    early, late = text[10:14], text[12:20]
    plain, _ = both(sim.complete, max_tokens=60, stop=[late, early])
    assert text_of(plain) == text[: min(text.index(early), text.index(late))]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""]])
@pytest.mark.parametrize("path", ASKED)
def test_an_empty_stop_is_refused(worker, path, stop):
    assert refused_twice(worker, path, **ASKED[path], stop=stop)["param"].startswith("stop")


@pytest.mark.parametrize("stop", [None, []])
def test_stop_null_and_an_empty_list_are_no_stop(ask, stop):
    plain, _ = both(ask, stop=stop)
    assert text_of(plain) == text_of(ask())


def test_user_stops_are_added_to_the_end_of_text(cpu):
    # Only the end-of-text id can be sampled: without the user's stop or with it, the answer ends.
    for stop in (None, ["ZZZ"]):
        plain, events = both(cpu.chat, allowed_token_ids=[1], max_tokens=5, stop=stop)
        assert whole(plain) == {0: ("", ["stop"])}
        assert plain["usage"]["completion_tokens"] == 1
        choices = [event["choices"][0] for event in events if event["choices"]]
        assert len(choices) == 1
        assert choices[0]["delta"].get("role") == "assistant"


def test_ignore_eos_and_special_tokens(cpu):
    fields = {"allowed_token_ids": [1], "max_tokens": 3, "ignore_eos": True}
    plain, _ = both(cpu.complete, **fields)
    assert whole(plain) == {0: ("", ["length"])}
    plain, _ = both(cpu.complete, **fields, skip_special_tokens=False)
    assert whole(plain) == {0: ("<|eos|>" * 3, ["length"])}


def test_stop_token_ids(cpu):
    # 298 and 85 are the only choices; 298 is heavily preferred, so it is the first token.
    fields = {"allowed_token_ids": [298, 85], "logit_bias": {"298": 100}, "max_tokens": 5}
    assert text_of(cpu.complete(**fields)) == " b b b b b"
    plain, _ = both(cpu.complete, **fields, stop_token_ids=[298])
    assert whole(plain) == {0: ("", ["stop"])}
    assert plain["choices"][0]["stop_reason"] == 298
    plain, _ = both(cpu.complete, **fields, stop_token_ids=[298], min_tokens=2)
    assert plain["usage"]["completion_tokens"] >= 2


@pytest.mark.parametrize("endpoint", ["complete", "chat"])
def test_stop_takes_token_ids_among_texts(cpu, endpoint):
    ask = getattr(cpu, endpoint)
    fields = {"allowed_token_ids": [298, 85], "logit_bias": {"298": 100}, "max_tokens": 5}
    for stop in ([298], ["ZZZ", 298], [298, 298, 85]):
        plain, _ = both(ask, **fields, stop=stop)
        assert whole(plain) == {0: ("", ["stop"])}
        assert plain["choices"][0]["stop_reason"] == 298
    plain, _ = both(ask, **fields, stop=[85, " b b"])
    assert plain["choices"][0]["stop_reason"] == " b b"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_in_stop_are_checked(cpu, path, stream):
    asked = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x"},
    }[path]
    for stop, name in (
        (["a", 100_000], "stop[1]"),
        ([-1], "stop[0]"),
        ([5, True], "stop[1]"),
        ([1.5], "stop[0]"),
        ([None], "stop[0]"),
        (5, "stop"),
    ):
        reply = cpu.post(path, asked | {"stop": stop, "stream": stream})
        assert (reply.status, reply.error["param"]) == (400, name), stop


def test_a_leading_space_is_kept(cpu):
    plain, _ = both(cpu.complete, allowed_token_ids=[298], max_tokens=2)
    assert text_of(plain) == " b b"


def test_n_choices_keep_their_index(ask):
    plain, events = both(ask, n=3, temperature=1, seed=7, max_tokens=10, ignore_eos=True)
    assert [choice["index"] for choice in plain["choices"]] == [0, 1, 2]
    assert sorted({c["index"] for e in events for c in e["choices"]}) == [0, 1, 2]
    single = ask(n=1, temperature=1, seed=7, max_tokens=10)
    assert plain["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert plain["usage"]["completion_tokens"] == 30


def test_usage_with_n_and_stop_is_the_plain_answers(sim):
    stop = text_of(sim.complete(max_tokens=60))[15:18]
    both(sim.complete, n=3, max_tokens=60, stop=stop)


def test_usage_has_its_own_event(ask):
    events = ask(stream=True, stream_options={"include_usage": True}, max_tokens=3)
    assert [bool(event["choices"]) for event in events] == [True] * (len(events) - 1) + [False]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["usage"]["completion_tokens"] == 3


def test_continuous_usage_counts_up_in_every_event(ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(stream=True, stream_options=options, max_tokens=20, ignore_eos=True)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 20


@pytest.mark.parametrize("fields", [{"n": 0}, {"max_tokens": 5000}, {"prompt": [999]}])
def test_errors_come_before_the_stream(worker, fields):
    body = {"prompt": "x", "stream": True} | fields
    reply = worker.post("/v1/completions", body)
    assert reply.status == 400
    assert reply.error["message"]


def test_headers_keep_proxies_from_buffering_a_stream(worker):
    body = {"prompt": "x", "stream": True, "max_tokens": 2}
    reply = worker.post("/v1/completions", body)
    assert reply.headers["Content-Type"] == "text/event-stream"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert parse_events(reply.body)


def test_prompts_times_n_choices_are_indexed_in_order(worker):
    plain, _ = both(worker.complete, prompt=["a", "b"], n=2, temperature=1, seed=3)
    assert [choice["index"] for choice in plain["choices"]] == [0, 1, 2, 3]


def test_return_token_ids(worker):
    plain = worker.complete(max_tokens=5, return_token_ids=True)
    events = worker.complete(max_tokens=5, return_token_ids=True, stream=True)
    ids = [i for event in events for i in event["choices"][0]["token_ids"]]
    assert ids == plain["choices"][0]["token_ids"]
    assert len(ids) == 5
    detokenized = worker.post("/detokenize", {"tokens": ids}).json["prompt"]
    # An answer drops the character that it was cut in.
    assert detokenized.rstrip("\ufffd") == plain["choices"][0]["text"].rstrip("\ufffd")


def test_frames_stay_whole_when_many_streams_run_at_once(worker):
    body = {"stream": True, "temperature": 0, "max_tokens": 100, "return_token_ids": True}
    prompts = [f"prompt number {i}" for i in range(12)]
    expected = [whole(worker.complete(prompt, max_tokens=100)) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        ask = [pool.submit(worker.post, "/v1/completions", body | {"prompt": p}) for p in prompts]
        assert [joined(future.result().events) for future in ask] == expected


def test_json_is_utf8_without_escapes_beyond_need(cpu):
    body = {"prompt": "x", "allowed_token_ids": [372], "max_tokens": 2}
    reply = cpu.post("/v1/completions", body)
    assert "🙂".encode() in reply.body
    assert reply.json["choices"][0]["text"].count("🙂") == 2
