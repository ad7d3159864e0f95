"""Folders with tokenizer.model or tekken.json alone; turns that the template's marker ends."""

import json
import shutil

import pytest

from server.reciter import ECHO, Recital
from server.twice import both, text_of
from server.worker import TINY, Worker

FILES = TINY.parent.parent / "tokenizers"
CASES = json.loads((FILES / "cases.json").read_text())
END_OF_TURN = 4


@pytest.mark.parametrize(
    ("name", "file"), [("bpe-llama", "tokenizer.model"), ("tekken", "tekken.json")]
)
def test_a_folder_without_tokenizer_json_is_served_by_what_it_has(tmp_path, name, file):
    recital = Recital()
    recital.add("\1", "x")
    folder = recital.save(tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    source = FILES / (file if name == "tekken" else f"{name}.model")
    shutil.copyfile(source, folder / file)
    with Worker("--device", "cpu", model=folder) as worker:
        for case in [case for case in CASES[name] if case["text"]][:12]:
            fields = {"prompt": case["text"], "add_special_tokens": False}
            reply = worker.post("/tokenize", fields)
            assert reply.json["tokens"] == case["ids"], case["text"]
        answer = both(worker.complete, "The fire", max_tokens=5, temperature=0)
        assert answer["usage"]["completion_tokens"] <= 5


def test_a_chat_ends_with_the_marker_that_only_its_template_names(tmp_path):
    def served(folder, template):
        recital = Recital()
        recital.add("\6", "My turn.")
        recital.add("\2", "And yours?")
        # After the marker the model would go on as the user.
        recital.prefer(recital.pieces["\6"][-1], END_OF_TURN, 50)
        recital.prefer(END_OF_TURN, b"\2")
        return Worker("--device", "cpu", model=recital.save(folder, template))

    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    with served(tmp_path / "with", ECHO + "{% if false %}<|im_end|>{% endif %}") as worker:
        answer = both(worker.chat, "x\6", max_tokens=40)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert text_of(worker.chat, "x\6", max_tokens=40) == "My turn."
    with served(tmp_path / "without", ECHO) as worker:
        assert text_of(worker.chat, "x\6", max_tokens=40).startswith("My turn.\2And yours?")
