"""A served process is locked down, still answers, and can do nothing else."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from server.worker import TINY, Worker

LOCKED_SCRIPT = f"""
import os, socket, sys
import ingle
from ingle.hardening import Lockdown

lockdown = Lockdown("auto", device="cpu")
lockdown.shed()
lockdown.confine(read=[{str(TINY)!r}])
engine = ingle.Engine({str(TINY)!r}, device="cpu")
params = ingle.SamplingParams(max_tokens=4, temperature=0)
before = engine.generate("The quick", params)
if "--locked" in sys.argv:
    lockdown.finish()
assert engine.generate("The quick", params)[0].outputs == before[0].outputs
act = sys.argv[1]
try:
    if act == "open":
        os.open("/usr", os.O_RDONLY)
    elif act == "socket":
        socket.socket(socket.AF_INET)
    elif act == "fork":
        os.fork() or os._exit(0)
    elif act == "kill":
        os.kill(os.getppid(), 0)
    elif act == "exec":
        os.execv("/bin/true", ["true"])
except OSError as error:
    sys.exit(f"{{type(error).__name__}} {{error.errno}}")
"""


def status_lines(pid):
    """Of each thread, its lines of /proc as a dictionary."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        yield {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_every_thread_of_a_server_is_locked_and_it_answers(locked):
    assert locked.complete()["choices"][0]["finish_reason"] == "length"
    statuses = list(status_lines(locked.process.pid))
    assert len(statuses) > 10
    for status in statuses:
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"), status["Name"]
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert {status.get("Seccomp_filters") for status in statuses} <= {"2", None}


def test_health_and_metrics_name_what_is_in_force_and_what_is_missing(locked):
    hardening = locked.health()["hardening"]
    assert hardening["mode"] == "auto"
    for layer in ("filter", "base_filter", "code", "proof", "capabilities", "memory"):
        assert layer in hardening["on"], hardening
        assert locked.metric(f'ingle:hardening{{layer="{layer}"}}') == 1
    # The log of this server goes to a file.
    assert "file" in hardening["missing"]["file_size"]
    assert "missing: file_size" in locked.summary
    assert 'ingle:hardening{layer="file_size"} 0' in locked.get("/metrics").body.decode()


@pytest.mark.parametrize(
    ("act", "end"),
    [
        ("open", "PermissionError 1"),
        ("socket", "PermissionError 1"),
        ("fork", "PermissionError 1"),
        ("kill", "PermissionError 1"),
        ("exec", -signal.SIGSYS),
    ],
)
def test_an_engine_locked_by_its_own_process_computes_and_can_do_nothing_else(act, end):
    command = [sys.executable, "-W", "error", "-c", LOCKED_SCRIPT, act, "--locked"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert end in (done.returncode, done.stderr.strip()), done


def test_a_descriptor_that_should_not_be_open_stops_the_start():
    script = LOCKED_SCRIPT.replace(
        "lockdown.finish()", f"kept = open({str(TINY / 'config.json')!r}); lockdown.finish()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "open", "--locked"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "config.json is open and must not be" in done.stderr


@pytest.mark.parametrize(("mode", "is_refused"), [("r", False), ("r+", True)])
def test_a_file_may_stay_open_for_reading_alone(mode, is_refused, tmp_path):
    file = str(tmp_path / "weights")
    Path(file).touch()
    script = LOCKED_SCRIPT.replace(
        "lockdown.finish()",
        f"kept = open({file!r}, {mode!r}); lockdown.finish(open_files=[{file!r}])",
    ).replace("read=[", f"write=[{str(tmp_path)!r}], read=[")
    command = [sys.executable, "-c", script, "nothing", "--locked"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == int(is_refused), done
    assert (f"{file} is open and must not be" in done.stderr) == is_refused


def test_the_lockdown_needs_a_process_with_one_thread():
    thread = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    script = f"import threading\n{thread}\n{LOCKED_SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script, "open"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "the process has 2 threads; it must have one" in done.stderr


def test_the_lockdown_waits_for_threads_that_are_about_to_end():
    thread = "threading.Thread(target=time.sleep, args=(0.05,)).start()"
    script = f"import threading, time\n{thread}\n{LOCKED_SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script, "nothing"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_same_acts_succeed_before_the_tight_filter():
    for act in ("open", "socket"):
        done = subprocess.run([sys.executable, "-c", LOCKED_SCRIPT, act], timeout=60)
        assert done.returncode == 0, act


def test_strict_refuses_to_start_and_names_what_is_missing(tmp_path):
    with (tmp_path / "log").open("w+") as log:
        command = [sys.executable, "-m", "ingle", "serve", str(TINY), "--port", "0"]
        process = subprocess.run(
            [*command, "--device", "cpu", "--hardening", "strict"], stderr=log, timeout=60
        )
        log.seek(0)
        text = log.read()
    assert process.returncode == 4
    assert "missing here" in text
    assert "file_size" in text or "user" in text


def test_off_is_off_and_says_so():
    with Worker("--device", "sim", "--hardening", "off") as worker:
        assert worker.health()["hardening"]["mode"] == "off"
        assert worker.metric('ingle:hardening{layer="all"}') == 0
        assert next(status_lines(worker.process.pid))["Seccomp"] in ("0", "2")
        assert worker.stop() == 0


def test_the_lock_down_lets_a_thread_end_that_needs_the_interpreter_for_it():
    """`join` returns before such a thread is gone, and the core, which asks, keeps it waiting."""
    code = """if True:
        import os, threading, time
        from ingle import hardening
        end, sleep = threading.Event(), time.sleep
        threading.Thread(target=end.wait).start()
        def let_it_end(seconds):
            end.set()
            sleep(seconds)
        hardening.THREADS_END_WITHIN_S = 60.0
        time.sleep = let_it_end
        hardening.wait_for_joined_threads()
        print(len(os.listdir("/proc/self/task")))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "1\n"
