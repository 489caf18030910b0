"""`ravel serve` with OpenAI's own package: conversations and completions, whole and as streams, errors, tokens, cancellation.

    openai_client.py RAVEL MODEL        MODEL: one with a chat template that answers "Say red." with "red"

Ends with "N passed, N failed, N skipped"."""
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

RAVEL, MODEL = sys.argv[1:3]
KEY = "sk-test"
passed = failed = 0


def check(what, good, seen=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"  {'ok   ' if good else 'FAIL '} {what}{'' if good else f': {seen}'}", flush=True)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def say(colour):
    return [{"role": "user", "content": f"Say {colour}."}]


def conversations(c):
    how = dict(model="m", messages=say("red"), max_completion_tokens=8, temperature=0)
    whole = c.chat.completions.create(**how, logprobs=True, top_logprobs=3)
    answer = whole.choices[0]
    check("a conversation", answer.message.content == "red" and answer.finish_reason == "stop" and answer.message.role == "assistant", answer)
    check("its usage", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0, whole.usage)
    tokens = answer.logprobs.content
    check("log-probs", tokens and all(len(t.top_logprobs) == 3 and t.logprob == max(x.logprob for x in t.top_logprobs) for t in tokens), tokens)
    events = list(c.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for e in events for choice in e.choices)
    ends = [choice.finish_reason for e in events for choice in e.choices if choice.finish_reason]
    check("the same as a stream", text == "red" and ends == ["stop"] and events[-1].usage == whole.usage, (text, ends))
    check("one object for all of a stream", len({e.id for e in events}) == 1 and events[0].object == "chat.completion.chunk")
    several = c.chat.completions.create(model="m", messages=say("blue"), n=4, seed=5, max_tokens=4, temperature=2)
    again = c.chat.completions.create(model="m", messages=say("blue"), n=4, seed=5, max_tokens=4, temperature=2)
    texts = [x.message.content for x in several.choices]
    check("n answers, a seed repeats them", len(set(texts)) > 1 and texts == [x.message.content for x in again.choices] and
          [x.index for x in several.choices] == [0, 1, 2, 3], texts)
    turns = say("red") + [{"role": "assistant", "content": "red"}] + say("green")
    next_turn = c.chat.completions.create(model="m", messages=turns, max_tokens=8, temperature=0)
    check("a second turn", next_turn.choices[0].message.content is not None and next_turn.usage.prompt_tokens > whole.usage.prompt_tokens)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say red."}]}]
    check("content in parts", c.chat.completions.create(model="m", messages=parts, max_tokens=8, temperature=0).choices[0].message.content == "red")
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]
    check("an image is refused by a template of text", refused(openai.BadRequestError, lambda: c.chat.completions.create(model="m", messages=image)))
    ids = c.chat.completions.create(**how, extra_body={"return_token_ids": True, "top_k": 1})
    check("tokens and versions", len(ids.choices[0].token_ids) == len(ids.choices[0].versions) == ids.usage.completion_tokens and
          len(ids.prompt_token_ids) == ids.usage.prompt_tokens, ids)
    cut = c.chat.completions.create(model="m", messages=say("red"), max_tokens=8, temperature=0, stop=["ed"])
    check("a stop text", cut.choices[0].message.content == "r" and cut.choices[0].finish_reason == "stop", cut.choices)


def tools(c):
    """Calls as OpenAI's objects, whole and in a stream; the next turn has them as clients send them, with arguments as text."""
    schema = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}}]
    how = dict(model="m", messages=[{"role": "user", "content": "Call f."}], tools=schema, max_tokens=60, temperature=0)
    whole = c.chat.completions.create(**how)
    answer = whole.choices[0].message
    call = answer.tool_calls[0] if answer.tool_calls else None
    check("a call of a tool", call and call.type == "function" and call.function.name == "f" and json.loads(call.function.arguments) == {"n": 1} and
          answer.content is None and whole.choices[0].finish_reason == "tool_calls" and re.fullmatch("[a-z0-9]{9}", call.id), whole)
    events = [x for e in c.chat.completions.create(**how, stream=True) for x in e.choices]
    parts = [t for x in events for t in x.delta.tool_calls or []]
    check("in a stream", [(t.index, t.function.name, t.function.arguments) for t in parts] == [(0, "f", call.function.arguments)] and
          [x.finish_reason for x in events if x.finish_reason] == ["tool_calls"] and not any(x.delta.content for x in events), events)
    words = c.chat.completions.create(model="m", messages=say("red"), tools=schema, max_tokens=8, temperature=0).choices[0]
    check("an answer that calls nothing", words.message.content == "red" and not words.message.tool_calls and words.finish_reason == "stop", words)
    text = c.chat.completions.create(**how, tool_choice="none").choices[0]
    check('tool_choice "none": text', "<tool_call>" in text.message.content and not text.message.tool_calls, text)
    check('tool_choice "required" is refused', refused(openai.BadRequestError, lambda: c.chat.completions.create(**how, tool_choice="required")))
    talk = how["messages"] + [answer.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "7"}] + say("blue")
    after = c.chat.completions.create(**{**how, "messages": talk}, extra_body={"return_token_ids": True})
    dicts = [{**m, "tool_calls": [{"function": {"name": "f", "arguments": {"n": 1}}}]} if m.get("tool_calls") else m for m in talk]
    same = c.post("/chat/completions", body={**how, "messages": dicts, "return_token_ids": True}, cast_to=object)
    check("the turn after it: arguments as text are those as an object", after.prompt_token_ids == same["prompt_token_ids"], (after, same))


def completions(c):
    made = c.completions.create(model="m", prompt=["Say", "red"], max_tokens=4, n=2, seed=1, logprobs=2)
    check("completions of two prompts", [x.index for x in made.choices] == [0, 1, 2, 3] and made.object == "text_completion", made.choices)
    check("their log-probs", all(len(x.logprobs.tokens) == len(x.logprobs.token_logprobs) == len(x.logprobs.text_offset) for x in made.choices))
    flow = list(c.completions.create(model="m", prompt="Say", max_tokens=4, seed=1, stream=True))
    check("a stream", "".join(x.text for e in flow for x in e.choices) == c.completions.create(model="m", prompt="Say", max_tokens=4, seed=1).choices[0].text)
    check("models", [m.id for m in c.models.list()] == ["m"] and c.models.retrieve("m").id == "m" and
          refused(openai.NotFoundError, lambda: c.models.retrieve("n")))


def errors(c, url):
    bad = refused(openai.BadRequestError, lambda: c.chat.completions.create(model="m", messages=say("red"), temperature=-1))
    check("400 with a sentence", bad and "temperature" in str(bad) and bad.type == "invalid_request_error", bad)
    check("404 for another model", refused(openai.NotFoundError, lambda: c.completions.create(model="gpt", prompt="x")))
    check("a misspelt field", refused(openai.BadRequestError, lambda: c.completions.create(model="m", prompt="x", extra_body={"top_q": 1})))
    stranger = openai.OpenAI(base_url=url, api_key="sk-other", max_retries=0)
    check("401 without the key", refused(openai.AuthenticationError, lambda: list(stranger.models.list())))


async def crowd(url, port):
    """Many at once; one that leaves its stream ends its answer; more than the queue holds are told to come later."""
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=120) as c:
        alike = await asyncio.gather(*(c.chat.completions.create(model="m", messages=say("red"), max_tokens=8, temperature=0) for _ in range(24)))
        check("24 conversations at once", all(x.choices[0].message.content == "red" for x in alike))
        stream = await c.completions.create(model="m", prompt="x", max_tokens=400, stream=True, extra_body={"ignore_eos": True})
        async for _ in stream:
            break
        await stream.close()
        gone = 0
        for _ in range(600):
            gone = metric(port, "running")
            if gone == 0:
                break
            await asyncio.sleep(0.05)
        check("a stream that is left ends its answer", gone == 0, gone)
        jobs = [c.completions.create(model="m", prompt="x", max_tokens=400, extra_body={"ignore_eos": True}) for _ in range(60)]
        ends = await asyncio.gather(*jobs, return_exceptions=True)
        full = [e for e in ends if isinstance(e, openai.RateLimitError)]
        check("429 beyond the queue, all others answered", full and all(e.response.headers["retry-after"] for e in full) and
              all(isinstance(e, openai.RateLimitError) or e.choices[0].finish_reason == "length" for e in ends), ends[:3])


def metric(port, name):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer " + KEY})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return float(re.search(rf"^ravel_serve_{name} (\S+)$", answer.read().decode(), re.M)[1])


def port_of(process, log):
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        log.seek(0)
        found = re.search(r"at port (\d+)", log.read())
        if found:
            return int(found[1])
        time.sleep(0.02)
    log.seek(0)
    raise SystemExit("ravel serve did not start: " + log.read())


with tempfile.TemporaryFile("w+") as log:
    server = subprocess.Popen([RAVEL, "serve", MODEL, "--listen", "127.0.0.1:0", "--name", "m", "--slots", "8", "--queue", "32",
                               "--context", "512", "--api-key", KEY], stderr=log)
    try:
        port = port_of(server, log)
        url = f"http://127.0.0.1:{port}/v1"
        client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=120)
        conversations(client)
        tools(client)
        completions(client)
        errors(client, url)
        asyncio.run(crowd(url, port))
    finally:
        server.terminate()
        check("the server ends", server.wait(timeout=120) == 0)
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
