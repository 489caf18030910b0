"""Runs a command on a terminal of its own (80 columns) and prints what it drew, a line each time it began one anew.

    live_line.py COMMAND...
"""
import fcntl
import os
import pty
import struct
import sys
import termios

pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))  # before the command looks at it
    os.environ.setdefault("RAVEL_TEST_TERM", "xterm")
    os.environ["TERM"] = os.environ["RAVEL_TEST_TERM"]
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while True:
    try:
        got = os.read(terminal, 65536)
    except OSError:  # the other end was closed
        break
    if not got:
        break
    said += got
status = os.waitpid(pid, 0)[1]
for line in said.decode().replace("\r\n", "\n").replace("\r\033[K", "\n> ").splitlines():
    print(line)
sys.exit(os.waitstatus_to_exitcode(status))
