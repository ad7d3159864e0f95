"""Where models come from: local ones need nothing, others become local folders first. Any thread.

What fetches them is imported only for such a model: importing ingle stays light.
"""

from ingle.config import Settings
from ingle.model_set import ModelSet


def may_be_remote(settings: Settings) -> bool:
    """Whether the model could lie elsewhere."""
    return settings.allow_download or settings.model.startswith(("s3://", "hf://"))


def local(settings: Settings) -> Settings:
    """The settings with a local model. Blocking. Errors: ConfigError, ModelError."""
    if not may_be_remote(settings):
        return settings
    from ingle.remote import fetched

    return fetched(settings)


def local_set(models: ModelSet) -> ModelSet:
    """The same for all models of a process. Blocking. Errors: ConfigError, ModelError."""
    if not any(may_be_remote(entry.settings) for entry in models):
        return models
    from ingle.remote import fetched_set

    return fetched_set(models)
