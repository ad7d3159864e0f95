"""No request makes the process start a thread: all of them exist before it is ready."""

from pathlib import Path

from server.worker import wait_for

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}


def threads(worker):
    """Number and name of each thread, as the system has them."""
    tasks = Path(f"/proc/{worker.process.pid}/task").iterdir()
    return {(task.name, (task / "comm").read_text().strip()) for task in tasks}


def test_no_request_starts_a_thread(cpu):
    before = threads(cpu)
    names = {name for _, name in before}
    assert {"ingle-grammar-0", "ingle-grammar-1", "ingle-mask-0", "ingle-engine"} <= names
    for fields in (
        {"guided_json": SCHEMA},
        {"guided_regex": "a{3}"},
        {"guided_grammar": "start: nothing"},
        {"bad_words": ["x"]},
        {"prompt": "word " * 20_000},
    ):
        body = {"prompt": "x", "max_tokens": 2} | fields
        assert cpu.post("/v1/completions", body).status in (200, 400)
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "tools": [TOOL]}
    cpu.post("/v1/chat/completions", chat)
    assert cpu.post("/tokenize", {"prompt": "word " * 20_000}).status == 200
    wait_for(lambda: cpu.health()["in_system"] == 0, 5, lambda: str(cpu.health()))
    assert threads(cpu) == before
