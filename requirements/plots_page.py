"""Makes .dvc/plots/page.html, the page of `dvc plots show`, with Vega inside it: DVC's own page loads it from the network.

    python requirements/plots_page.py       (or: make plots-page; needs npm)

DVC replaces {refresh_tag} and {plot_divs}; the {scripts} of its own page are left out. The packages are BSD-3-Clause: .dvc/plots/LICENSE.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".dvc/plots"
PACKAGES = {  # the order in which a page must load them -> SHA-512 of the npm tarball
    "vega@5.33.1": "1fArfVDUqVbb5z8n+/nVQb+VNBzx8svY6CrsyTK4Ujm4yrd9I1auoKxBAPXLCavY1LcrbHUskQbGUP8gXOzyQw==",
    "vega-lite@5.23.0": "l4J6+AWE3DIjvovEoHl2LdtCUkfm4zs8Xxx7INwZEAv+XVb6kR6vIN1gt3t2gN2gs/y4DYTs/RPoTeYAuEg6mA==",
    "vega-embed@6.29.0": "PmlshTLtLFLgWtF/b23T1OwX53AugJ9RZ3qPE2c01VFAbgt3/GSNI/etzA/GzdrkceXFma+FDHNXUppKuM0U6Q==",
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{refresh_tag}
<title>Draftyard plots</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; color: #1b1b1b; background: #fff; }}
body > div {{ overflow-x: auto; margin-bottom: 2rem; }}
table {{ border-spacing: 1rem 0.3rem; }}
</style>
{scripts}
</head>
<body>
{plot_divs}
</body>
</html>
"""


def package_files(package: str, sha512: str, folder: Path) -> tuple[str, str]:
    """The script and the licence text of `package` ("" where the tarball has none). Exits when the tarball is not the pinned one."""
    name, _, version = package.partition("@")
    subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    tarball = folder / f"{name}-{version}.tgz"
    found = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != sha512:
        sys.exit(f"{package}: the tarball has SHA-512 {found}, pinned is {sha512}")
    with tarfile.open(tarball) as archive:
        names = archive.getnames()
        texts = [archive.extractfile(path) if path in names else None for path in (f"package/build/{name}.min.js", "package/LICENSE")]
        script, licence = ("" if text is None else text.read().decode() for text in texts)
    if not script or "</script" in script.lower() or any(mark in script for mark in ("{plot_divs}", "{refresh_tag}", "{scripts}")):
        sys.exit(f"{package}: its script cannot stand inside a page that DVC fills")
    return script, licence


def main() -> None:
    """Fetch, check, write."""
    scripts, licences = [], []
    with tempfile.TemporaryDirectory() as folder:
        for package, sha512 in PACKAGES.items():
            script, licence = package_files(package, sha512, Path(folder))
            script = "\n".join(line for line in script.splitlines() if not line.startswith("//# sourceMappingURL"))
            scripts.append(f"<script>/* {package}, BSD-3-Clause */\n{script}\n</script>")
            licences.append(f"{package}\n\n{licence or 'BSD-3-Clause, by its package.json; the text is that of vega-lite below.'}".strip() + "\n")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "page.html").write_text(PAGE.format(scripts="\n".join(scripts), refresh_tag="{refresh_tag}", plot_divs="{plot_divs}"), encoding="utf-8")
    heading = "page.html holds these packages from the npm registry, unchanged but for their source map comments (requirements/plots_page.py).\n"
    (FOLDER / "LICENSE").write_text("\n".join([heading, *licences]), encoding="utf-8")


if __name__ == "__main__":
    main()
