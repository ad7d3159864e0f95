import subprocess
import sys


def test_importing_ingle_is_light():
    code = (
        "import sys, ingle; ingle.Engine, ingle.SamplingParams, ingle.__version__;"
        "print(*[m for m in ('torch', 'aiohttp', 'uvloop', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


def test_everything_public_is_there():
    import ingle

    assert all(hasattr(ingle, name) for name in ingle.__all__)
