"""The page in a real browser, at desktop and phone width: nothing overflows, no figure is missing or cut, the console stays silent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.conftest import BUILD, add_samples, params, write_all

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium (make test does it where it may)"),
]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--window-size=1400,1000", "--virtual-time-budget=8000"]
WIDTHS = (1280, 390)
PROBE = """<!doctype html><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
const look = (name, width, page) => {
  const root = page.documentElement, box = e => e.getBoundingClientRect(), all = s => [...page.querySelectorAll(s)];
  all('details').forEach(d => d.open = true);
  const drawings = all('figure svg[role=img]');
  return {name, width, scroll: root.scrollWidth, client: root.clientWidth, figures: all('figure').length, sections: all('section').map(s => s.id),
    drawings: drawings.length,
    empty: drawings.filter(s => box(s).height < 8 || box(s).width < 100 || !s.querySelector('rect, line, polyline, circle')).map(s => s.getAttribute('aria-label')),
    cut: drawings.flatMap(s => [...s.querySelectorAll('text')].filter(t => box(t).left < box(s).left - 1 || box(t).right > box(s).right + 1
      || box(t).top < box(s).top - 1 || box(t).bottom > box(s).bottom + 1).map(t => t.textContent)),
    wide: all('body *').filter(e => box(e).right > root.clientWidth + 1 && !e.closest('svg, thead')).map(e => e.tagName + '.' + e.className),
    images: page.images.length, scripts: page.scripts.length};
};
for (const [name, text] of Object.entries(pages)) for (const width of widths) {
  const frame = Object.assign(document.createElement('iframe'), {srcdoc: text, style: `border:0;width:${width}px;height:900px`});
  frame.onload = () => {
    found.push(look(name, width, frame.contentDocument));
    if (found.length === Object.keys(pages).length * widths.length)
      document.body.replaceChildren(Object.assign(document.createElement('pre'), {id: 'found', textContent: JSON.stringify(found)}));
  };
  document.body.append(frame);
}
</script>"""


def changed_build(root: Path) -> str:
    """A page with everything on it: red lines, a baseline, spreads, a reference, a long context, names that do not wrap by themselves."""

    def edit(path: str, change: Any) -> None:
        values = json.loads((root / path).read_text())
        change(values)
        (root / path).write_text(json.dumps(values))

    for path in ("reports/verify/serving.json", "reports/verify/simulation.json"):
        edit(path, add_samples)
    write_all(root)
    (root / "data/baselines").mkdir()
    shutil.copy(root / "reports/metrics.json", root / "data/baselines/a-name-that-is-long-and-has-no-place-to-break-it-at-all-0123456789.json")
    edit("reports/verify/serving.json", lambda values: values["equality"]["divergences"][0].update(shared_text="x" * 300, plain_text="y" * 200 + " and so on"))
    edit("reports/verify/static.json", lambda values: values.update(reference="speculators 0.9.0, Eagle3DraftModel"))
    edit("reports/verify/static.json", lambda values: [row.update(reference_shape=row["shape"]) for row in values["tensors"]])
    bins = [{"from": 2**i, "to": 2 ** (i + 1), "rounds": 100_000 * i, "acceptance_length": 1 + i / 10} for i in range(4, 13)]
    edit("reports/verify/simulation.json", lambda values: values.update(by_context=bins))
    edit("reports/stages/vocab.json", lambda values: values.update(coverage_holdout=0.4))
    title = "A draft with a long title, " + "which_has_a_word_that_does_not_end_" * 3
    return write_all(root, params(title=title, baseline="data/baselines/a-name-that-is-long-and-has-no-place-to-break-it-at-all-0123456789.json"))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """What one browser found on each page at each width, and what it wrote to stderr."""
    base = tmp_path_factory.mktemp("browser")
    pages = {"recorded": write_all(Path(shutil.copytree(BUILD, base / "recorded"))), "changed": changed_build(Path(shutil.copytree(BUILD, base / "changed")))}
    content = PROBE.replace("PAGES", json.dumps(pages).replace("</", "<\\/"), 1).replace("WIDTHS", json.dumps(WIDTHS), 1)
    (base / "probe.html").write_text(content, encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={base / 'profile'}", "--dump-dom", (base / "probe.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stdout[-500:]
    return json.loads(match.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), done.stderr


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["recorded", "changed"])
def test_no_overflow_and_no_figure_missing_or_cut(seen: tuple[list[dict[str, Any]], str], name: str, width: int) -> None:
    (found,) = [page for page in seen[0] if (page["name"], page["width"]) == (name, width)]
    assert found["wide"] == []
    assert found["scroll"] <= found["client"] == width
    assert found["empty"] == []
    assert found["cut"] == []
    assert found["drawings"] >= 17
    assert (found["images"], found["scripts"]) == (0, 0)
    compared = ["changes"] if name == "changed" else []
    assert found["sections"][:3] == ["gate", *compared, "proofs", "acceptance"][:3]
    assert len(found["sections"]) == 13 + len(compared)


def test_the_console_stays_silent(seen: tuple[list[dict[str, Any]], str]) -> None:
    assert "CONSOLE" not in seen[1]
