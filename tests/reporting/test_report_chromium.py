"""The report in a real browser, at desktop and phone width. Skipped where no Chromium is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from draftyard.params.report import ReportParams
from draftyard.reporting.build import HTML, write_report

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
PROBE = """<!doctype html><iframe id=f style="border:0;width:{width}px;height:900px"></iframe><script>
const frame = document.getElementById('f');
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll('details').forEach(d => d.open = true);
  const flat = [...page.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().height < 10).length;
  const right = e => e.getBoundingClientRect().right;
  const wide = [...page.querySelectorAll('body *')].filter(e => right(e) > root.clientWidth + 1 && !e.closest('svg, thead')).map(e => e.tagName);
  document.title = 'done';
  document.body.append(Object.assign(document.createElement('pre'), {{id: 'found', textContent: JSON.stringify(
    {{scroll: root.scrollWidth, client: root.clientWidth, flat, wide,
      figures: page.querySelectorAll('figure').length, sections: page.querySelectorAll('section').length}})}}));
}};
frame.srcdoc = {page};
</script>"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_overflow_no_flat_figure_no_console_error(root: Path, tmp_path: Path, width: int) -> None:
    write_report(root, ReportParams(title="SmolLM2 draft", uncovered_tokens=12))
    page = json.dumps((root / HTML).read_text(encoding="utf-8")).replace("</", "<\\/")
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=page), encoding="utf-8")
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
        "--window-size=1400,1000",
        "--virtual-time-budget=4000",
    ]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert match, done.stdout[-500:]
    found = json.loads(match.group(1))
    assert found["scroll"] <= found["client"] == width, found["wide"][:5]
    assert found["wide"] == []
    assert found["flat"] == 0
    assert found["figures"] >= 15
    assert found["sections"] == 11
    assert "CONSOLE" not in done.stderr
