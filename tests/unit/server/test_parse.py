import json

import pytest
from msgspec import Raw

from ingle.errors import RefusedError
from ingle.generation import encode
from ingle.server import convert, responses
from ingle.server.embeddings import EmbeddingRequest
from ingle.server.parse import BodyParser, UnknownFields
from ingle.server.protocol import ChatRequest, CompletionRequest
from ingle.server.protocol_responses import ResponsesRequest

CALLER = convert.Caller(tenant="", response_id="id", created=7, chunked=True, model="m")
PLAIN = {"prompt": "x"}


def reader(kind, make, warn=None):
    """Parses a body, and converts it: parts that stay JSON are checked there."""
    parser = BodyParser(kind, warn or UnknownFields(warn=False))

    def read(body):
        request = parser.parse(body)
        encode(parser.converted(body, request, make, CALLER))
        return request

    return read


@pytest.fixture
def completion():
    return reader(CompletionRequest, convert.completion)


@pytest.fixture
def chat():
    return reader(ChatRequest, convert.chat)


def fields(request):
    """What a request says, without what it leaves out."""
    values = {name: getattr(request, name) for name in request.__struct_fields__}
    decoded = {k: json.loads(bytes(v)) if isinstance(v, Raw) else v for k, v in values.items()}
    return {name: value for name, value in decoded.items() if value is not None}


def refusal(parse, body):
    with pytest.raises(RefusedError) as caught:
        parse(body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass"))
    assert caught.value.status == 400
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", ["0", "-1", "1000000", "true", '"2"', "1.5"]),
        ("temperature", ["-0.1", "2.1", '"1"', "1e999", "true"]),
        ("top_p", ["0", "1.1", "-1"]),
        ("top_k", ["-2", "-5", "1.5", "2147483648"]),
        ("min_p", ["-0.1", "1.1"]),
        ("repetition_penalty", ["0", "-1"]),
        ("presence_penalty", ["2.1", "-2.1"]),
        ("frequency_penalty", ["2.1", "-2.1"]),
        ("seed", ["18446744073709551616", "-9223372036854775809", "1.5", "true"]),
        ("max_tokens", ["-1", "1.5", "true"]),
        ("min_tokens", ["-1"]),
        ("logprobs", ["true", "-1", "21"]),
        ("stop_token_ids", ["[-1]", "[1.5]", "5"]),
        ("allowed_token_ids", ["[]", "[-1]"]),
        ("stop", ['""', '[""]', "5", "{}", "[[1]]", "[1.5]", "[true]", '["a",null]', "[-1]"]),
        ("logit_bias", ['{"x":1}', '{"1":101}', '{"-1":1}', "[]"]),
        ("stream", ["1", '"true"']),
        ("best_of", ["0"]),
        ("priority", ["2147483648"]),
        ("request_id", ['"a b"', '"a\\nb"', "5"]),
    ],
)
def test_value_out_of_range_names_the_field(completion, field, values):
    for value in values:
        error = refusal(completion, f'{{"prompt":"x","{field}":{value}}}')
        assert error.param.split("[")[0] == field, value
        assert error.message.startswith(field), error.message


@pytest.mark.parametrize("bias", ['{"5":101}', '{"5":"x"}', '{"-1":1}', '{"x":1}'])
def test_an_entry_of_a_dictionary_is_named_by_the_field(completion, bias):
    error = refusal(completion, f'{{"prompt":"x","logit_bias":{bias}}}')
    assert error.param == "logit_bias"
    assert error.message.startswith("logit_bias: ")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "+1", "01"])
def test_numbers_that_json_does_not_have_are_refused(completion, number):
    assert refusal(completion, f'{{"prompt":"x","temperature":{number}}}').code == "invalid_json"


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":"\xff"}',
        b'{"prompt":"x"',
        b"",
        b'{"prompt":"x"}x',
        b"\xef\xbb\xbf{}",
        b'{"prompt":"a\x00b"}',
        b'{"prompt":"a\nb"}',
        b'{"prompt":"\\ud83d"}',
        b'{"prompt":"\\ud83d x"}',
        b'{"prompt":"\\udc00"}',
        b'{"prompt":"x","prompt":"y"}',
        b'{"prompt":"x","logit_bias":{"1":1,"1":2}}',
        b'{"prompt":"x","stream_options":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
        b"[" * 10_000 + b"]" * 10_000,
    ],
)
def test_broken_json_is_refused(completion, body):
    assert refusal(completion, body).code in ("invalid_json", "invalid_value")


def test_escaped_nul_is_a_character(completion):
    assert fields(completion(b'{"prompt":"a\\u0000b"}')) == {"prompt": "a\0b"}


def test_unknown_field_is_named(completion, chat):
    error = refusal(completion, '{"prompt":"x","temprature":0}')
    assert (error.param, error.code) == ("temprature", "unknown_field")
    error = refusal(chat, '{"messages":[{"role":"user","content":"x","colour":1}]}')
    assert error.param == "messages[0].colour"


def test_missing_field_is_named(completion, chat):
    assert refusal(completion, "{}").param == "prompt"
    assert refusal(chat, "{}").param == "messages"
    assert refusal(chat, '{"messages":[{"content":"x"}]}').param == "messages[0].role"


def test_null_equals_absent(completion, chat):
    names = [f for f in CompletionRequest.__struct_fields__ if f != "prompt"]
    body = '{"prompt":"x",' + ",".join(f'"{f}":null' for f in names) + "}"
    assert fields(completion(body.encode())) == PLAIN
    assert fields(completion(b'{"prompt":"x","whatever":null}')) == PLAIN
    names = [f for f in ChatRequest.__struct_fields__ if f != "messages"]
    body = '{"messages":[{"role":"user","content":"x"}],'
    assert chat((body + ",".join(f'"{f}":null' for f in names) + "}").encode()).n is None


def test_replayed_answer_of_the_official_client_is_accepted(chat):
    message = (
        '{"role":"assistant","content":"x","refusal":null,"annotations":[],"audio":null,'
        '"function_call":null,"tool_calls":null}'
    )
    assert chat(f'{{"messages":[{message}]}}'.encode()).messages[0].content == Raw(b'"x"')


@pytest.mark.parametrize(
    "field",
    [
        '"suffix":""',
        '"tools":[]',
        '"tool_choice":"none"',
        '"use_beam_search":false',
        '"length_penalty":1.0',
        '"tools":null',
    ],
)
def test_off_values_equal_absent(completion, field):
    assert fields(completion(f'{{"prompt":"x",{field}}}'.encode())) == PLAIN


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("suffix", '"suffix":"x"'),
        ("tools", '"tools":[{}]'),
        ("tool_choice", '"tool_choice":"required"'),
        ("use_beam_search", '"use_beam_search":true'),
        ("use_beam_search", '"use_beam_search":0'),
        ("guided_decoding_backend", '"guided_decoding_backend":"x"'),
        ("chat_template", '"chat_template":"{{ x }}"'),
    ],
)
def test_a_field_that_is_not_honoured_is_refused_by_name(completion, name, field):
    assert refusal(completion, f'{{"prompt":"x",{field}}}').param == name


def test_off_values_of_known_fields_are_values(chat):
    # Another off value sends the body on the slow path, where "none" must still forbid calls.
    tool = '{"type":"function","function":{"name":"f"}}'
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"tools":[{tool}],"tool_choice":"none"'
    for more in ("", ',"suffix":""'):
        assert chat((body + more + "}").encode()).tool_choice == "none"


@pytest.mark.parametrize(
    "field",
    [
        '"user":"u"',
        '"metadata":{"a":1}',
        '"safety_identifier":"s"',
        '"prompt_cache_key":"k"',
        '"store":false',
        '"service_tier":"auto"',
        '"modalities":["text"]',
        '"parallel_tool_calls":true',
        '"stream":true,"stream_options":{"whatever":1}',
    ],
)
def test_documented_fields_without_effect(chat, field):
    chat(f'{{"messages":[{{"role":"user","content":"x","name":"n"}}],{field}}}'.encode())


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("store", '"store":true'),
        ("service_tier", '"service_tier":"flex"'),
        ("modalities", '"modalities":["audio"]'),
    ],
)
def test_the_same_fields_with_an_effect_are_refused(chat, name, field):
    error = refusal(chat, f'{{"messages":[{{"role":"user","content":"x"}}],{field}}}')
    assert error.param.split("[")[0] == name


@pytest.mark.parametrize("messages", ["[]", "{}", "null", '"x"', "[5]"])
def test_messages_of_the_wrong_type_are_refused_by_name(chat, messages):
    assert refusal(chat, f'{{"messages":{messages}}}').param.startswith("messages")


@pytest.mark.parametrize("role", ['"robot"', "null", "5", '""'])
def test_roles_of_the_wrong_type_are_refused_by_name(chat, role):
    error = refusal(chat, f'{{"messages":[{{"role":{role},"content":"x"}}]}}')
    assert error.param == "messages[0].role"


def test_an_image_part_is_refused_as_an_image(chat):
    part = '{"type":"image_url","image_url":{"url":"http://x"}}'
    error = refusal(chat, f'{{"messages":[{{"role":"user","content":[{part}]}}]}}')
    assert error.param == "messages[0].content[0]"
    assert error.message == "this model takes text only; messages[0].content[0] is an image"


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ('{"image_url":{"url":"http://x"},"type":"image_url"}', "an image"),
        ('{"type":"input_image","image_url":"data:image/png;base64,x"}', "an image"),
        ('{"type":"image","source":{"type":"base64","data":"x"}}', "an image"),
        ('{"input_audio":{"data":"x","format":"wav"},"type":"input_audio"}', "audio"),
        ('{"type":"video_url","video_url":{"url":"http://x"}}', "a video"),
        ('{"type":"input_file","file_id":"x"}', "a file"),
    ],
)
def test_what_is_no_text_is_refused_as_what_it_is(chat, part, what):
    text = '{"type":"text","text":"x"}'
    body = f'{{"messages":[{{"role":"user","content":[{text},{part}]}}]}}'
    error = refusal(chat, body)
    assert error.message == f"this model takes text only; messages[0].content[1] is {what}"
    assert error.param == "messages[0].content[1]"
    read = reader(ResponsesRequest, lambda asked, _: responses.chat_request(asked))
    text = text.replace("text", "input_text", 1)
    error = refusal(read, f'{{"input":[{{"role":"user","content":[{text},{part}]}}]}}')
    assert error.message == f"this model takes text only; input[0].content[1] is {what}"


def test_a_chat_has_no_max_tokens_of_zero(chat):
    body = '{"messages":[{"role":"user","content":"x"}],"max_tokens":0}'
    assert refusal(chat, body).param == "max_tokens"


def test_warn_takes_unknown_fields_out_and_counts_them(caplog):
    unknown = UnknownFields(warn=True)
    parse = BodyParser(CompletionRequest, unknown).parse
    for _ in range(2):
        assert fields(parse(b'{"prompt":"x","temprature":0,"foo":{}}')) == PLAIN
    assert unknown.counts == {"temprature": 2, "foo": 2}
    assert [r.getMessage().split()[2] for r in caplog.records] == ["temprature", "foo"]
    # Known fields stay checked.
    assert refusal(parse, '{"prompt":"x","foo":1,"n":0}').param == "n"


def test_warn_takes_out_nested_fields_too():
    unknown = UnknownFields(warn=True)
    call = '{"id":"a","colour":1,"function":{"name":"f","arguments":"{\\"colour\\":1}","odd":1}}'
    part = '{"type":"text","text":"y","colour":{"a":[1]}}'
    body = (
        f'{{"messages":[{{"role":"user","content":[{part}],"colour":1}},'
        f'{{"role":"assistant","content":"z","tool_calls":[{call}]}}],"colour":1,'
        '"response_format":{"type":"json_schema","json_schema":{"schema":{"colour":1},"odd":2}}}'
    ).encode()
    plain = {"messages.colour", "messages.content.colour", "messages.tool_calls.colour"}
    plain |= {"messages.tool_calls.function.odd", "response_format.json_schema.odd", "colour"}
    documents = []
    parser = BodyParser(ChatRequest, unknown)
    request = parser.parse(body)
    documents.append(encode(parser.converted(body, request, convert.chat, CALLER)))
    assert set(unknown.counts) == plain
    assert set(unknown.counts.values()) == {1}
    document = json.loads(documents[0])
    first, second = document["prompts"][0]["chat"]["messages"]
    assert first == {"role": "user", "content": "y"}
    assert second["tool_calls"][0]["function"]["arguments"] == {"colour": 1}
    assert document["grammar"]["schema"] == {"colour": 1}, "a schema is no request"
    parser = BodyParser(ResponsesRequest, unknown)
    body = (
        b'{"input":[{"role":"user","odd":1,"content":[{"type":"input_text","text":"y","odd":1}]}]}'
    )
    request = parser.parse(body)
    chat = parser.converted(body, request, responses.chat_request)
    assert bytes(chat.messages[0].content) == b'"y"'
    assert {"input.odd", "input.content.odd"} <= set(unknown.counts)


def test_null_and_empty_lists_in_nested_fields_equal_absent(chat):
    part = '{"type":"text","text":"y","whatever":null,"more":[]}'
    message = f'{{"role":"user","content":[{part}],"whatever":null,"more":[]}}'
    body = f'{{"messages":[{message}],"tools":[{{"type":"function","odd":null,"function":'
    body += '{"name":"f","odd":null}}]}'
    chat(body.encode())
    for wrong in ('"odd":0', '"odd":{}', '"odd":""', '"odd":[0]'):
        error = refusal(chat, body.replace('"odd":null', wrong, 1))
        assert (error.param, error.code) == ("tools[0].odd", "unknown_field")
    assert refusal(chat, body.replace('"more":[]', '"more":[1]', 1)).param == (
        "messages[0].content[0].more"
    )


def test_warn_bounds_names_and_number_of_counters():
    unknown = UnknownFields(warn=True)
    parse = BodyParser(CompletionRequest, unknown).parse
    for i in range(200):
        parse(f'{{"prompt":"x","f{i}":1}}'.encode())
    parse(b'{"prompt":"x","a\\"} 1\\nevil":1}')
    unknown.counts.clear()
    parse(b'{"prompt":"x","evil\\n":1}')
    assert len(unknown.counts) <= UnknownFields.MOST_NAMES + 1
    assert all(name.isidentifier() for name in unknown.counts)


def test_message_never_holds_the_text(completion, chat):
    secret = "S3CRET"
    for body in (
        f'{{"prompt":"{secret}","n":0}}',
        f'{{"prompt":"{secret}',
        f'{{"prompt":"{secret}","prompt":"{secret}"}}',
        f'{{"prompt":{{"{secret}":1}}}}',
    ):
        assert secret not in refusal(completion, body).message


@pytest.mark.parametrize(
    "field",
    [
        '"prompt":"\\ud83d"',
        '"prompt":"x","cache_salt":"a\\udc00"',
        '"prompt":"x","user":{"\\ud800":1}',
        '"prompt":"x","user":NaN',
        '"prompt":"x","temperature":NaN',
        '"prompt":"x","user":-Infinity',
    ],
)
def test_json_that_only_pythons_decoder_takes_is_refused(completion, field):
    # The unknown field in front sends the body the slow way.
    assert refusal(completion, f'{{"suffix":"",{field}}}').code == "invalid_json"
    assert refusal(completion, f"{{{field}}}").code in ("invalid_json", "invalid_value")


@pytest.mark.parametrize("penalty", ["0", "1e-40", "0.009", "101"])
def test_penalty_that_leaves_no_finite_logit_is_refused(completion, penalty):
    body = f'{{"prompt":"x","repetition_penalty":{penalty}}}'
    assert refusal(completion, body).param == "repetition_penalty"


def test_pattern_ends_with_the_text(completion, chat):
    assert refusal(completion, '{"prompt":"x","request_id":"a\\n"}').param == "request_id"
    function = '{"type":"function","function":{"name":"f\\n"}}'
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"tools":[{function}]}}'
    assert refusal(chat, body).param == "tools[0].function.name"
    for kind in (EmbeddingRequest, ResponsesRequest):
        parse = BodyParser(kind, UnknownFields(warn=False)).parse
        assert refusal(parse, '{"input":"x","request_id":"a\\n"}').param == "request_id"
    read = reader(ResponsesRequest, lambda asked, _: responses.chat_request(asked))
    body = '{"input":"x","tools":[{"type":"function","name":"f\\n"}]}'
    assert refusal(read, body).param == "tools[0].name"
