"""interrupt.py SIGNAL FILE RAVEL: stops a plan while it writes FILE; the file must be as it was, with nothing beside it."""
import os, signal, subprocess, sys, time

number, path, ravel = getattr(signal, "SIG" + sys.argv[1]), sys.argv[2], sys.argv[3]
before = open(path).read()
command = [ravel, "plan", "--mock", "{}", "--mock-count", "400000", "--budget", "16k", "--dp", "8", "--effort", "fast", "--quiet"]
signal.signal(number, signal.SIG_DFL)  # whoever started us may ignore it, and the command would too
p = subprocess.Popen(command + ["--json", path])
aside = f"{path}.tmp.{p.pid}"
while not os.path.exists(aside):
    assert p.poll() is None, "it ended before it could be interrupted"
    time.sleep(0.0005)
p.send_signal(number)
assert p.wait(30) == -number, f"ended with {p.returncode}, not by the signal"
assert not os.path.exists(aside), "a temporary file is left"
assert open(path).read() == before, "the file was touched"
