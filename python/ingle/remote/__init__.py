"""Models that lie elsewhere: `s3://BUCKET/PREFIX`, `hf://ORG/NAME@REVISION`, and with
`--allow-download` the plain `ORG/NAME`. They become local folders before anything is loaded.

Only what the operator names is fetched, never an address from a request. Blocking, any thread;
`ingle serve` does it before it gives its rights up, since a locked process opens no connection.
"""

import dataclasses

from ingle.config import Settings
from ingle.model_set import ModelEntry, ModelSet
from ingle.remote.hub import HubModel, fetch_from_hub, hub_model
from ingle.remote.s3 import S3Model, fetch_from_s3, s3_model


def fetched(settings: Settings) -> Settings:
    """The settings with a local model; unchanged if it is local already.

    Errors: ConfigError for an address that makes no sense, ModelError if it cannot be fetched.
    """
    source = remote_of(settings)
    if source is None:
        return settings
    if isinstance(source, S3Model):
        place = fetch_from_s3(
            source, settings.download_dir, most_bytes=settings.download_cache_bytes
        )
        return dataclasses.replace(settings, model=place)
    return dataclasses.replace(settings, model=fetch_from_hub(source, settings.download_dir))


def fetched_set(models: ModelSet) -> ModelSet:
    """The same for all models of a process. Errors: those of `fetched`."""
    return dataclasses.replace(models, entries=tuple(map(fetched_entry, models)))


def fetched_entry(entry: ModelEntry) -> ModelEntry:
    """One of them; a model without a name of its own has that of its folder."""
    settings = fetched(entry.settings)
    if settings is entry.settings:
        return entry
    has_name = settings.served_model_name is not None
    name = entry.name if has_name else settings.model_name()
    return dataclasses.replace(entry, name=name, settings=settings)


def remote_of(settings: Settings) -> S3Model | HubModel | None:
    """Where the model lies, if not here. Errors: ConfigError for an address that makes no sense."""
    return s3_model(settings.model) or hub_model(settings.model, settings.allow_download)
