"""A stand-in for every stage: writes each declared out as a function of the declared deps and params, and notes that it ran.

`python stub_stage.py STAGE` in a repository whose params.yaml is written as JSON and whose graph.json describes the
stages ({stage: {deps, params, outs, files}}; outs are directories, files are not). Standard library only: it starts in milliseconds.
The note goes to .ran, or to the file that the variable STUB_RAN names: queued experiments run in directories that DVC deletes.
"""

import hashlib
import json
import os
import site
import sys
from pathlib import Path


def digest(path: Path) -> str:
    """Of a file, or of all files below a directory."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(p.relative_to(path.parent).as_posix().encode() + p.read_bytes() for p in files)).hexdigest()


def read_params() -> dict:
    """params.yaml: JSON as the tests write it, or YAML where DVC has rewritten it for an experiment."""
    text = Path("params.yaml").read_text()
    try:
        return json.loads(text)
    except ValueError:
        site.main()  # python -S has left site-packages out
        import yaml

        return yaml.safe_load(text)


def main(name: str) -> None:
    """Run stage `name`."""
    stage = json.loads(Path("graph.json").read_text())[name]
    params = read_params()
    used = {}
    for key in stage["params"]:
        value = params
        for part in key.split("."):
            value = value[part]
        used[key] = value
    made_from = {"stage": name, "params": used, "deps": {dep: digest(Path(dep)) for dep in stage["deps"]}}
    content = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    for out in stage["outs"]:
        Path(out).mkdir(parents=True, exist_ok=True)
        for file in ("lineage.json", "data.bin"):
            (Path(out) / file).write_text(json.dumps({"content": content}))
    for file in stage["files"]:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps({"content": content, "step": 1}))
    with open(os.environ.get("STUB_RAN", ".ran"), "a") as ran:
        ran.write(name + "\n")


main(sys.argv[1])
