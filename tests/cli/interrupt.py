"""interrupt.py SIGNAL FILE RAVEL: stops a plan while it writes FILE; the file must be as it was, with nothing beside it."""
import os, signal, subprocess, sys, time

number, path, ravel = getattr(signal, "SIG" + sys.argv[1]), sys.argv[2], sys.argv[3]
before = open(path).read()
signal.signal(number, signal.SIG_DFL)  # whoever started us may ignore it, and the command would too


def caught(samples):
    """Whether the signal came while the file was written: on a loaded machine the writer may be done before it is seen."""
    command = [ravel, "plan", "--mock", "{}", "--mock-count", str(samples), "--budget", "16k", "--dp", "8", "--effort", "fast", "--quiet"]
    p = subprocess.Popen(command + ["--json", path])
    aside = f"{path}.tmp.{p.pid}.0"
    while not os.path.exists(aside) and p.poll() is None:
        time.sleep(0.0005)
    p.send_signal(number)
    code = p.wait(300)
    assert code in (0, -number), f"ended with {code}, not by the signal"
    assert not os.path.exists(aside), "a temporary file is left"
    return code != 0


for samples in [400000, 800000] + 18 * [1600000]:
    if caught(samples):
        break
    with open(path, "w") as f:
        f.write(before)
else:
    sys.exit("it ended twenty times before it could be interrupted")
assert open(path).read() == before, "the file was touched"
