"""docs/starting-points.md: every test that it names exists."""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.skipif("RAVEL_TEST_INSTALLED" in os.environ, reason="the page is the checkout's")
def test_every_test_that_the_page_names_exists():
    tests = "\n".join(path.read_text() for folder, kind in (("python/tests", "*.py"), ("tests/unit", "*.c"))
                      for path in (ROOT / folder).glob(kind))
    rows = [line.strip("| ").split(" | ") for line in (ROOT / "docs" / "starting-points.md").read_text().splitlines()
            if line.startswith("| ") and not line.startswith("| pull request")]
    assert len(rows) > 40
    for row in rows:
        (name,) = re.findall(r"`(\w+)`", row[-1])
        assert re.search(rf"\b(def {name}\(|TEST\w*\({name}\b)", tests), f"{name} of the row {row[0]!r} does not exist"
