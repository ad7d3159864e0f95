"""Models that lie elsewhere: `s3://BUCKET/PREFIX`, `hf://ORG/NAME@REVISION`, and with
`--allow-download` the plain `ORG/NAME`. They become local folders before anything is loaded.

Only what the operator names is fetched, never an address from a request. Blocking, any thread;
`ingle serve` does it before it gives its rights up, since a locked process opens no connection.
"""

import dataclasses
from collections.abc import Collection
from pathlib import Path

from ingle.config import Settings
from ingle.model_set import ModelEntry, ModelSet
from ingle.remote.hub import HubModel, fetch_from_hub, hub_model
from ingle.remote.s3 import S3Model, fetch_from_s3, folder_of, s3_model


def fetched(settings: Settings, keep: Collection[Path] = ()) -> Settings:
    """The settings with a local model; unchanged if it is local already.

    `keep`: folders that do not make room for it. Errors: ConfigError for an address that makes no
    sense, ModelError if it cannot be fetched.
    """
    source = remote_of(settings)
    if source is None:
        return settings
    thorough = settings.verify_downloads
    if isinstance(source, S3Model):
        place = fetch_from_s3(
            source,
            settings.download_dir,
            most_bytes=settings.download_cache_bytes,
            thorough=thorough,
            keep=keep,
        )
        return dataclasses.replace(settings, model=place)
    place = fetch_from_hub(source, settings.download_dir, thorough=thorough)
    return dataclasses.replace(settings, model=place)


def fetched_set(models: ModelSet) -> ModelSet:
    """The same for all models of a process, none of which makes room for another.

    Errors: those of `fetched`.
    """
    sources = [(remote_of(entry.settings), entry.settings.download_dir) for entry in models]
    keep = [folder_of(each, place) for each, place in sources if isinstance(each, S3Model)]
    entries = tuple(fetched_entry(entry, keep) for entry in models)
    return dataclasses.replace(models, entries=entries)


def fetched_entry(entry: ModelEntry, keep: Collection[Path] = ()) -> ModelEntry:
    """One of them; a model without a name of its own has that of its folder."""
    settings = fetched(entry.settings, keep)
    if settings is entry.settings:
        return entry
    has_name = settings.served_model_name is not None
    name = entry.name if has_name else settings.model_name()
    return dataclasses.replace(entry, name=name, settings=settings)


def remote_of(settings: Settings) -> S3Model | HubModel | None:
    """Where the model lies, if not here. Errors: ConfigError for an address that makes no sense."""
    return s3_model(settings.model) or hub_model(settings.model, settings.allow_download)
