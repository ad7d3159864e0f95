"""Reasoning in answers and in the history of a chat, plain and streamed."""

import pytest

from server.reciter import Recital
from server.twice import both
from server.worker import Worker, joined

USER = {"role": "user", "content": "x"}
THINKING = (
    "{% for m in messages %}{{ m.role }}:"
    "{% set thought = m.reasoning_content or '' %}"
    "{% if thought %}<think>\n{{ thought }}\n</think>\n{% endif %}{{ m.content }}\n{% endfor %}"
    "{{ '<think>\n' }}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model that thinks before it answers."""
    recital = Recital()
    recital.add("\n", "let me see, why not\n</think>\n\nYes.")
    folder = recital.save(tmp_path_factory.mktemp("thinker"), THINKING)
    with Worker("--device", "cpu", model=folder) as worker:
        worker.recital = recital
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize("limit", [1, 3, 6])
def test_a_limit_within_the_reasoning_ends_with_length(thinker, limit):
    answer = both(thinker.chat, max_tokens=None, max_completion_tokens=limit)
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    begun = b"".join(thinker.recital.pieces["\n"][:limit]).decode()
    # White space belongs to the marker that may follow.
    assert choice["message"]["reasoning_content"] == begun.rstrip()
    assert answer["usage"]["completion_tokens"] == limit


def test_the_answer_follows_the_reasoning(thinker):
    [choice] = both(thinker.chat, max_tokens=None, max_completion_tokens=200)["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see, why not", "Yes.")
    assert choice["finish_reason"] == "stop"


def test_reasoning_and_reasoning_content_are_both_read(thinker):
    """Our answers say `reasoning_content`; some clients send it back as `reasoning`."""

    def prompt_tokens(**thought):
        history = [USER, {"role": "assistant", "content": "Yes."} | thought, USER]
        return both(thinker.chat, history, max_tokens=1)["usage"]["prompt_tokens"]

    without = prompt_tokens()
    thought = "because of this and that"
    with_it = prompt_tokens(reasoning_content=thought)
    assert with_it == without + len(f"<think>\n{thought}\n</think>\n")
    assert prompt_tokens(reasoning=thought) == with_it
    assert prompt_tokens(reasoning=thought, reasoning_content=None) == with_it
    assert prompt_tokens(reasoning="", reasoning_content="") == without


def test_a_stream_has_no_usage_unless_asked(thinker):
    """Also where the parsers of reasoning stand between."""
    events = thinker.chat(stream=True, max_tokens=200)
    assert all(event["choices"] for event in events)
    assert not any(event.get("usage") for event in events)
    assert joined(events) == {0: ("Yes.", ["stop"])}
