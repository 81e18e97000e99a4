"""What the code must not do, read from its source: nothing that unpickles, no shell, no code from strings, no remote code by default, no files for all to write."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from draftyard.params.yaml_file import Yaml12Loader

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "stages").glob("*.py"), *(ROOT / "requirements").glob("*.py")])
MODULES = {"cloudpickle", "cPickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "tempfile.mktemp", "pickle.load",
    "torch.load", "torch.save", "torch.jit.load", "torch.package.PackageImporter", "torch.hub.load", "torch.distributed.broadcast_object_list",
    "torch.distributed.all_gather_object", "accelerate.utils.broadcast_object_list", "accelerate.utils.gather_object",
    "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all", "pandas.read_pickle",
}  # fmt: skip
KEYWORDS = {"shell": True, "allow_pickle": True, "trust_remote_code": True, "weights_only": False, "verify": False, "use_safetensors": False}
PROGRAMS = {"subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output"}
LOADERS = {"yaml.load": "Yaml12Loader", "yaml.load_all": "Yaml12Loader"}
WRITABLE_BY_OTHERS = 0o022


def findings(source: str) -> list[str]:
    """Everything forbidden in a module, as "line: what"."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
            names.update({alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0] for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        else:
            continue
        found += [f"{node.lineno}: imports {name}" for name in imported if name.split(".")[0] in MODULES]

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return names.get(node.id, node.id)
        return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""

    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in CALLS:
            found.append(f"{node.lineno}: calls {name}")
        for key, bad in KEYWORDS.items():
            if isinstance(value := keywords.get(key), ast.Constant) and value.value is bad:
                found.append(f"{node.lineno}: {key}={bad}")
        if name in LOADERS and not (isinstance(loader := keywords.get("Loader"), ast.Name) and loader.id == LOADERS[name]):
            found.append(f"{node.lineno}: {name} with another Loader than {LOADERS[name]}")
        if name in ("numpy.load", "np.load") and "allow_pickle" not in keywords:
            found.append(f"{node.lineno}: numpy.load without allow_pickle=False")
        command = node.args[0] if node.args else keywords.get("args")
        if name in PROGRAMS and isinstance(command, ast.Constant | ast.JoinedStr | ast.BinOp):
            found.append(f"{node.lineno}: {name} with a command as text")
        modes = [*node.args, *keywords.values()] if name.rpartition(".")[2] in ("chmod", "open", "mkdir", "makedirs", "touch", "umask") else []
        octal = [value for mode in modes if isinstance(mode, ast.Constant) and type(value := mode.value) is int and value > 7]
        if name.rpartition(".")[2] != "umask" and any(value & WRITABLE_BY_OTHERS for value in octal):
            found.append(f"{node.lineno}: a file that others may write")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_does_what_is_forbidden(path: Path) -> None:
    assert findings(path.read_text(encoding="utf-8")) == []


def test_the_yaml_loader_makes_plain_values_only() -> None:
    assert issubclass(Yaml12Loader, yaml.SafeLoader)
    with pytest.raises(yaml.constructor.ConstructorError):
        yaml.load("!!python/object/apply:os.system ['true']", Loader=Yaml12Loader)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pickle", "1: imports pickle"),
        ("def f():\n    from dill import loads", "2: imports dill"),
        ("import torch\ntorch.load('x')", "2: calls torch.load"),
        ("from torch import load as read\nread('x')", "2: calls torch.load"),
        ("import torch as t\nt.save({}, 'x')", "2: calls torch.save"),
        ("import numpy as np\nnp.load('x')", "2: numpy.load without allow_pickle=False"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "2: allow_pickle=True"),
        ("import subprocess\nsubprocess.run(['ls'], shell=True)", "2: shell=True"),
        ("import subprocess as s\ns.Popen(f'rm {x}')", "2: subprocess.Popen with a command as text"),
        ("from subprocess import run\nrun('a ' + b)", "2: subprocess.run with a command as text"),
        ("import os\nos.system('ls')", "2: calls os.system"),
        ("eval('1')", "1: calls eval"),
        ("import yaml\nyaml.load(x)", "2: yaml.load with another Loader than Yaml12Loader"),
        ("import yaml\nyaml.load(x, Loader=yaml.Loader)", "2: yaml.load with another Loader than Yaml12Loader"),
        ("AutoConfig.from_pretrained(x, trust_remote_code=True)", "1: trust_remote_code=True"),
        ("path.chmod(0o666)", "1: a file that others may write"),
        ("import os\nos.open(p, os.O_CREAT, 0o777)", "2: a file that others may write"),
    ],
)
def test_the_walk_finds_it(source: str, expected: str) -> None:
    assert findings(source) == [expected]


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile('x')",
        "model.eval()",
        "import subprocess\nsubprocess.run(['ls'])",
        "AutoConfig.from_pretrained(x, trust_remote_code=card.trust)",
        "path.chmod(0o644)",
    ],
)
def test_and_nothing_else(source: str) -> None:
    assert findings(source) == []
