"""A bucket and a hub with one small model each."""

import pytest

from ingle.remote import files, transport
from remote.fetching import CONTENT, KEYS
from remote.store import Store


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Small parts, short waits, nothing of the developer's own."""
    monkeypatch.setattr(files, "PART_BYTES", 100_000)
    monkeypatch.setattr(transport, "FIRST_WAIT_S", 0.001)
    for name in ("AWS_ENDPOINT_URL", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HOME", *KEYS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bucket():
    store = Store()
    store.objects = {f"models/tiny/{name}": body for name, body in CONTENT.items()}
    store.objects |= {"models/tiny/README.md": b"no", "models/tiny-2/config.json": b"{}"}
    with store.serve() as url:
        store.url = url
        yield store


@pytest.fixture
def repository():
    store = Store()
    store.objects = dict(CONTENT) | {"README.md": b"no", "pytorch_model.bin": b"no"}
    with store.serve() as url:
        store.url = url
        yield store
