"""A model that recites: texts and tokens are known, so that nothing can be wrong in the same way
twice. Each request is made plain and streamed.
"""

import itertools
import json

import pytest
import tokenizers

import ingle
from server.reciter import Recital, shown_text
from server.twice import PATHS, both, refused_twice, text_of
from server.worker import TINY, Worker

GERMAN = "Grüße aus Köln. Schöne Straße 🙂🙃, äöüß! Und noch etwas: 🏳️‍🌈 ist da."
COUNT = "one two three four five six seven eight nine ten"
BROKEN = b"Gut \xff und \xf0\x9f weiter \xc3( mit \x80\x80 \xed\xa0\x80 und \xf0\x9f\x99\x82 Ende."
LOOKALIKE = "so <|im_start|> and <|eos|> are text, as is <|im_e"
PADDED = "not beyond"
END_OF_TURN = 4
OTHERS = [b"\x98", b"\x99", b"\x9a", b"\xe2\x82"]


@pytest.fixture(scope="module")
def recital():
    recital = Recital()
    texts = {"\1": GERMAN, "\2": COUNT, "\3": BROKEN, "\4": LOOKALIKE, "\5": PADDED}
    for cue, text in texts.items():
        recital.add(cue, text)
    # A turn may also end with its own marker, behind text.
    recital.add("\6", "My turn.")
    recital.prefer(recital.pieces["\6"][-1], END_OF_TURN, 50)
    # The model likes a row best that has no token.
    for before in [b"\5", *recital.pieces["\5"]]:
        recital.prefer(before, 1000, 90)
    # Several pieces of characters are likely at once.
    for i, other in enumerate(OTHERS):
        recital.prefer(b"\7", other, 30 - i)
    return recital


@pytest.fixture(scope="module")
def recital_folder(recital, tmp_path_factory):
    return recital.save(tmp_path_factory.mktemp("recital"), eos_token_id=[1, END_OF_TURN])


@pytest.fixture(scope="module")
def worker(recital_folder):
    with Worker("--device", "cpu", model=recital_folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
        assert "Traceback" not in worker.errors(), worker.errors()


@pytest.fixture(params=PATHS)
def ask(request, worker):
    return getattr(worker, request.param)


def test_characters_over_several_tokens_are_sent_whole(ask, recital):
    pieces = recital.pieces["\1"]
    assert b"\x9f" in pieces, "characters are cut"
    answer = both(ask, "x\1", max_tokens=200)
    assert answer["usage"]["completion_tokens"] == len(pieces) + 1
    assert text_of(ask, "x\1", max_tokens=200) == GERMAN
    for event in ask("x\1", max_tokens=200, stream=True):
        assert "\ufffd" not in json.dumps(event, ensure_ascii=False)


@pytest.mark.parametrize("cue", ["\1", "\3"])
def test_an_answer_cut_anywhere_is_the_text_of_its_bytes(worker, recital, cue):
    data = b""
    for count, piece in enumerate(recital.pieces[cue], 1):
        data += piece
        text = shown_text(data)
        assert text_of(worker.complete, cue, max_tokens=count) == text
        assert text_of(worker.chat, "x" + cue, max_tokens=count) == text


def test_log_probs_keep_the_bytes_of_a_character_that_was_cut(worker, recital):
    cuts = 0
    for count in range(1, 40):
        data = b"".join(recital.pieces["\1"][:count])
        text = shown_text(data)
        cuts += text != data.decode(errors="replace")
        [chat] = both(worker.chat, "x\1", max_tokens=count, logprobs=True)["choices"]
        entries = chat["logprobs"]["content"]
        assert bytes(b for entry in entries for b in entry["bytes"]) == data
        assert (chat["message"]["content"] or "") == text
        [choice] = both(worker.complete, "x\1", max_tokens=count, logprobs=1)["choices"]
        assert choice["logprobs"]["text_offset"][0] == 0
        assert max(choice["logprobs"]["text_offset"]) <= len(choice["text"])
    assert cuts, "the point of it"


@pytest.mark.parametrize("cue", ["\1", "\3"])
def test_token_ids_that_end_inside_a_character_are_continued_with_the_whole_one(
    worker, recital, recital_folder, cue
):
    pieces = recital.pieces[cue]
    cut, broken = 0, 0
    with ingle.Engine(str(recital_folder), device="cpu") as engine:
        for count in range(1, len(pieces)):
            prompt = [recital.id(piece) for piece in pieces[:count]]
            head, rest = b"".join(pieces[:count]), b"".join(pieces[count:])
            unfinished = head.decode(errors="replace") != shown_text(head)
            # What the client has been shown, and the answer, are the whole text: no character is
            # lost or twice. Bytes of the prompt that become no character are not the answer's.
            whole = (head + rest).decode(errors="replace")
            answer = whole.removeprefix(shown_text(head))
            assert whole != answer
            if unfinished and answer.startswith("\ufffd"):
                broken += 1
                answer = answer.removeprefix("\ufffd")
            cut += unfinished
            assert text_of(worker.complete, prompt, max_tokens=200) == answer
            echoed = text_of(worker.complete, prompt, max_tokens=200, echo=True)
            assert echoed == whole
            params = ingle.SamplingParams(max_tokens=200, temperature=0)
            [output] = engine.generate([prompt], params)
            assert output.outputs[0].text == answer
    assert cut >= 2
    assert bool(broken) == (cue == "\3")


def test_an_echo_alone_shows_that_its_last_character_is_cut(worker, recital):
    prompt = [recital.id(piece) for piece in (b"x", b"\xf0", b"\x9f")]
    assert text_of(worker.complete, prompt, max_tokens=0, echo=True) == "x\ufffd"


def test_responses_and_the_python_api_drop_a_character_that_was_cut(
    worker, recital, recital_folder
):
    limits = range(1, 24)
    texts = [shown_text(b"".join(recital.pieces["\1"][:count])) for count in limits]
    for count, text in zip(limits, texts, strict=True):
        reply = worker.post("/v1/responses", {"input": "x\1", "max_output_tokens": count})
        assert "".join(p["text"] for item in reply.json["output"] for p in item["content"]) == text
    with ingle.Engine(str(recital_folder), device="cpu") as engine:
        for count, text in zip(limits, texts, strict=True):
            params = ingle.SamplingParams(max_tokens=count, temperature=0)
            [answer] = engine.generate(["x\1"], params)
            assert answer.outputs[0].text == text


def test_invalid_bytes_do_not_mute_what_follows(ask):
    assert text_of(ask, "x\3", max_tokens=200) == BROKEN.decode(errors="replace")


@pytest.mark.parametrize("cue", ["\1", "\2"])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_stops_are_left_out_or_kept_as_asked(ask, cue, length):
    text = {"\1": GERMAN, "\2": COUNT}[cue]
    for start in range(0, len(text) - length, 5):
        stop = text[start : start + length]
        place = text.index(stop)
        fields = {"max_tokens": 200, "stop": [stop]}
        answer = both(ask, cue, **fields)
        assert text_of(ask, cue, **fields) == text[:place]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["stop_reason"] == stop
        kept = text_of(ask, cue, **fields, include_stop_str_in_output=True)
        assert kept == text[: place + length], stop


def test_an_answer_is_the_text_before_the_end_marker(ask):
    for cue, text in {"\6": "My turn.", "\2": COUNT, "\4": LOOKALIKE}.items():
        answer = both(ask, cue, max_tokens=100)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert text_of(ask, cue, max_tokens=100) == text
    # What begins like a stop, or like a marker, is held back and then sent.
    assert text_of(ask, "\4", max_tokens=100, stop=["<|im_end|>", "ten!"]) == LOOKALIKE


def test_a_users_stops_do_not_replace_the_models(ask):
    answer = both(ask, "\6", max_tokens=100, stop=["ZZZ"], stop_token_ids=[300])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text_of(ask, "\6", max_tokens=100, stop=["ZZZ"]) == "My turn."


@pytest.mark.parametrize("fields", [{}, {"temperature": 2, "seed": 1}, {"top_k": 1, "n": 3}])
def test_rows_without_a_token_are_never_chosen(ask, recital, fields):
    fields = {"max_tokens": 30, "return_token_ids": True} | fields
    answer = both(ask, "\5", **fields)
    expected = [recital.id(piece) for piece in recital.pieces["\5"]] + [1]
    for choice in answer["choices"]:
        assert choice["token_ids"] == expected


@pytest.mark.parametrize("path", PATHS.values())
@pytest.mark.parametrize("token", [1000, 1023, 1024, 2**31 - 1])
def test_token_ids_without_a_token_are_refused(worker, path, token):
    asked = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    key = "messages" if "chat" in path else "prompt"
    body = {key: asked[key]}
    for field, value, place in (
        ("logit_bias", {str(token): 100}, "logit_bias"),
        ("allowed_token_ids", [token], "allowed_token_ids[0]"),
        ("stop_token_ids", [5, token], "stop_token_ids[1]"),
    ):
        assert refused_twice(worker, path, **body, **{field: value})["param"] == place
    if key == "prompt":
        assert refused_twice(worker, path, prompt=[5, token])["param"].startswith("prompt")
        assert refused_twice(worker, path, prompt=[[5], [token]])["param"].startswith("prompt")


TEXTS = [
    "Hi", " two  spaces ", "\n\nlines\r\n\t", "don't we'll I'M", "12345 3.14", "ĄĆ naïve Straße",
    "日本語のテキスト", "🏳️‍🌈🙂", "a\u0301e\u0301", "\u2028\u00a0\u3000x", "<|im_start|x", "  ",
    "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_token_ids_are_those_of_hugging_face(cpu, text):
    """Behind a control token of the template too, and as a prompt; and the way back."""
    theirs = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    ours = cpu.post("/tokenize", {"prompt": text}).json["tokens"]
    assert ours == theirs.encode(text).ids
    assert cpu.post("/detokenize", {"tokens": ours[1:]}).json["prompt"] == text
    bare = cpu.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]
    assert bare == theirs.encode(text, add_special_tokens=False).ids
    message = {"role": "user", "content": text}
    rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    expected = theirs.encode(rendered, add_special_tokens=False).ids
    chat = cpu.post("/tokenize", {"messages": [message]}).json["tokens"]
    assert chat == expected
    assert cpu.post("/detokenize", {"tokens": chat}).json["prompt"] == rendered
    # What a generation reports is what was tokenised, plain and streamed.
    plain = cpu.chat([message], return_token_ids=True, max_tokens=1)
    [first, *_] = cpu.chat([message], return_token_ids=True, max_tokens=1, stream=True)
    assert plain["prompt_token_ids"] == first["prompt_token_ids"] == expected
    assert plain["usage"]["prompt_tokens"] == len(expected)


def test_log_prob_entries_of_parts_of_a_character_have_their_own_bytes(worker, recital):
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 200, "skip_special_tokens": True}
    entries = both(worker.chat, "\1", **fields)["choices"][0]["logprobs"]["content"]
    pieces = recital.pieces["\1"]
    assert [bytes(entry["bytes"]) for entry in entries[: len(pieces)]] == pieces
    assert b"".join(bytes(e["bytes"]) for e in entries[: len(pieces)]).decode() == GERMAN
    assert len(entries) in (len(pieces), len(pieces) + 1), "the end of text may have its own"
    for entry in entries:
        tops = [bytes(top["bytes"]) for top in entry["top_logprobs"]]
        assert len(set(tops)) == 3
        assert tops[0] == bytes(entry["bytes"])


def test_alternatives_that_are_parts_of_characters_are_distinguished(worker):
    fields = {"max_tokens": 1, "ignore_eos": True}
    top = both(worker.chat, "\7", **fields, logprobs=True, top_logprobs=4)
    [entry] = top["choices"][0]["logprobs"]["content"]
    assert [bytes(each["bytes"]) for each in entry["top_logprobs"]] == OTHERS
    legacy = both(worker.complete, "\7", **fields, logprobs=4)["choices"][0]["logprobs"]
    [alternatives] = legacy["top_logprobs"]
    assert len(alternatives) == 4, "equal texts must not be merged"
    assert legacy["tokens"] == [next(iter(alternatives))]
    assert "\ufffd" not in "".join(alternatives)
    values = list(alternatives.values())
    for higher, lower in itertools.pairwise(values):
        assert higher - lower == pytest.approx(1, abs=1e-4), "one apart, as their logits are"


def test_legacy_logprobs_arrays_belong_to_the_text(worker, recital):
    answer = both(worker.complete, "\2", logprobs=2, max_tokens=100)
    found = answer["choices"][0]["logprobs"]
    pieces = [piece.decode() for piece in recital.pieces["\2"]]
    assert found["tokens"][: len(pieces)] == pieces
    assert {len(values) for values in found.values()} == {len(found["tokens"])}
    ends = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    assert found["text_offset"][: len(pieces)] == ends
    assert found["token_logprobs"] == pytest.approx([0] * len(found["tokens"]), abs=1e-6)


@pytest.mark.parametrize("cue", ["\1", "\2"])
def test_a_stop_cuts_the_log_prob_entries_with_the_text(worker, recital, cue):
    stop = {"\1": "Straße", "\2": "five"}[cue]
    answer = both(worker.complete, cue, logprobs=1, max_tokens=100, stop=stop)
    [choice] = answer["choices"]
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"]
    pieces = recital.pieces[cue][: answer["usage"]["completion_tokens"]]
    assert stop in b"".join(pieces).decode(errors="ignore")
    assert stop not in b"".join(pieces[:-1]).decode(errors="ignore"), "no piece follows the stop"
