"""Fetching from a bucket against curl: the same object, the same parts, as many at once, loopback.

Serves an object of `--mib` MiB (an S3 bucket of one object, over sendfile) and fetches it with
`ingle.remote` and with `curl --parallel`, in turns. Prints MB/s of each pair and the median of
their ratios. Files go to `--work`; with a tmpfs the disk plays no part.

Run: python tools/bench_fetch.py --work /dev/shm
"""

import argparse
import http.server
import os
import resource
import shutil
import socketserver
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ingle.remote import files
from ingle.remote.transport import pieces

ETAG = '"0123456789abcdef0123456789abcdef-64"'
"""As of an object uploaded in parts, which has no hash to check: curl checks none either."""


class Bucket(http.server.BaseHTTPRequestHandler):
    """Lists and sends one object."""

    protocol_version = "HTTP/1.1"
    place: Path

    def do_GET(self) -> None:
        """Sends the listing, or the part that is asked for."""
        size = self.place.stat().st_size
        if "list-type" in self.path:
            entry = f"<Key>m/model.safetensors</Key><ETag>{ETAG}</ETag><Size>{size}</Size>"
            page = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        asked = self.headers["Range"].removeprefix("bytes=").split("-")
        first, last = map(int, asked)
        self.send_response(206)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("ETag", ETAG)
        self.end_headers()
        self.wfile.flush()
        with self.place.open("rb") as file:
            while first <= last:
                first += os.sendfile(
                    self.connection.fileno(), file.fileno(), first, last + 1 - first
                )

    def log_message(self, *arguments: object) -> None:
        """Nothing: the figures are the output."""


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Fetches in turns; prints the rates."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="ingle-fetch-", dir=options.work))
    try:
        place = work / "object"
        with place.open("wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        serve(place, work, options.pairs)
    finally:
        shutil.rmtree(work)


def serve(place: Path, work: Path, num_pairs: int) -> None:
    """The pairs, against a server in a process of its own, so that no interpreter is shared."""
    Bucket.place = place
    server = Server(("127.0.0.1", 0), Bucket)
    child = os.fork()
    if child == 0:
        try:
            server.serve_forever()
        finally:
            os._exit(0)
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        pairs(url, place.stat().st_size, work, num_pairs)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def pairs(url: str, size: int, work: Path, num_pairs: int) -> None:
    """Fetches with each in turns, the first of a pair alternating."""
    ratios, cpu_ratios = [], []
    for number in range(num_pairs):
        order = (with_ingle, with_curl) if number % 2 == 0 else (with_curl, with_ingle)
        wall, cpu = {}, {}
        for each in order:
            before = children_cpu_s()
            wall[each] = each(url, size, work)
            cpu[each] = children_cpu_s() - before
        ratios.append(wall[with_curl] / wall[with_ingle])
        cpu_ratios.append(cpu[with_ingle] / cpu[with_curl])
        shown = [
            f"{name} {size / wall[each] / 1e6:,.0f} MB/s, {cpu[each] / size * 1e9:.2f} CPU s/GB"
            for name, each in (("ingle", with_ingle), ("curl", with_curl))
        ]
        print("; ".join(shown), flush=True)
    print(f"MB/s, ingle / curl: {spread(ratios)}; CPU: {spread(cpu_ratios)}")


def children_cpu_s() -> float:
    """CPU time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(ratios: list[float]) -> str:
    """The middle one of some, and the ends."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def with_ingle(url: str, size: int, work: Path) -> float:
    """Seconds of a fetch into an empty folder, as a process of its own like curl's."""
    target = work / "ingle"
    shutil.rmtree(target, ignore_errors=True)
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", FETCH, str(target)],
        check=True,
        env=os.environ | {"AWS_ENDPOINT_URL": url},
        stderr=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - began
    [found] = target.rglob("model.safetensors")
    assert found.stat().st_size == size
    shutil.rmtree(target)
    return seconds


def with_curl(url: str, size: int, work: Path) -> float:
    """Seconds of the same parts, as many at once, each into a file of its own."""
    target = work / "curl"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    config = target / "config"
    lines = [
        f'url = "{url}/bucket/m/model.safetensors"\nrange = "{first}-{last}"\n'
        f'output = "{target}/{first}"\nnext'
        for first, last in pieces(size, files.PART_BYTES)
    ]
    config.write_text("\n".join(lines).removesuffix("\nnext") + "\n")
    began = time.perf_counter()
    subprocess.run(
        [
            "curl",
            "-sS",
            "--parallel",
            "--no-progress-meter",
            "--parallel-max",
            str(files.NUM_THREADS),
            "-K",
            config,
        ],
        check=True,
    )
    seconds = time.perf_counter() - began
    assert sum(each.stat().st_size for each in target.iterdir() if each != config) == size
    shutil.rmtree(target)
    return seconds


FETCH = """
import sys
from pathlib import Path
from ingle.remote import s3
s3.fetch_from_s3(s3.S3Model("bucket", "m"), Path(sys.argv[1]))
"""

if __name__ == "__main__":
    main()
