"""What the tests of fetches share: a model's files, fetches of them, and what came."""

import os
from pathlib import Path

from ingle.remote import hub, s3
from server.worker import TINY

CONTENT = {name: (TINY / name).read_bytes() for name in os.listdir(TINY) if (TINY / name).is_file()}
KEYS = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
MODEL = s3.S3Model("bucket", "models/tiny")


def from_s3(store, cache, **more):
    return Path(s3.fetch_from_s3(MODEL, cache, {"AWS_ENDPOINT_URL": store.url, **KEYS, **more}))


def from_hub(store, cache, model=None):
    environment = {"HF_ENDPOINT": store.url, "HF_HUB_CACHE": str(cache), "HF_TOKEN": "hf_x"}
    return Path(hub.fetch_from_hub(model or hub.HubModel("org/tiny"), None, environment))


def read(folder):
    """The files that are there, without the cache's own."""
    names = (each.relative_to(folder) for each in folder.rglob("*") if each.is_file())
    return {str(n): (folder / n).read_bytes() for n in names if not n.name.startswith(".")}


def gets(store):
    """Requests for objects."""
    return [asked for asked in store.asked if asked[1] is not None]
