"""Checks a report as headless Chromium has drawn it (--dump-dom) and what its console said.

    check_page.py DOM CONSOLE RUNS WANTED...      WANTED: names of figures that must be there
"""
import html.parser
import re
import sys

dom, console, runs, wanted = open(sys.argv[1]).read(), open(sys.argv[2]).read(), int(sys.argv[3]), sys.argv[4:]
said = [line for line in console.splitlines() if "CONSOLE" in line]
assert not said, said


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.figure, self.paths, self.figures, self.body, self.links, self.tables, self.canvases = None, {}, [], {}, [], [], []

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "body":
            self.body = a
        if tag == "figure":
            self.figure = a.get("data-chart")
            self.figures.append(self.figure)
        if tag == "path" and self.figure:
            assert a["d"].startswith("M") and "NaN" not in a["d"], (self.figure, a["d"][:80])
            self.paths[self.figure] = self.paths.get(self.figure, 0) + 1
        if tag == "circle" and self.figure:  # points, where there are too few for a line
            self.paths[self.figure] = self.paths.get(self.figure, 0) + 1
        if tag == "canvas":
            self.canvases.append(int(a.get("data-drawn", 0)))
        if "data-table" in a:
            self.tables.append(a["data-table"])
        for name in ("src", "href", "srcset"):
            if name in a and not a[name].startswith("data:"):
                self.links.append(a[name])

    def handle_endtag(self, tag):
        if tag == "figure":
            self.figure = None


page = Page()
page.feed(dom)
assert "data-error" not in page.body, page.body
assert int(page.body["data-charts"]) == len(page.figures) > 0, page.body
assert int(page.body["data-overflow"]) <= 0, page.body  # nothing sticks out sideways
assert not page.links, page.links  # nothing is loaded from anywhere
assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", dom)
for name in wanted:
    count = page.figures.count(name)
    per_run = name in ("phases", "idle-ranks", "refit")
    assert count == (runs if per_run else 1), (name, count)
    if name == "idle-ranks":
        assert len(page.canvases) == runs and all(page.canvases), page.canvases
    else:
        assert page.paths[name] >= runs, (name, page.paths.get(name))
assert page.tables == ["config", "environment"], page.tables
print(f"{len(page.figures)} figures, {sum(page.paths.values())} curves, nothing on the console")
