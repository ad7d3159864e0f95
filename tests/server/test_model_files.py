"""What happens to a model's files while they are served."""

import shutil

import pytest

from server.worker import TINY, Worker, whole


def test_files_that_are_cut_replaced_or_removed_while_serving_change_nothing(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    with Worker("--device", "cpu", model=folder) as worker:
        before = whole(worker.complete("The quick brown fox", max_tokens=20))
        chat = whole(worker.chat("Hello", max_tokens=20, guided_regex="[a-z ]{5,20}"))
        for file in folder.iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        assert whole(worker.complete("The quick brown fox", max_tokens=20)) == before
        for file in list(folder.iterdir()):
            file.unlink()
            file.write_bytes(b"something else")
        # Another prompt, so that nothing comes from the prefix cache.
        assert worker.complete("lazy dogs " * 20, max_tokens=20)["usage"]["completion_tokens"]
        shutil.rmtree(folder)
        assert whole(worker.complete("The quick brown fox", max_tokens=20)) == before
        assert whole(worker.chat("Hello", max_tokens=20, guided_regex="[a-z ]{5,20}")) == chat
        assert worker.stop() == 0, worker.errors()


def test_a_start_from_files_that_were_cut_names_the_file(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 1000)
    with pytest.raises(AssertionError, match="no start") as failure, Worker(model=folder):
        pass
    text = str(failure.value)
    assert "model.safetensors: tensor" in text
    assert "Traceback (most recent call last)" not in text


def test_a_model_cannot_show_clients_a_secret_of_the_machine(tmp_path):
    """As its chat template it could be read with /tokenizer_info and in every prompt."""
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    keys = tmp_path / "keys"
    keys.write_text("tenant:a-secret-key-of-the-server\n")
    keys.chmod(0o600)
    (folder / "chat_template.jinja").symlink_to(keys)
    with pytest.raises(AssertionError, match="no start") as failure, Worker(model=folder):
        pass
    text = str(failure.value)
    assert f"chat_template.jinja: is a link to {keys}, outside of the model's folder" in text
    assert "a-secret-key" not in text
