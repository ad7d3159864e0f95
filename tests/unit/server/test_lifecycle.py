import socket

import pytest

from ingle.config import Settings
from ingle.errors import ConfigError
from ingle.server import lifecycle


def test_address_is_bound_and_does_not_listen_yet():
    listener = lifecycle.bind(Settings(model="m", port=0))
    with listener:
        host, port = listener.getsockname()
        assert lifecycle.address(listener) == f"http://{host}:{port}"
        with socket.socket() as client:
            assert client.connect_ex((host, port)) != 0


def test_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}"):
            lifecycle.bind(Settings(model="m", port=port))


def test_unknown_host_is_named():
    with pytest.raises(ConfigError, match=r"host: cannot resolve 'no such host'"):
        lifecycle.bind(Settings(model="m", host="no such host"))


def test_ipv6_address():
    try:
        listener = lifecycle.bind(Settings(model="m", host="::1", port=0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert lifecycle.address(listener).startswith("http://[::1]:")


def test_unix_socket_that_nobody_serves_is_replaced(tmp_path):
    path = tmp_path / "s"
    lifecycle.bind(Settings(model="m", uds=path)).close()
    with lifecycle.bind(Settings(model="m", uds=path)) as listener:
        assert lifecycle.address(listener) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660


def test_unix_socket_in_use_and_other_files_are_left_alone(tmp_path):
    path = tmp_path / "s"
    with lifecycle.bind(Settings(model="m", uds=path)) as listener:
        listener.listen()
        with pytest.raises(OSError, match="cannot listen on"):
            lifecycle.bind(Settings(model="m", uds=path))
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(OSError, match="cannot listen on"):
        lifecycle.bind(Settings(model="m", uds=file))
    assert file.read_text() == "precious"
