"""The Rust core as Python sees it. Any thread; every call that may take long runs detached."""

import os
from typing import Final, final

FRAME: Final[int]
END: Final[int]
ERROR: Final[int]
DELTA: Final[int]
HEADED: Final[int]
TIMES: Final[int]
__version__: Final[str]
__all__ = [
    "DELTA",
    "END",
    "ERROR",
    "FRAME",
    "HEADED",
    "TIMES",
    "Engine",
    "LoadProgress",
    "SharedDevice",
    "__version__",
    "check_body",
    "check_ids",
    "doctor",
    "give_back_memory",
    "harden_confine",
    "harden_end_recording",
    "harden_finish",
    "harden_finish_exporter",
    "harden_keeper",
    "harden_shed",
    "hardening_survey",
    "kept_variables",
    "may_follow",
    "may_use_gpu",
    "metrics",
    "name_thread",
    "plan",
    "render_template",
    "request_limits",
    "sampling_fields",
    "security_check",
]

@final
class SharedDevice:
    """A device that several models share: whose step is next, and who makes room for whom.

    Keep it as long as their engines.
    """

    def __new__(cls, memory_bytes: int | None = ..., patience_s: int = ...) -> SharedDevice:
        """`memory_bytes`: what awake models may take together; None: all stay in memory.

        `patience_s`: how long requests wait for a model that is not. Raises ModelError if there is
        no thread left.
        """

@final
class LoadProgress:
    """How far the weights of a model are that is being loaded. Any thread."""

    def __new__(cls) -> LoadProgress: ...
    def so_far(self) -> tuple[int, int]:
        """Bytes read, and bytes of all weights; 0 and 0 before the model's files are open.

        A part that is read twice counts twice: the first number can pass the second.
        """

@final
class Engine:
    """A loaded model and its engine thread."""

    def __new__(
        cls,
        options: bytes,
        sockets: list[int] = ...,
        device: SharedDevice | None = ...,
        progress: LoadProgress | None = ...,
    ) -> Engine:
        """Loads the model named in the JSON document `options`; blocks until it can serve.

        `sockets`: descriptors of bound sockets for KV events, which are duplicated. `device`: what
        this model shares with others of the process. `progress` sees how far the weights are.

        Raises ModelError for a bad checkpoint or setting; names file and field.
        """

    def info(self) -> bytes:
        """JSON: served model, limits, sampling defaults, executor sizes, start-up times."""

    def event_fd(self) -> int:
        """An eventfd that becomes readable when `drain` has something; owned by the engine."""

    def submit(self, request: bytes) -> int:
        """Validates, tokenises and queues one request; returns its key.

        Raises RefusedError or OverloadedError; then nothing was queued.
        """

    def submit_if_brief(self, request: bytes) -> int | None:
        """As `submit`, for an event loop. None: nothing was queued, because it takes too long.

        That bounds the time of rendering a chat and of tokenising it. A long document and a grammar
        are the caller's to see: `is_slow_to_submit`.
        """

    def abort(self, key: int) -> None:
        """Ends the request; no further event carries `key`. Unknown keys are ignored."""

    def attach_socket(
        self,
        key: int,
        fd: int,
        frames_seen: int = 0,
        head: bytes | None = None,
    ) -> None:
        """Lets the core send this stream's frames on a duplicate of socket `fd` itself.

        Call it when the transport has no buffered bytes. `frames_seen` is how many FRAME and HEADED
        events of this key were ever drained; if the core has published more, nothing changes. From
        the first frame on that the socket does not take at once, frames are FRAME events again, and
        the socket may be attached again later. Never write to the transport while it is attached.

        `head` is sent in front of the first frame. If the socket does not take all of both, the
        rest is a HEADED event; a FRAME says that the core has not used the head.
        """

    def ping(self, key: int) -> None:
        """Sends an SSE comment on a stream to which nothing was sent for ten seconds."""

    def drain(self) -> list[tuple[int, int, object]]:
        """Clears the eventfd and takes all events: (key, kind, payload).

        Key 0 is the engine itself; its only event is the ERROR that killed it. A DELTA's log-probs
        are (token id, log-prob or None, rank, [(token id, log-prob), ..]) per token.
        TIMES, before the END of a request whose trace asked for it: microseconds from submission to
        first step, first token (or None) and end, then prompt, cached and output tokens, and the
        finish reasons.
        """

    def tokenize(self, request: bytes) -> list[int]:
        """Token ids of one prompt, given as an entry of `prompts` of a GenerationRequest."""

    def tokenize_if_brief(self, request: bytes) -> list[int] | None:
        """As `tokenize`, for an event loop. None: it takes too long."""

    def detokenize(self, token_ids: list[int]) -> str:
        """Text of the ids, special tokens included. Raises RefusedError for an unknown id."""

    def tokenize_json(self, request: bytes, texts: bool = False) -> bytes:
        """The answer of /tokenize to such an entry; with each token's own text, lossy, if asked."""

    def tokenize_json_if_brief(self, request: bytes, texts: bool = False) -> bytes | None:
        """As `tokenize_json`, for an event loop. None: it takes too long."""

    def detokenize_json(self, ids: bytes) -> bytes:
        """The answer of /detokenize to a JSON list of ids."""

    def seal_device(self) -> bool:
        """Blocks until the device has done what it began at load; then it only runs steps.

        False: some may still load code, for which a locked-down process must not refuse what
        recording graphs needs.
        """

    def memory_room(self, enough: int) -> int:
        """Bytes of memory that the process may still take before the least of its limits.

        A few system calls. What is `enough` or more may be too low.
        """

    def metrics(self, exemplars: bool = False) -> bytes:
        """Prometheus text. `exemplars`: with the traces of requests, for OpenMetrics."""

    def health(self) -> bytes:
        """JSON: status, step counter, running, waiting."""

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; running requests keep their blocks."""

    def sleep(self, level: int) -> None:
        """Gives memory back, of all engines: 0, none; 1 and 2, weights and KV blocks. Blocks.

        From then on requests get OverloadedError. Raises RefusedError: 501 if the device cannot
        sleep so deep, 409 if requests run; OverloadedError if the device fails, which stays awake.
        """

    def wake(self) -> None:
        """Takes the memory back, then requests. Blocks.

        Raises OverloadedError if there is not enough memory, say; the engine then sleeps on.
        """

    def sleep_level(self) -> int | None:
        """How deep the engines sleep; None if they are awake."""

    def memory_state(self) -> tuple[str, int, bool, str | None] | None:
        """Where the model is (awake, leaving, asleep, waking), its bytes, whether it is pinned, and
        why it could not return the last time, if it has not since.

        None where all models stay in memory.
        """

    def send_away(self) -> bool:
        """Takes the model out of memory once what runs has ended; False if it stays."""

    def call(self) -> None:
        """Brings the model into memory as if a request wanted it."""

    def pin(self, is_pinned: bool) -> tuple[int, int] | None:
        """Keeps the model in memory from now on, or does so no longer.

        If it does not fit beside other pinned models: its bytes, and those that they leave.
        """

    def start_drain(self) -> None:
        """Refuses new requests from now on; running ones go on."""

    def shutdown(self) -> None:
        """Aborts what runs, stops all threads. Idempotent."""

def metrics(engines: list[Engine], exemplars: bool = False) -> bytes:
    """Prometheus text of several models, each with its name as a label."""

def doctor(places: bytes) -> bytes:
    """JSON: what this machine offers to the engine and what is missing.

    `places` is a JSON document, that of `ingle.places.places`.
    """

def plan(document: bytes) -> bytes:
    """JSON: what a simulated fleet did with a load; see `ingle.plan`.

    Raises ModelError for a document that is none, or an objective that no fleet meets.
    """

def harden_shed(start: bytes) -> bytes:
    """First half of the lock-down: closes descriptors, sets limits, gives up user and privileges.

    `start` is JSON: `user` [uid, gid] or null, `keep` descriptors, `read` and `write` paths,
    `has_gpu`. Returns JSON: `layers`, each with `name`, `on` and `what`. Irrevocable; the process
    must have one thread. Raises HardeningError, after which the process must end.
    """

def harden_confine(start: bytes) -> bytes:
    """Confines what can be opened, drops capabilities, adds the base filter. As `harden_shed`."""

def harden_keeper(start: bytes) -> bytes:
    """The same for the keeper: only `read` and `write` can be opened, and a filter of its own."""

def harden_end_recording(readiness: bytes) -> bytes:
    """Refuses on all threads what recording graphs needed. Once, after `harden_finish` with
    `recording`; `readiness` as there.
    """

def harden_finish(readiness: bytes) -> bytes:
    """Second half: puts the tight filter on all threads and proves that it holds.

    `readiness` is JSON: `gpu_driver` (major version or null), `recording` and `trace`. As
    `harden_shed`, but with any number of threads.
    """

def harden_finish_exporter() -> bytes:
    """Second half for the process that sends spans: its own filter on all threads. As
    `harden_finish`.
    """

def give_back_memory() -> None:
    """Gives memory that nothing uses back to the system. Blocks for milliseconds."""

def name_thread(name: str) -> None:
    """Names the calling thread for the system."""

def hardening_survey() -> bytes:
    """JSON: what this machine offers to the lock-down, and what is missing. Needs one thread."""

def kept_variables() -> list[str]:
    """Patterns of the environment variables that a locked worker keeps; `*` ends a prefix."""

def security_check(scratch: str) -> bytes:
    """JSON: what every probe of the lock-down found, tried in child processes.

    `scratch` is an empty folder. Blocks for about a second; the process must have one thread.
    Raises HardeningError.
    """

def check_body(json: bytes) -> None:
    """Refuses JSON that is broken, has a key twice, or holds too many values to read at once.

    Raises RefusedError, which never quotes the text but for a doubled key.
    """

def check_ids(field: str, json: bytes, most: int) -> int:
    """Refuses JSON that is not a list of 1 to `most` token ids; returns their number.

    Raises RefusedError that names the entry.
    """

def request_limits() -> bytes:
    """JSON: the limits of a request's lists and other numbers, by name."""

def sampling_fields() -> bytes:
    """JSON: the plain sampling fields of a request, a list of `ingle.fields.SamplingField`."""

def may_use_gpu(device: str) -> bool:
    """Whether a GPU may be used: a value of `--device`, or the name of a device that was built."""

def may_follow(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> bool:
    """Whether a path in a model's folder may be opened.

    Links may lead to files that every user of the machine may read, and within a Hugging Face cache
    to the model's own blobs.
    """

def render_template(source: str, variables: bytes, brief: bool = False) -> str:
    """What a chat template makes of a JSON object of variables.

    `brief` allows only the work that an event loop may do.
    Raises ModelError for a template that cannot be compiled, RefusedError for one that cannot be
    rendered.
    """
