"""Models from an S3-compatible store, into a folder of the cache.

The usual variables are honoured: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION, and AWS_ENDPOINT_URL for stores other than Amazon's, which are addressed by path (R2:
region auto). Without keys requests are not signed. Blocking.
"""

import datetime
import hashlib
import hmac
import html
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ingle.errors import ConfigError, ModelError
from ingle.places import default_cache_dir
from ingle.remote.cache import trim
from ingle.remote.files import RemoteFile, alone, chosen, download, wanted
from ingle.remote.notes import Notes
from ingle.remote.settings import credential, endpoint
from ingle.remote.transport import Transport

log = logging.getLogger("ingle")


@dataclass(frozen=True)
class S3Model:
    """A folder of a bucket."""

    bucket: str
    prefix: str
    """Without slashes at its ends."""
    file: str | None = None
    """One of several GGUF files."""

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" + (f"/{self.file}" if self.file else "")


@dataclass(frozen=True)
class Store:
    """Where the bucket is, and who asks."""

    base: str
    """URL of the bucket."""
    region: str
    key: str | None
    secret: str = ""
    token: str | None = None

    @classmethod
    def of(cls, bucket: str, environment: Mapping[str, str]) -> "Store":
        """The store that the environment describes. Errors: ConfigError for a bad endpoint."""
        address = endpoint(environment, "AWS_ENDPOINT_URL")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        region = region or ("auto" if address else "us-east-1")
        if not REGION.fullmatch(region):
            raise ConfigError(f"AWS_REGION: must be letters, digits and -: {region!r}")
        virtual = f"https://{bucket}.s3.{region}.amazonaws.com"
        return cls(
            f"{address}/{bucket}" if address else virtual,
            region,
            credential(environment, "AWS_ACCESS_KEY_ID"),
            credential(environment, "AWS_SECRET_ACCESS_KEY") or "",
            credential(environment, "AWS_SESSION_TOKEN"),
        )

    def sign(self, url: str, now: datetime.datetime | None = None) -> dict[str, str]:
        """The headers of a GET: Signature Version 4."""
        if self.key is None:
            return {}
        now = now or datetime.datetime.now(datetime.UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        parts = urlsplit(url)
        headers = {"host": parts.netloc, "x-amz-content-sha256": EMPTY, "x-amz-date": stamp}
        if self.token:
            headers["x-amz-security-token"] = self.token
        query = sorted(parse_qsl(parts.query, keep_blank_values=True))
        names = ";".join(sorted(headers))
        canonical = "\n".join(
            (
                "GET",
                parts.path or "/",
                "&".join(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in query),
                *(f"{name}:{headers[name]}" for name in sorted(headers)),
                "",
                names,
                EMPTY,
            )
        )
        scope = f"{day}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        key = f"AWS4{self.secret}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        del headers["host"]  # The connection sends it.
        credential = f"Credential={self.key}/{scope}"
        value = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "Authorization": value}


def s3_model(model: str) -> S3Model | None:
    """The bucket and prefix that a source names. Errors: ConfigError if they make no sense."""
    if not model.startswith("s3://"):
        return None
    found = ADDRESS.fullmatch(model.removeprefix("s3://").rstrip("/"))
    if found is None or ".." in found[2].split("/"):
        raise ConfigError(f"model: must be s3://BUCKET/PREFIX: {model}")
    folder, slash, last = found[2].rpartition("/")
    if slash and last.endswith(".gguf"):
        return S3Model(found[1], folder, last)
    return S3Model(found[1], found[2])


def fetch_from_s3(
    model: S3Model,
    download_dir: Path | None,
    environment: Mapping[str, str] = os.environ,
    most_bytes: int | None = None,
    thorough: bool = False,
    keep: Collection[Path] = (),
) -> str:
    """The local folder or file of the model, as the store has it now.

    `most_bytes`: of all models that came from stores. Those used longest ago make room, but not
    the folders `keep`. `thorough`: hash the files that are here, also if they look unchanged.
    Errors: ModelError, ConfigError.
    """
    store = Store.of(model.bucket, environment)
    transport = Transport(store.sign)
    files = chosen(listed(transport, store, model), str(model), model.file)
    folder = folder_of(model, download_dir, environment)
    try:
        with alone(folder):
            if most_bytes is not None:
                num_bytes = sum(file.size for file in files)
                trim(folder.parents[1], most_bytes, folder, num_bytes, keep)
            notes = Notes(folder, thorough)
            bring(transport, files, folder, notes)
            notes.report(model, len(files))
            os.utime(folder)
    except OSError as error:
        raise ModelError(f"model {model}: cannot write to {folder}: {error}") from error
    return str(folder / (model.file or ""))


def folder_of(
    model: S3Model, download_dir: Path | None, environment: Mapping[str, str] = os.environ
) -> Path:
    """Where the model's files go. Errors: ConfigError for a bad endpoint."""
    base = Store.of(model.bucket, environment).base
    address = f"{base}/{model.prefix}/{model.file or ''}"
    place = hashlib.sha256(address.encode()).hexdigest()[:16]
    root = download_dir or Path(default_cache_dir())
    return root / "s3" / place / model.prefix.rpartition("/")[2]


def bring(transport: Transport, files: list[RemoteFile], folder: Path, notes: Notes) -> None:
    """Makes the folder hold these files and no others of a model. Errors: ModelError, OSError."""
    remove_others(folder, {file.name for file in files}, notes)
    for file in files:
        target = folder / file.name
        target.parent.mkdir(exist_ok=True)
        if notes.is_intact(file.name, target, file.content, file.etag):
            continue
        notes.by_name.pop(file.name, None)
        notes.write()
        content = download(transport, file, target)
        notes.add(file.name, target, content, file.etag)
        notes.write()
    notes.write()


def remove_others(folder: Path, names: set[str], notes: Notes) -> None:
    """Removes files of a model that the store has no longer: a model's files belong together.

    Errors: OSError.
    """
    for place in (folder, folder / "1_Pooling"):
        for path in place.iterdir() if place.is_dir() else ():
            name = str(path.relative_to(folder))
            if name not in names and wanted(name) and not path.is_dir():
                path.unlink()
                log.info("removed %s: the store does not have it", path)
    for name in notes.by_name.keys() - names:
        del notes.by_name[name]


def listed(transport: Transport, store: Store, model: S3Model) -> list[RemoteFile]:
    """A model's files below the prefix. Errors: ModelError."""
    start = f"{model.prefix}/"
    files: list[RemoteFile] = []
    more: str | None = None
    for _ in range(MOST_PAGES):
        query = {"list-type": "2", "prefix": start} | ({"continuation-token": more} if more else {})
        url = f"{store.base}?{urlencode(query, quote_via=quote, safe='-_.~')}"
        page = transport.read(url, MOST_LISTING_BYTES).decode(errors="replace")
        if "<ListBucketResult" not in page or "</ListBucketResult>" not in page:
            raise ModelError(f"{store.base}: the answer is no whole listing of a bucket")
        # Split, not searched for pairs of tags: an unclosed tag would be searched for to the end.
        for entry in page.split("<Contents>")[1:]:
            key = text_of(entry.partition("</Contents>")[0], "Key")
            if key.startswith(start) and wanted(key.removeprefix(start)):
                files.append(file_of(store, key, start, entry))
        if len(files) > MOST_FILES:
            raise ModelError(f"model {model}: more than {MOST_FILES} files")
        more = text_of(page, "NextContinuationToken") if "<NextContinuationToken>" in page else None
        if more is None:
            if "<IsTruncated>true<" in page:
                raise ModelError(f"{store.base}: a listing ends without the address of its rest")
            return files
    raise ModelError(f"model {model}: more than {MOST_PAGES} pages of objects")


def file_of(store: Store, key: str, start: str, entry: str) -> RemoteFile:
    """An object; the ETag of one that was not uploaded in parts is its MD5. Errors: ModelError."""
    etag, size = text_of(entry, "ETag"), text_of(entry, "Size")
    if not ETAG.fullmatch(etag) or not SIZE.fullmatch(size):
        shown = f"ETag {etag[:60]!r} and Size {size[:60]!r}"
        raise ModelError(f"{store.base}: a listing has an entry with {shown}")
    plain = etag.strip('"')
    return RemoteFile(
        name=key.removeprefix(start),
        url=f"{store.base}/{quote(key, safe='/-_.~')}",
        size=int(size),
        etag=etag,
        digest=plain if MD5.fullmatch(plain) else "",
        kind="md5",
    )


def text_of(xml: str, tag: str) -> str:
    """The first element of this name. Errors: ModelError if there is none."""
    found = re.search(rf"<{tag}>([^<]*)</{tag}>", xml)
    if found is None:
        raise ModelError(f"a listing of a bucket has an entry without {tag}")
    return html.unescape(found[1])


EMPTY = hashlib.sha256(b"").hexdigest()
ADDRESS = re.compile(r"([a-z0-9][a-z0-9.-]{1,62})/([\w.+=@ -]+(?:/[\w.+=@ -]+)*)")
REGION = re.compile(r"[A-Za-z0-9-]+")
ETAG = re.compile(r"[!-~]{1,200}")
SIZE = re.compile(r"[0-9]{1,15}")
MD5 = re.compile(r"[0-9a-f]{32}")
MOST_LISTING_BYTES = 16 << 20
MOST_PAGES = 100
MOST_FILES = 10_000
