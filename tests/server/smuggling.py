"""Requests whose end two HTTP parsers may see in different places, made from lists of tricks.

Each shape is a first request with a trick in it, followed by bytes that are a request of their own
for a parser that ends the first one early (or late). `shapes()` yields (name, bytes).
"""

import itertools
import json

BODY = json.dumps({"prompt": "x", "max_tokens": 1, "temperature": 0}).encode()
SECOND = b"GET /version HTTP/1.1\r\nHost: second\r\nConnection: close\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"%d" % len(BODY)

# Spellings of the header that a strict parser must not take for `Transfer-Encoding: chunked`, or
# must refuse beside Content-Length.
TRANSFER_ENCODINGS = [
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b" Transfer-Encoding: chunked",
    b"\tTransfer-Encoding: chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding:chunked",
    b"Transfer-Encoding: chunked ",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked\x0b",
    b"Transfer-Encoding: \x00chunked",
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunkedx",
    b"Transfer-Encoding: CHUNKED",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: chunked,",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding:",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: x\r\n chunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer\x00-Encoding: chunked",
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding\xa0: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\r\r\nTransfer-Encoding: chunked",
]
LENGTHS = [
    b"+" + LENGTH,
    b"-" + LENGTH,
    b"0x" + b"%x" % len(BODY),
    LENGTH + b".0",
    LENGTH + b",",
    LENGTH + b", " + LENGTH,
    LENGTH + b"," + b"0",
    LENGTH + b" 0",
    LENGTH + b";x",
    b'"' + LENGTH + b'"',
    LENGTH + b"\x00",
    b"\x00" + LENGTH,
    LENGTH + b"\x0b",
    LENGTH[:1] + b"_" + LENGTH[1:],
    b"1e1",
    b"",
    b" ",
    b"9" * 30,
    b"18446744073709551616",
    b"4294967296" + LENGTH,
    LENGTH + b"\r\n 0",
    "\u0665".encode(),
    b"NaN",
    b"0" * 20 + LENGTH + b"x",
    b"--1",
    b"0-0",
]
SIZES = [
    b"0x%x",
    b"+%x",
    b"-%x",
    b"%x ",
    b" %x",
    b"%x\t",
    b"%x_",
    b"0_%x",
    b"%x,",
    b"%x\x00",
    b"\x00%x",
    b"%x\x0b",
    b"%xg",
    b"%x.0",
    b'"%x"',
    b"%x;",
    b"%x;a=b",
    b"%x;a=\nb",
    b"%x\n;a",
    b"ffffffff%x",
    b"1%016x",
    b"%x\r",
    b"%x;\x00",
    b'%x; a="\r\n"',
    b"",
]
LINES = [
    b"POST  /v1/completions HTTP/1.1",
    b"POST /v1/completions  HTTP/1.1",
    b"POST\t/v1/completions HTTP/1.1",
    b" POST /v1/completions HTTP/1.1",
    b"POST /v1/completions HTTP/1.1 ",
    b"POST /v1/completions HTTP/1.1\t",
    b"POST /v1/completions HTTP/1.1 HTTP/1.0",
    b"POST /v1/completions HTTP/1.10",
    b"POST /v1/completions HTTP/01.1",
    b"POST /v1/completions HTTP/2.0",
    b"POST /v1/completions HTTP/0.9",
    b"POST /v1/completions http/1.1",
    b"POST /v1/completions HTTP/1,1",
    b"POST /v1/completions HTTP 1.1",
    b"POST /v1/completions",
    b"POST",
    b"P\x00ST /v1/completions HTTP/1.1",
    b"POST /v1/comp\x00letions HTTP/1.1",
    b"POST /v1/comp\nletions HTTP/1.1",
    b"POST /v1/completions\rHTTP/1.1",
    b"POST v1/completions HTTP/1.1",
    b"PO ST /v1/completions HTTP/1.1",
    b"POST /v1/completions\x0bHTTP/1.1",
    b"GET /version HTTP/1.1\nX: y",
    b"PRI * HTTP/2.0",
]
NAMES = [
    b"X Y: z",
    b"X(Y): z",
    b"X\x00Y: z",
    b"X\x7f: z",
    b"\xff: z",
    b": z",
    b"X",
    b"X : z",
    b"X\t: z",
    b"[X]: z",
    b"X: a\x00b",
    b"X: a\rb",
    b"X: a\nb",
    b"X: a\r\n b",
    b"X: a\r\n\tb",
    b"\r: z",
    b"X;Y: z",
    b"X,Y: z",
    b"X=Y: z",
    b"@X: z",
    b"{X}: z",
    b"X: a\x01b",
    b"X: a\x1bb",
    b"X: a\x7fb",
]
HOSTS = [
    b"Host: a\r\nHost: b",
    b"Host: a\r\nhost: a",
    b"Host: a, b",
    b"Host: a b",
    b"Host: a/b",
    b"Host: a@b",
    b"Host:",
    b"X: y",
    b"Host: a\x00b",
    b"Host: a\r\n b",
    b"Host : a",
    b"Host: a#b",
    b"Host: a?b",
    b"Host: [::1",
    b"Host: a:b:c",
    b"Host: a:99999999",
]


def head(*lines, start=b"POST /v1/completions HTTP/1.1", host=b"Host: first", end=b"\r\n"):
    return end.join([start, host, b"Content-Type: application/json", *lines]) + end * 2


def shapes():
    """All of them."""
    yield from transfer_encodings()
    yield from lengths()
    yield from chunks()
    length = b"Content-Length: " + LENGTH
    for i, line in enumerate(LINES):
        yield f"line-{i}", head(length, start=line) + BODY + SECOND
    for i, name in enumerate(NAMES):
        yield f"name-{i}", head(length, name) + BODY + SECOND
    for i, host in enumerate(HOSTS):
        yield f"host-{i}", head(length, host=host) + BODY + SECOND
    for i, end in enumerate((b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\n")):
        yield f"end-{i}", head(length, end=end) + BODY + SECOND
    yield "get-with-body", head(length, start=b"GET /version HTTP/1.1") + BODY + SECOND
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c")
    yield "upgrade", head(length, *upgrade) + BODY + SECOND
    yield "hop-by-hop", head(length, b"Connection: Content-Length") + BODY + SECOND
    yield "connect", b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n" + SECOND
    yield "h2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND


def transfer_encodings():
    for i, encoding in enumerate(TRANSFER_ENCODINGS):
        yield f"te-cl-{i}", head(encoding, b"Content-Length: 5") + CHUNKED + SECOND
        yield f"cl-te-{i}", head(b"Content-Length: 0", encoding) + CHUNKED + SECOND
        if i > 1:
            yield f"te-only-{i}", head(encoding) + CHUNKED + SECOND
            yield f"te-1.0-{i}", head(encoding, start=b"POST /v1/completions HTTP/1.0") + CHUNKED


def lengths():
    for i, value in enumerate(LENGTHS):
        twice = head(b"Content-Length: " + LENGTH, b"Content-Length: " + value)
        yield f"cl-{i}", head(b"Content-Length: " + value) + BODY + SECOND
        yield f"cl-twice-{i}", twice + BODY + SECOND
    for i, pair in enumerate(itertools.permutations([b"0", LENGTH, b"5"], 2)):
        lines = [b"Content-Length: " + value for value in pair]
        yield f"cl-differ-{i}", head(*lines) + BODY + SECOND


def chunks():
    start = head(b"Transfer-Encoding: chunked")
    for i, size in enumerate(SIZES):
        line = size.replace(b"%016x", b"%016x" % len(BODY)).replace(b"%x", b"%x" % len(BODY))
        yield f"chunk-{i}", start + line + b"\r\n" + BODY + b"\r\n0\r\n\r\n" + SECOND
    for i, (after_size, after_data) in enumerate(CHUNK_ENDS):
        body = b"%x" % len(BODY) + after_size + BODY + after_data
        yield f"chunk-end-{i}", start + body + SECOND


# What follows a chunk's size and its data.
CHUNK_ENDS = [
    (b"\n", b"\n0\n\n"),
    (b"\r\n", b"0\r\n\r\n"),
    (b"\r\n", b"xx0\r\n\r\n"),
    (b"\r\n", b"\n0\r\n\r\n"),
    (b"\r", b"\r\n0\r\n\r\n"),
    (b"\r\n", b"\r\n0\r\n\n"),
    (b"\r\n", b"\r\n0\n\r\n"),
    (b"\r\n", b"\r\n00\r\nX\r\n\r\n"),
    (b"\r\n", b"\r\n0\r\nX Y: z\r\n\r\n"),
    (b"\r\n", b"\r\n0\r\nTransfer-Encoding : x\r\n\r\n"),
    (b"\r\n", b"\r\n-0\r\n\r\n"),
    (b"\r\n", b"\r\n0 \r\n\r\n"),
    (b"\r\n", b"\r\n\r\n0\r\n\r\n"),
]
