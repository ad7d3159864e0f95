"""A bucket of moto, a store that is not ours: it has its own signatures, listings, ETags, ranges.

Runs where `moto[server]` is installed; MOTO_SERVER names its program if it lies elsewhere.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import urllib.request

import pytest

from ingle.errors import ModelError
from ingle.remote import s3
from remote.fetching import CONTENT, KEYS, from_s3, read
from server.worker import wait_for

PROGRAM = os.environ.get("MOTO_SERVER") or shutil.which("moto_server")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs moto[server]")


class Moto:
    def __init__(self, url):
        self.url = url

    def ask(self, method, path, body=b""):
        store = s3.Store(f"{self.url}/bucket", "us-east-1", *KEYS.values())
        # The signature is of a GET without a body; moto checks none of uploads.
        request = urllib.request.Request(f"{self.url}{path}", body, method=method)
        request.add_header("Content-Type", "application/octet-stream")  # Not a form.
        for name, value in store.sign(f"{self.url}{path}").items():
            request.add_header(name, value)
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read().decode(), response.headers


@pytest.fixture(scope="module")
def moto():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PROGRAM, "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        store = Moto(f"http://127.0.0.1:{port}")

        def answers():
            with contextlib.suppress(OSError):
                return bool(store.ask("PUT", "/bucket"))

        wait_for(answers, 30, lambda: process.poll())
        for name, body in CONTENT.items():
            store.ask("PUT", f"/bucket/models/tiny/{name}", body)
        yield store
    finally:
        process.terminate()
        process.wait()


def test_a_model_comes_from_a_bucket_of_moto(moto, tmp_path):
    folder = from_s3(moto, tmp_path)
    assert read(folder) == CONTENT
    assert from_s3(moto, tmp_path) == folder


def test_an_object_uploaded_in_parts_has_an_etag_that_is_no_hash(moto, tmp_path):
    place = "/bucket/parts/tiny/config.json"
    begun, _ = moto.ask("POST", f"{place}?uploads")
    upload = begun.split("<UploadId>")[1].split("</UploadId>")[0]
    body = CONTENT["config.json"] + b" " * (5 << 20)
    etags = []
    for number, part in enumerate((body[: 5 << 20], body[5 << 20 :]), start=1):
        _, headers = moto.ask("PUT", f"{place}?partNumber={number}&uploadId={upload}", part)
        etags.append(headers["ETag"])
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        for number, etag in enumerate(etags, start=1)
    )
    whole = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
    moto.ask("POST", f"{place}?uploadId={upload}", whole.encode())
    moto.ask("PUT", "/bucket/parts/tiny/model.safetensors", CONTENT["model.safetensors"])
    model = s3.S3Model("bucket", "parts/tiny")
    environment = {"AWS_ENDPOINT_URL": moto.url, **KEYS}
    folder = s3.fetch_from_s3(model, tmp_path, environment)
    assert read(tmp_path / folder)["config.json"] == body


def test_what_a_bucket_of_moto_does_not_have_is_named(moto, tmp_path):
    with pytest.raises(ModelError, match="has neither"):
        s3.fetch_from_s3(
            s3.S3Model("bucket", "none/here"), tmp_path, {"AWS_ENDPOINT_URL": moto.url}
        )
    with pytest.raises(ModelError, match="HTTP 404"):
        s3.fetch_from_s3(s3.S3Model("nowhere", "a"), tmp_path, {"AWS_ENDPOINT_URL": moto.url})
