import subprocess
import sys


def test_importing_ingle_is_light():
    code = (
        "import sys, ingle; ingle.Engine, ingle.SamplingParams, ingle.__version__;"
        "print(*[m for m in ('torch', 'aiohttp', 'uvloop', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


def test_the_lock_down_waits_for_few_imports():
    """`ingle serve` sheds its rights after them; the event loop and downloads come later."""
    late = ("asyncio", "ssl", "http.client", "tomllib", "subprocess", "ingle.remote", "ingle.plan")
    code = (
        "import sys, ingle.cli, ingle.server.start;"
        f"print(*[name for name in {late} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


def test_everything_public_is_there():
    import ingle

    assert all(hasattr(ingle, name) for name in ingle.__all__)
