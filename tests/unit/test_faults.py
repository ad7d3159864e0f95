"""Each kind of error that msgspec has becomes a line in our words."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Raw, Struct

from ingle.faults import fault_of

Word = Annotated[str, Meta(min_length=2, max_length=4)]
Digits = Annotated[str, Meta(pattern="^[0-9]+$", extra={"allowed": "digits"})]


class Left(Struct, tag="left", forbid_unknown_fields=True):
    x: int = 0


class Right(Struct, tag="right", forbid_unknown_fields=True):
    y: int = 0


class Inner(Struct, kw_only=True, forbid_unknown_fields=True):
    needed: int
    word: Word | None = None


class Whole(Struct, kw_only=True, forbid_unknown_fields=True):
    flag: bool | None = None
    whole: int | None = None
    number: float | None = None
    some: Annotated[int, Meta(ge=1, le=5)] | None = None
    least: Annotated[int, Meta(ge=1)] | None = None
    most: Annotated[float, Meta(le=1.5)] | None = None
    above: Annotated[float, Meta(gt=0, le=1)] | None = None
    below: Annotated[float, Meta(lt=1)] | None = None
    word: Word | None = None
    long: Annotated[str, Meta(min_length=2)] | None = None
    digits: Digits | None = None
    few: Annotated[list[int], Meta(min_length=1, max_length=2)] | None = None
    words: list[Word] | None = None
    small: Annotated[dict[str, Any], Meta(max_length=1)] | None = None
    biases: dict[Digits, Annotated[float, Meta(ge=-1, le=1)]] | None = None
    choice: Literal["a", "b"] | None = None
    off: Literal[False] | None = None
    mixed: Literal["auto"] | Annotated[int, Meta(ge=0, le=3)] | None = None
    several: str | list[str] | None = None
    inner: Inner | None = None
    inners: list[Inner] | None = None
    side: Left | Right | None = None
    nothing: None = None


CASES = [
    ("5", None, "the body must be an object, not 5"),
    ("[]", None, "the body must be an object, not a list"),
    ('{"flag":1}', "flag", "flag: must be true or false, not 1"),
    ('{"flag":"SECRET text"}', "flag", "flag: must be true or false, not a string"),
    ('{"whole":1.5}', "whole", "whole: must be a whole number, not 1.5"),
    ('{"whole":"1"}', "whole", "whole: must be a whole number, not a string"),
    ('{"whole":true}', "whole", "whole: must be a whole number, not true"),
    ('{"number":{}}', "number", "number: must be a number, not an object"),
    ('{"number":1e999}', "number", "number: must be a number"),
    ('{"some":0}', "some", "some: must be a whole number from 1 to 5, not 0"),
    ('{"some":' + "9" * 40 + "}", "some", "some: must be a whole number from 1 to 5, not a number "
     "of many digits"),
    ('{"least":0}', "least", "least: must be a whole number of at least 1, not 0"),
    ('{"most":2}', "most", "most: must be a number of at most 1.5, not 2"),
    ('{"above":0}', "above", "above: must be a number above 0 and at most 1, not 0"),
    ('{"below":1.0}', "below", "below: must be a number below 1, not 1.0"),
    ('{"word":"a"}', "word", "word: must be a string of 2 to 4 characters, not 1 character"),
    ('{"word":""}', "word", "word: must be a string of 2 to 4 characters, not an empty one"),
    ('{"word":"SECRET"}', "word", "word: must be a string of 2 to 4 characters, not 6 characters"),
    ('{"word":[]}', "word", "word: must be a string of 2 to 4 characters, not a list"),
    ('{"long":"a"}', "long", "long: must be a string of at least 2 characters, not 1 character"),
    ('{"digits":"a b"}', "digits", "digits: must be digits, not this one"),
    ('{"few":[]}', "few", "few: must be a list of 1 to 2 items, not an empty list"),
    ('{"few":[1,2,3]}', "few", "few: must be a list of 1 to 2 items, not 3 items"),
    ('{"few":[1,"x"]}', "few[1]", "few[1]: must be a whole number, not a string"),
    ('{"words":["ab","abcde"]}', "words[1]",
     "words[1]: must be a string of 2 to 4 characters, not 5 characters"),
    ('{"small":{"a":1,"b":2}}', "small",
     "small: must be an object of at most 1 entry, not 2 entries"),
    ('{"biases":{"1":0,"2":5}}', "biases",
     'biases: the value of "2" must be a number from -1 to 1, not 5'),
    ('{"biases":{"x":0}}', "biases", 'biases: a key must be digits, not "x"'),
    ('{"biases":{"x y":0}}', "biases", "biases: a key must be digits, not this one"),
    ('{"choice":"c"}', "choice", 'choice: must be "a" or "b", not "c"'),
    ('{"choice":"SECRET text"}', "choice", 'choice: must be "a" or "b", not another text'),
    ('{"choice":7}', "choice", 'choice: must be "a" or "b", not 7'),
    ('{"off":true}', "off", "off: must be false, not true"),
    ('{"mixed":4}', "mixed", 'mixed: must be "auto" or a whole number from 0 to 3, not 4'),
    ('{"mixed":"no"}', "mixed", 'mixed: must be "auto" or a whole number from 0 to 3, not "no"'),
    ('{"several":5}', "several", "several: must be a string or a list, not 5"),
    ('{"several":["a",null]}', "several[1]", "several[1]: must be a string, not null"),
    ('{"inner":{}}', "inner.needed", "inner.needed: the field is required"),
    ('{"inner":[]}', "inner", "inner: must be an object, not a list"),
    ('{"inners":[{"needed":1},{"needed":"x"}]}', "inners[1].needed",
     "inners[1].needed: must be a whole number, not a string"),
    ('{"inners":[{"needed":1,"word":"abcde"}]}', "inners[0].word",
     "inners[0].word: must be a string of 2 to 4 characters, not 5 characters"),
    ('{"inners":[{"needed":1,"odd":1}]}', "inners[0].odd", "unknown field: inners[0].odd"),
    ('{"odd":1}', "odd", "unknown field: odd"),
    ('{"side":{"type":"up"}}', "side.type", 'side.type: must be "left" or "right", not "up"'),
    ('{"side":{"type":5}}', "side.type", 'side.type: must be "left" or "right", not 5'),
    ('{"side":{"x":1}}', "side.type", "side.type: the field is required"),
    ('{"nothing":1}', "nothing", "nothing: must be null, not 1"),
]  # fmt: skip


def fault(body):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=Whole)
    return fault_of(caught.value, Whole, body)


@pytest.mark.parametrize(("body", "param", "message"), CASES)
def test_a_body_is_refused_in_our_words(body, param, message):
    refusal = fault(body.encode()).refusal()
    assert (refusal.message, refusal.param, refusal.status) == (message, param, 400)
    assert "SECRET" not in refusal.message


@pytest.mark.parametrize(("body", "param", "message"), CASES)
def test_a_part_is_named_by_its_place(body, param, message):
    if message.startswith("the body"):
        return
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body.encode(), type=Whole)
    refusal = fault_of(caught.value, Whole, Raw(body.encode()), "items[2]").refusal()
    assert refusal.param == f"items[2].{param}"
    assert refusal.message == message.replace(param, refusal.param, 1)


def test_a_python_value_is_refused_like_json():
    for body, param, message in CASES:
        if "1e999" in body or message.startswith("the body") or "999999" in body:
            continue
        value = json.loads(body)
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert(value, Whole)
        refusal = fault_of(caught.value, Whole, value).refusal()
        allowed, _, given = message.partition(", not ")
        assert (refusal.message.partition(", not ")[0], refusal.param) == (allowed, param)
        quotes = ("a string", "this one", "another text")
        assert refusal.message.endswith(given) or given in quotes
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"whole": "one of them"}, Whole)
    own = fault_of(caught.value, Whole, {"whole": "one of them"})
    assert own.message() == 'whole: must be a whole number, not "one of them"'


@pytest.mark.parametrize("rest", [b',"x":', b"" + b"[" * 2000, b""])
def test_a_body_that_is_broken_further_on_still_names_the_field(rest):
    found = fault(b'{"some":0' + rest)
    assert found.refusal().message.startswith("some: must be a whole number from 1 to 5")
