"""Environments for `ravel train grpo`, written as Python generators. Copy this file beside yours.

    def game(start):                          # start: {"seed": 4, "row": {...} or nothing}
        action = yield "Guess from 1 to 50."  # an observation out, the model's answer in
        return 1.0 if action == "7" else 0.0  # the reward ends the episode
    ravel_env.serve(game)                     # --env-command 'python3 game.py'
    ravel_env.serve(game, port=8000)          # or as a server: --env http://this-machine:8000/

Yield a text, a list of messages, or a dict: {"observation": text, "reward": r, "role": "tool", "context": messages that replace
the conversation}. Return a number, or a dict with "reward" and
"accuracy". Further facts of an answer are in `action.message`: "last" (no turn follows), "ended", "ids". An exception ends its
episode alone: Ravel begins it again, and leaves it out after --env-retries. `workers` episodes are advanced at once, each in a
thread; 1 for games that share something."""
import concurrent.futures
import http.server
import json
import os
import sys
import threading
import traceback


class Action(str):
    message = {}


def reply(game, episodes, message):
    """The line for a start or a step, "" for an end; episodes: {id: generator}"""
    number = message["id"]
    try:
        if message["event"] == "end":
            episodes.pop(number, None)
            return ""
        if message["event"] == "start":
            episodes[number] = game(message)
            said = next(episodes[number])
        elif number in episodes:
            action = Action(message["action"])
            action.message = message
            said = episodes[number].send(action)
        else:
            said = {"lost": True}  # this server was started again
        said = said if isinstance(said, dict) else {"observation": said}
    except StopIteration as end:
        episodes.pop(number, None)
        said = dict(end.value if isinstance(end.value, dict) else {"reward": float(end.value or 0)}, end=True)
    except Exception as error:
        traceback.print_exc()
        episodes.pop(number, None)
        said = {"error": "%s: %s" % (type(error).__name__, error)}
    return json.dumps(dict(said, id=number)) + "\n"


def listen(game, port, pool):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
            text = "".join(pool.map(lambda line: reply(game, self.server.episodes, json.loads(line)), lines)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    http.server.ThreadingHTTPServer.request_queue_size = 256
    server = http.server.ThreadingHTTPServer(("", port), Handler)
    server.episodes = {}
    server.serve_forever()


def serve(game, port=None, workers=64):
    pool, lock, episodes = concurrent.futures.ThreadPoolExecutor(workers), threading.Lock(), {}
    if port is not None:
        return listen(game, port, pool)

    def answer(message):
        text = reply(game, episodes, message)
        try:
            with lock:
                sys.stdout.write(text)
                sys.stdout.flush()
        except OSError:
            os._exit(0)  # nobody listens any more

    for line in sys.stdin:
        pool.submit(answer, json.loads(line))
    os._exit(0)  # what is under way is not waited for
