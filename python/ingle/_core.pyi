"""The Rust core as Python sees it. Any thread; every call that may take long runs detached."""

from typing import Final

FRAME: Final[int]
END: Final[int]
ERROR: Final[int]
DELTA: Final[int]
__version__: Final[str]

class Engine:
    """A loaded model and its engine thread."""

    def __new__(cls, options: bytes) -> Engine:
        """Loads the model named in the JSON document `options`; blocks until it can serve.

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

    def abort(self, key: int) -> None:
        """Ends the request; no further event carries `key`. Unknown keys are ignored."""

    def attach_socket(self, key: int, fd: int) -> None:
        """Lets the core send this stream's frames on a duplicate of socket `fd` itself."""

    def drain(self) -> list[tuple[int, int, object]]:
        """Clears the eventfd and takes all events: (key, kind, payload)."""

    def tokenize(self, request: bytes) -> list[int]:
        """Token ids of one prompt, given as an entry of `prompts` of a GenerationRequest."""

    def detokenize(self, token_ids: list[int]) -> str:
        """Text of the ids, special tokens included. Raises RefusedError for an unknown id."""

    def token_texts(self, token_ids: list[int]) -> list[str]:
        """Each id's own text, lossy."""

    def metrics(self) -> bytes:
        """Prometheus text."""

    def health(self) -> bytes:
        """JSON: status, step counter, running, waiting."""

    def start_drain(self) -> None:
        """Refuses new requests from now on; running ones go on."""

    def shutdown(self) -> None:
        """Aborts what runs, stops all threads. Idempotent."""

def doctor() -> bytes:
    """JSON: what this machine offers to the engine and what is missing."""
