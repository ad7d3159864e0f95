"""What a server holds from before its lock-down: the address, the keys, and the lock-down itself.

Main thread. The order matters: ports below 1024 are bound before root's rights are given up, a Unix
socket after it; the keeper is forked before anything has a thread; `lock` comes last of all.
"""

import grp
import os
import pwd
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ingle.config import Settings
from ingle.demo import resolve_model
from ingle.engines import sockets_of
from ingle.errors import ConfigError
from ingle.hardening import Lockdown, model_places
from ingle.kv_events import close_all
from ingle.model_set import ModelSet
from ingle.places import default_cache_dir, may_use_gpu
from ingle.server.auth import ApiKeys, read_key_file
from ingle.server.keeper import Keeper
from ingle.server.listen import bind
from ingle.server.notify import Notifier
from ingle.server.span_exporter import SpanExporter, exporter_environment
from ingle.server.unix_socket import UnixListener


class Guard:
    """Takes the address and the keys, and locks the process down as far as a start allows."""

    listener: socket.socket
    """Bound, does not listen yet."""
    admin: UnixListener | None
    """The same for the admin socket."""
    exporter: SpanExporter | None
    """Where spans go; None without a collector."""
    keys: ApiKeys | None
    """As at the start; None without a key file."""

    def __init__(self, models: ModelSet, trace: bool = False, keep: Sequence[int] = ()) -> None:
        """`keep`: descriptors that stay open.

        Errors: ConfigError, OSError if the address is taken, HardeningError.
        """
        settings = models.process
        self._settings = settings
        self._keeper: Keeper | None = None
        # Before the environment is emptied.
        endpoint, self.exporter = settings.otlp_traces_endpoint, None
        otel = {} if endpoint is None else exporter_environment()
        self.lockdown = Lockdown(settings.hardening, device=settings.device, trace=trace)
        self.notifier = Notifier()
        kept = [*self.notifier.descriptors(), *keep]
        self.event_sockets = sockets_of(models)
        kept += [each.fileno() for own in self.event_sockets for each in own]
        user = user_of(settings)
        # If the process becomes another user, that user must be able to read the keys.
        self.keys = None
        if settings.api_key_file and user is None:
            self.keys = read_key_file(settings.api_key_file)
        if settings.uds is None:
            self.listener = bind(settings)
            self.lockdown.shed(keep=[*kept, self.listener.fileno()], user=user)
        else:
            self.lockdown.shed(keep=kept, user=user)
            self.listener = bind(settings)
        if user is not None:
            adopt_home(user[0])
        if endpoint is not None:
            self.exporter = SpanExporter(endpoint, otel, locked=self.lockdown.is_on)
        self.admin = None if settings.admin_uds is None else UnixListener(settings.admin_uds)
        try:
            unix = settings.uds or settings.admin_uds
            if self.lockdown.is_on and (settings.api_key_file or unix):
                listeners = [each for each in (self.listener, self.admin) if each is not None]
                self._keeper = Keeper(settings.api_key_file, listeners)
            if settings.api_key_file and user is not None:
                self.keys = self.read_keys()
            if self.lockdown.is_on:
                read = [place for entry in models for place in read_places(entry.settings)]
                self.lockdown.confine(read=read, write=write_places(settings))
        except BaseException:
            self.close()
            raise

    def lock(self, info: Mapping[str, Any], *, recording: bool = False) -> None:
        """The rest of the lock-down, once everything is warm. Errors: HardeningError.

        `info`: see `Models.lock_info`. `recording`: see `Lockdown.finish`.
        """
        self.lockdown.finish(recording=recording, **info)

    def read_keys(self) -> ApiKeys:
        """The key file as it is now. Errors: ConfigError."""
        if self._keeper is not None:
            return self._keeper.read_keys()
        if self._settings.api_key_file is None:
            raise ConfigError("api_key_file: there is none")
        return read_key_file(self._settings.api_key_file)

    def close(self) -> None:
        """Closes the listening socket; removes the file of a Unix socket."""
        if self._keeper is not None:
            self._keeper.close()
        if self.exporter is not None:
            self.exporter.close()
        for each in (self.listener, self.admin):
            if each is None:
                continue
            if self._keeper is None and isinstance(each, UnixListener):
                each.remove()
            each.close()
        for own in self.event_sockets:
            close_all(own)


def user_of(settings: Settings) -> tuple[int, int] | None:
    """User and group that `--user` names. Errors: ConfigError."""
    if settings.user is None:
        return None
    if settings.hardening == "off":
        raise ConfigError("user: changes nothing with --hardening off")
    if os.geteuid() != 0:
        raise ConfigError("user: only root can become another user; start ingle as that user")
    name, _, group = settings.user.partition(":")
    try:
        entry = pwd.getpwnam(name)
        gid = grp.getgrnam(group).gr_gid if group else entry.pw_gid
    except KeyError as error:
        raise ConfigError(f"user: {error.args[0]}") from None
    if entry.pw_uid == 0:
        raise ConfigError(f"user: {name} is root")
    return entry.pw_uid, gid


def adopt_home(uid: int) -> None:
    """Caches go below the home folder of the user that this process has become."""
    os.environ["HOME"] = pwd.getpwuid(uid).pw_dir
    os.environ.pop("XDG_CACHE_HOME", None)


def read_places(settings: Settings) -> list[Path]:
    """Files and folders that the engine reads while it loads."""
    places = model_places(Path(resolve_model(settings.model)))
    if settings.device.startswith("sim:"):
        places.append(Path(settings.device.removeprefix("sim:")))
    given = (settings.chat_template, settings.nvrtc_library, settings.cublaslt_library)
    # The folder, because a library loads others beside it.
    return places + [path.parent for path in given if path is not None]


def write_places(settings: Settings) -> list[Path]:
    """The cache folder, made here since the locked process cannot."""
    if not may_use_gpu(settings.device):
        return []
    folder = settings.cache_dir or Path(default_cache_dir())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return []  # The engine reports what this costs.
    return [folder]
