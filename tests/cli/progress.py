"""Feeds lengths slowly and looks at the terminal: something must be said after a second, and wiped at the end.

    progress.py COMMAND TERM      with TERM=dumb there must be no escapes
"""
import os
import pty
import subprocess
import sys
import time

master, slave = pty.openpty()
child = subprocess.Popen([sys.argv[1], "plan", "--lengths", "-", "--budget", "16k", "--json", "-"],
                         stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=slave,
                         env={**os.environ, "TERM": sys.argv[2]})
os.close(slave)
for _ in range(14):
    child.stdin.write(b"1000\n" * 20000)
    child.stdin.flush()
    time.sleep(0.1)
child.stdin.close()
code = child.wait(300)
seen = b""
try:
    while True:
        piece = os.read(master, 65536)
        if not piece:
            break
        seen += piece
except OSError:
    pass
assert code == 0, code
if sys.argv[2] == "dumb":
    assert b"\x1b" not in seen, seen
    sys.exit(0)
assert b"reading -" in seen, seen
assert seen.endswith(b"\x1b[K"), seen[-80:]
