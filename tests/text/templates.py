"""Chat templates by ravel.Tokenizer.render against transformers' render_jinja_template, byte for byte.

    python3 tests/text/templates.py WORK [FOLDER ...]

WORK: a folder for a tokenizer that is made there. First one template per part of the language (snippets below), then every
template in the FOLDERs (*.jinja files, and texts in Python and JSON files that go through messages), each over conversations
with and without tools, thoughts, contents of several parts, and with and without the beginning of an answer; where
transformers raises, an error is expected. Ends with "N passed, N failed".
"""
import ast
import json
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "python")]
import ravel  # noqa: E402
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather \"there\" <now>, in °C",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "a city", "enum": ["Paris", "Köln"]},
        "days": {"type": "integer", "default": 3}, "exact": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "number"}}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {"name": "add", "description": "adds",
                                        "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, number=0):
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def turns(*contents, system=None):
    messages = [{"role": "system", "content": system}] if system is not None else []
    return messages + [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]


PART = [{"type": "text", "text": "look: "}, {"type": "image"}, {"type": "text", "text": "what?"}]
TOOL_USE = [{"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Köln", "days": 2, "x": 1.5})]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00000", "content": "{\"t\": 21}"},
            {"role": "assistant", "content": "21 degrees."}]
TWO_CALLS = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "a"},
             {"role": "assistant", "content": "I will.", "reasoning_content": "hm\nso",
              "tool_calls": [call("add", {"a": [1, {"b": None}], "c": True}), call("add", {"q": "\"x\"\n"}, 1)]},
             {"role": "tool", "tool_call_id": "call00000", "content": "3"},
             {"role": "tool", "tool_call_id": "call00001", "content": "4"}]
CONVERSATIONS = [  # messages, tools, variables
    (turns("Hi"), None, {}), (turns("Hi", "Hello!", "How are you?"), None, {}),
    (turns("a", "b", "c", "d", system="Be brief."), None, {}),
    (turns("  padded \n", "\n answer \t\n", system="  sys \n"), None, {}),
    (turns("ünïcode 漢字", "🎉\u3000\u00a0 'q' \"r\" \\ <&>"), None, {}),
    (turns("q", "<think>\nhm\n</think>\n\nA", "r", "<think>\n\ntwo\n\n</think>\n\n\nB"), None, {}),
    (turns("q", "x</think>y", "r"), None, {"enable_thinking": False}),
    (turns("q", "a", "r", system="s"), None, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "A", "reasoning_content": "\nwhy\n"}], None, {}),
    (turns("q"), [WEATHER], {}), (turns("q", system="S"), [WEATHER, ADD], {"enable_thinking": False}),
    (TOOL_USE, [WEATHER], {}), (TOOL_USE[:3], [WEATHER, ADD], {}), (TWO_CALLS, [ADD], {}), (TWO_CALLS, None, {}),
    ([{"role": "user", "content": PART}], None, {}),
    ([{"role": "user", "content": "q"}, {"role": "system", "content": "late"}, {"role": "assistant", "content": "b"}], None, {}),
    ([{"role": "developer", "content": "d"}, {"role": "user", "content": "q"}], None, {}),
    ([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}], None, {}),
    ([{"role": "assistant", "content": "first"}, {"role": "user", "content": "b"}], None, {}),
]

# One line per part of the language. Every snippet is rendered over the first conversations.
SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.0 }} {{ 1e3 }} {{ 1e20 }} {{ 1.5e-7 }}
{{ 0.1 + 0.2 }} {{ 100000000000000000.0 }} {{ 1234567.891 }} {{ 3.0 * 2 }} {{ 10 / 5 }} {{ -2.5 }} {{ 1_000 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'b'] ~ {'k': 'v'} }} {{ 'a' 'b' "c" }} {{ 'a' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}
{{ 'it''s' }}{{ "q\"r\n\t\\ \x41 \u00e9 \101 \q" }}{{ 'é'|length }}
{{ ['it\'s', "a\"b", 'both\'"', 'new\nline', 'tab\t', 'é', '\u200b', '\x00'] }} {{ (1,) }} {{ () }} {{ {} }} {{ {'a': [None, True, 1.0]} }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ none == false }} {{ [1] == (1,) }}
{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ not 1 in [1] }} {{ (not true) or 'x' }} {{ 0 and 1 }} {{ '' or 'y' }}
{{ 'yes' if 1 else 'no' }} {{ 'yes' if 0 }} {{ 'a' if 0 else 'b' if 0 else 'c' }} {{ (1 if true else 2) + 1 }}
{{ nothing }}|{{ nothing is defined }}|{{ nothing|default('d') }}|{{ ''|default('d') }}|{{ ''|default('d', true) }}|{{ messages[99] }}|{{ messages[0].nope }}|{{ messages[0]['nope'] }}
{{ nothing.x }}
{{ nothing + 1 }}
{{ nothing() }}
{{ messages[0].x.y }}
{{ 'abcdef'[1:3] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[:-2] }} {{ 'abcdef'[::2] }} {{ 'äöü'[1] }} {{ 'äöü'[1:] }} {{ [1,2,3][::-1] }} {{ [1,2,3][-1] }} {{ 'abc'[5:] }} {{ [1,2,3,4][3:0:-2] }}
{{ 'a.b.c'.split('.') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c d'.split(none, 2) }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'aXbXc'.partition('X') }} {{ 'aXbXc'.rpartition('X') }}
{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ '\u3000x\u00a0'.strip() }}
{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '.') }} {{ ''.replace('', 'x') }} {{ 'Hello'.upper() }} {{ 'Hello ÄÖß'.lower() }} {{ 'straße é'.upper() }} {{ "they're bill's".title() }} {{ 'aB cD'.capitalize() }} {{ 'aB'.swapcase() }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'x'.find('y') }} {{ 'äbc'.index('c') }} {{ 'aaa'.count('a') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }}
{{ '-'.join(['a', 'b']) }} {{ 'x'.center(5) }}| {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3, '.') }} {{ '7'.zfill(3) }} {{ '%s is %d and %.2f %%' % ('x', 3, 1.5) }} {{ '%5s|%-5s|%03d|%x' % ('a', 'b', 7, 255) }} {{ '{} {1} {k}'.format('a') if 0 else '{} {}'.format('a', 1) }} {{ '{0} {0} {k:.1f} {k}'.format('a', k=2.25) }}
{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.cycle('a', 'b') }}{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem is defined }}{{ loop.changed(m.role) }};{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ range(3)|list }} {{ range(5, 0, -2)|list }}
{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'äb' %}<{{ c }}>{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for m in messages recursive %}{% if loop.depth < 3 and loop.first %}({{ m.role }}{{ loop(messages) }}){% endif %}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{% set x = i + 10 %}{{ x }}{% endfor %}{{ x }} {% if true %}{% set y = 5 %}{% endif %}{{ y }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }}
{% set ns = namespace(n=0, l=[]) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }} {{ ns.l }} {{ ns.nope is defined }}
{% set block %}  text {{ 1 + 1 }} {% endset %}[{{ block }}] {% set up | upper %}abc{% endset %}{{ up }} {% filter upper %}x{{ 'y' }}{% endfilter %}
{% macro m(a, b=2, c='z') %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m() }} {{ m(*[7, 8]) }} {{ m(**{'a': 9}) }} {{ m.name }}
{% macro fact(n) %}{% if n > 1 %}{{ n * fact(n - 1)|int }}{% else %}1{% endif %}{% endmacro %}{{ fact(5) }}
{% macro wrap() %}<{{ caller('in') }}>{% endmacro %}{% call(x) wrap() %}{{ x }}!{% endcall %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ [1, 2, 3]|sort(reverse=true) }} {{ messages|map(attribute='role')|list }} {{ messages|map(attribute='nope', default='-')|list }} {{ ['a', 'b']|map('upper')|join(', ') }} {{ [1, 0, 2]|select|list }} {{ [1, 2, 3]|select('odd')|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ [1, 2, 3]|select('gt', 1)|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('role', 'in', ['user'])|map(attribute='role')|list }} {{ messages|selectattr('nope')|list }} {{ messages|selectattr('nope', 'defined')|list|length }} {{ (messages|selectattr('role', 'eq', 'x')|list)|length == 0 }} {{ messages|selectattr('role', 'eq', 'user')|first is defined }}
{{ [1, 2, 3]|sum }} {{ [1.5, 2]|sum }} {{ [1, 2, 3]|first }} {{ [1, 2, 3]|last }} {{ 'abc'|first }} {{ [1, 2, 3]|reverse|list }} {{ 'abc'|reverse }} {{ [1, 1, 2]|unique|list }} {{ [3, 1]|min }} {{ [3, 1]|max }} {{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ 'a b c'|wordcount }} {{ {'b': 1, 'a': 2}|dictsort }} {{ {'a': 1}|items|list }} {{ 'abc'|list }}
{{ '5'|int + 1 }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ '3.5'|float }} {{ 'y'|float(1.5) }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 2.1|round(0, 'ceil') }} {{ -3|abs }} {{ 5|string + 'x' }} {{ true|int }} {{ '0x1f'|int(0, 16) }}
{{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ ' x '|trim }}| {{ 'a-b'|replace('-', '+') }} {{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }} {{ 'x'|center(5) }}| {{ '<a&"\'>'|e }} {{ 'a b/c?é'|urlencode }} {{ 'hello there world'|truncate(11) }} {{ '%s-%s'|format(1, 'b') }} {{ [1, 2]|join('-') }} {{ messages|join('|', attribute='role') }} {{ 'x'|safe }} {{ 'AB'|lower }} {{ 'ab'|upper }} {{ [1, 2]|length }} {{ [1, 2]|count }} {{ 'abc'|string }}
{{ {'a': [1, 2.5, none, true, 'é"\n<>&\'\u0007'], 'b': {}, 'c': []}|tojson }} {{ [1, [2]]|tojson(indent=2) }} {{ {'b': 1, 'a': {'x': []}}|tojson(indent=4, sort_keys=true) }} {{ 'é😀'|tojson(ensure_ascii=true) }} {{ {'a': 1}|tojson(separators=(',', ':')) }} {{ 1e100|tojson }} {{ 5|tojson }} {{ 'x'|tojson }}
{{ 1 is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 'a' is string }} {{ [] is sequence }} {{ 'a' is sequence }} {{ {} is mapping }} {{ [] is iterable }} {{ 1 is iterable }} {{ none is none }} {{ 2 is even }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 1 is eq 1 }} {{ 1 is sameas 1 }} {{ 1 is lt 2 }} {{ 'a' is in ['a'] }} {{ 'a' is not in ['a'] }} {{ x is undefined }} {{ x is not defined }} {{ 'A' is upper }} {{ 'a' is lower }} {{ range is callable }} {{ true is true }} {{ 1 is true }} {{ not x is defined }}
{{ messages[0].keys()|list }} {{ messages[0].values()|list }} {{ messages[0].items()|list }} {{ messages[0].get('role') }} {{ messages[0].get('x', 'd') }} {{ messages[0].get('x') }} {{ messages|length }} {{ [1, 2].index(2) }} {{ [1, 1].count(1) }} {{ messages[0]['content'] }} {{ messages[0]|attr('items')|string|length > 0 }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }}
{{ messages.append(1) }}
{{ messages[0].update({'a': 1}) }}
{{ [2, 1].sort() }}
{{ raise_exception('no ' ~ 'way') }}
{{ 1 / 0 }}
{{ [] < {} }}
{{ 'a' + 1 }}
{{ none.x }}
{% raw %}{{ not this }} {% nor this %}{% endraw %} {# a comment {{ x }} #}after
  {% if true %}
    line
  {% endif %}
  {%- if true -%}   trimmed   {%- endif %}  end
a {%+ if true %} b {% endif +%}
c
{{- ' x' -}}   y
{# comment #}
  {# indented comment #}
text {#- trimmed -#} more
{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ cls_token is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}
{{ {'a': {'b': 1}}.a.b }} {{ {'items': 3}['items'] }} {{ {'x': 1}.x }} {{ {1: 'one'}[1] }} {{ [[1, 2], [3]][0][1] }} {{ {'a b': 2}['a b'] }}
{% if messages[0]['role'] == 'user' and (messages|length > 1 or false) %}A{% elif messages[0].role is string %}B{% else %}C{% endif %}
{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}
{{ strftime_now('%Y')|length }} {{ ['a', 'b'] | join }} {{ (1, 'x') | tojson }} {{ messages | tojson }}
{{ messages|groupby('role') }} {{ [{'a': {'b': 2}}, {'a': {'b': 1}}]|map(attribute='a.b')|list }} {{ [[1, 'x'], [0, 'y']]|sort(attribute=0) }} {{ [{'a': 2}, {'a': 1}]|sort(attribute='a')|map(attribute='a')|list }}
{{ 'a' if messages[0].content is string else 'b' }} {{ messages[0].content[:2] ~ messages[-1].content[-2:] }} {{ messages[1:]|length }} {{ messages[:1] }}
""".strip("\n")


def make_folder(path):
    """A tokenizer whose tokens are bytes, so that any text can be rendered by it."""
    os.makedirs(path, exist_ok=True)
    alphabet = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
    more = iter(range(256, 512))
    vocab = {c if c else chr(next(more)): i for i, c in enumerate(alphabet)}
    added = [{"id": 256 + i, "content": t, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
              "single_word": False} for i, t in enumerate(SPECIAL.values())]
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"added_tokens": added, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                   "model": {"type": "BPE", "merges": [], "vocab": vocab}}, f)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump(SPECIAL, f)
    return path


def theirs(template, messages, tools, variables, answer):
    try:
        texts, _ = render_jinja_template(conversations=[messages], tools=tools, documents=None, chat_template=template,
                                         add_generation_prompt=answer, **SPECIAL, **variables)
        return texts[0], ""
    except Exception as problem:
        return None, repr(problem)


def ours(tokenizer, messages, tools, variables, answer):
    try:
        return tokenizer.render(messages, tools=tools, add_generation_prompt=answer, **variables), ""
    except ravel.Error as problem:
        return None, str(problem)


# Answers of these are looked for; every word names its message.
LEARNT = turns("uuu1", "aaa1", "uuu2", "aaa2 and <b>", "uuu3", "aaa3"), turns("uuu1", "aaa1", system="sss")


def marked(template, messages, tools):
    """The texts that transformers' return_assistant_tokens_mask counts, or None where the template cannot."""
    try:
        texts, spans = render_jinja_template(conversations=[messages], tools=tools, documents=None, chat_template=template,
                                             add_generation_prompt=False, return_assistant_tokens_mask=True, **SPECIAL)
        return [texts[0][a:b] for a, b in spans[0]]
    except Exception:
        return None


def learnt_text(tokenizer, messages, tools=None):
    """Runs of learnt tokens, as texts."""
    tokens, mask = tokenizer.row({"messages": messages, **({"tools": tools} if tools else {})})
    runs, inside = [], False
    for token, learnt in zip(tokens.tolist(), mask.tolist()):
        if learnt and not inside:
            runs.append([])
        if learnt:
            runs[-1].append(token)
        inside = learnt
    return [tokenizer.decode(run) for run in runs]


def check_answers(tokenizer, template, messages):
    """Of a template with marks, answers are what transformers' mask counts. Where the text of a conversation begins with the
    texts of its beginnings, answers are the differences; everywhere they hold their own words and nobody else's."""
    if "endgeneration" in template:
        for given, tools in [(messages, None)] + [(m, t) for m, t, v in CONVERSATIONS if not v]:
            want = marked(template, given, tools)
            try:
                got = learnt_text(tokenizer, given, tools) if want is not None else None
            except ravel.Error as problem:  # as of a row without an answer
                got = [str(problem)] if "".join(want) else []
            if want is not None and "".join(got) != "".join(want):
                return f"answers {got} instead of {want}"
    full, _ = theirs(template, messages, None, {}, False)
    if full is None or any(m["content"] not in full for m in messages):
        return None
    runs = learnt_text(tokenizer, messages)
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    if "endgeneration" in template:
        return None if len(runs) == len(answers) else f"{len(runs)} answers"
    want = []
    for i in answers:
        opening, _ = theirs(template, messages[:i], None, {}, True)
        closed, _ = theirs(template, messages[:i + 1], None, {}, False)
        alike = opening is not None and closed is not None and closed.startswith(opening) and full.startswith(closed)
        want.append(closed[len(opening):].rstrip() if alike else None)
    if len(runs) != len(answers):
        return f"{len(runs)} answers instead of {len(answers)}: {runs}"
    for run, i, text in zip(runs, answers, want):
        if messages[i]["content"] not in run or "uuu" in run or "sss" in run or (text is not None and run.rstrip() != text):
            return f"answer {i} is {run!r} instead of {text!r}"
    return None


def compare(folder, name, template, conversations):
    path = os.path.join(folder, "template.jinja")
    with open(path, "w", newline="") as f:
        f.write(template)
    try:
        tokenizer = ravel.Tokenizer(folder, chat_format=path)
    except ravel.Error as problem:
        tokenizer, refused = None, str(problem)
    bad = None
    for messages, tools, variables in conversations:
        for answer in (False, True):
            want, why = theirs(template, messages, tools, variables, answer)
            got, said = ours(tokenizer, messages, tools, variables, answer) if tokenizer else (None, refused)
            if want != got and not bad:
                bad = f"{name}: {str(messages)[:120]} tools {tools is not None} answer {answer}\n      want {want!r} {why}\n      got  {got!r} {said}"
    for messages in LEARNT if tokenizer and len(conversations) > 3 else ():
        wrong = check_answers(tokenizer, template, messages)
        bad = bad or (wrong and f"{name}: {wrong}")
    return bad


def python_texts(node):
    """The constant texts of a Python file, sums of them as one."""
    def text_of(n):
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add):
            parts = text_of(n.left), text_of(n.right)
            return None if None in parts else "".join(parts)
        return n.value if isinstance(n, ast.Constant) and isinstance(n.value, str) else None

    text = text_of(node)
    if text is not None:
        yield text
    else:
        for child in ast.iter_child_nodes(node):
            yield from python_texts(child)


def json_texts(value):
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from json_texts(part)


def templates_in(folders):
    """(name, text) of every template, each text once."""
    seen = set()
    for path in sorted(p for f in folders for p in pathlib.Path(f).rglob("*") if p.suffix in (".jinja", ".py", ".json")):
        if b"{%" not in (data := path.read_bytes()):
            continue
        text = data.decode("utf8")
        found = [text] if path.suffix == ".jinja" else json_texts(json.loads(text)) if path.suffix == ".json" else \
            python_texts(ast.parse(text))
        for t in found:
            if t not in seen and (path.suffix == ".jinja" or ("{%" in t and "messages" in t)):
                seen.add(t)
                yield path.name, t


def main():
    folder, folders = make_folder(os.path.join(sys.argv[1], "byte-tokenizer")), sys.argv[2:]
    cases = [(f"snippet {i + 1}", line, CONVERSATIONS[:3]) for i, line in enumerate(SNIPPETS.split("\n"))]
    cases += [("the snippets as one text from line " + str(i), "\n".join(SNIPPETS.split("\n")[i:i + 14]), CONVERSATIONS[:3])
              for i in (46, 47, 50)]
    cases += [(name, text, CONVERSATIONS) for name, text in templates_in(folders)]
    failed = 0
    for name, template, conversations in cases:
        bad = compare(folder, name, template, conversations)
        failed += bad is not None
        if bad:
            print("  FAIL ", bad)
    print(f"{len(cases) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
