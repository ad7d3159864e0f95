"""The private names of aiohttp that the server depends on: one file uses them, the version is
pinned, and the installed version has each of them."""

import ast
import asyncio
import inspect
import re
import tomllib
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter

from ingle.server import aiohttp_private, connection

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "python" / "ingle"
METHODS = {
    "_drain_helper",
    "_pause_reading_for_buffer",
    "_pause_transport_reading",
    "_resume_transport_reading",
}
ATTRIBUTES = {
    "_buffer_paused",
    "_current_request",
    "_loop",
    "_messages",
    "_reading_paused",
    "_request_count",
}
OF_WRITER = {"_headers_buf", "_headers_written"}
OF_RESPONSE = {"_send_headers_immediately"}
UNDOCUMENTED = {
    "connection_lost": "exc",
    "data_received": "data",
    "finish_response": "request resp start_time",
    "handle_error": "request status exc message",
    "resume_reading": "resume_parser",
}
"""Methods of the handler that we override or call, public by their names, and their parameters."""


def private_names(path):
    """Attributes with one underscore that a file uses, and those of them that it makes."""
    used, made = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            used.add(node.attr)
            if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                made.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            made.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made |= {target.id for target in targets if isinstance(target, ast.Name)}
    return used, made


def test_no_other_file_uses_private_names_of_what_it_has_not_made():
    for path in SERVER.rglob("*.py"):
        used, made = private_names(path)
        foreign = used - made
        if path.name == "aiohttp_private.py":
            # It overrides two methods, whose names it therefore makes.
            assert foreign <= METHODS | ATTRIBUTES | OF_WRITER | OF_RESPONSE
            continue
        # What os documents although it begins with an underscore.
        # Ray has no public name for the replica that it has chosen; requirements/ray.txt pins Ray.
        known = {"_exit", "_replica"} if "integrations/ray" in path.as_posix() else {"_exit"}
        assert foreign <= known, f"{path}: {foreign}"


def test_the_names_here_are_those_that_are_used():
    text = inspect.getsource(aiohttp_private)
    found = set(re.findall(r"(?<![\w.])_[a-z]\w+|(?<=\.)_[a-z]\w+", text))
    assert found == METHODS | ATTRIBUTES | OF_WRITER | OF_RESPONSE


async def test_the_installed_aiohttp_has_each_of_them():
    async def respond(request):
        return web.Response()

    loop = asyncio.get_running_loop()
    handler = web.RequestHandler(web.Server(respond), loop=loop)
    assert [name for name in METHODS if not callable(getattr(handler, name, None))] == []
    assert [name for name in ATTRIBUTES if not hasattr(handler, name)] == []
    writer = StreamWriter(handler, loop)
    assert [name for name in OF_WRITER if not hasattr(writer, name)] == []
    assert isinstance(writer.output_size, int)
    assert web.StreamResponse._send_headers_immediately is True
    assert handler.writing_paused is False


@pytest.mark.parametrize(("name", "parameters"), UNDOCUMENTED.items())
def test_methods_that_we_override_take_what_they_took(name, parameters):
    for kind in (web.RequestHandler, connection.Connection):
        _self, *found = inspect.signature(getattr(kind, name)).parameters
        assert found == parameters.split()


def test_the_minor_version_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [pin] = [each for each in project["dependencies"] if each.startswith("aiohttp")]
    major, minor = aiohttp.__version__.split(".")[:2]
    assert pin == f"aiohttp>={major}.{minor},<{major}.{int(minor) + 1}"
