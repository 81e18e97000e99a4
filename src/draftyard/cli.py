"""`draftyard doctor | plan | check | export | work | lineage | store`. Heavy packages are imported inside the command that needs them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from draftyard import __version__
from draftyard.errors import DraftyardError

EXIT_FAIL = 1
EXIT_INTERRUPTED = 130
_PATH = click.Path(path_type=Path)


class _Group(click.Group):
    """Prints a DraftyardError as one sentence; with --debug its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Exit 1: a finding, or a mistake of the user; 2: what was given cannot be read; 130: interrupted."""
        try:
            return super().invoke(ctx)
        except (DraftyardError, OSError) as error:  # OSError: a full disk, a directory that cannot be written
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename and error.strerror else error
            click.echo(f"draftyard: {told}", err=True)
            ctx.exit(EXIT_FAIL)
        except KeyboardInterrupt:
            click.echo("draftyard: interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The keys GROUP.KEY= of the params file that begin with `incomplete`, for the shell's completion."""
    from draftyard.params.yaml_file import read_yaml

    try:
        values = read_yaml(ctx.params.get("params_file") or Path("params.yaml"))
    except DraftyardError:
        return []
    keys = (f"{group}.{key}=" for group, keys in values.items() if isinstance(keys, dict) for key in keys)
    return [key for key in keys if key.startswith(incomplete)]


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="draftyard")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """A build system for EAGLE-3 draft models. The build itself: dvc repro."""


@main.command()
@click.argument("checkpoint", type=_PATH)
@click.option("--verifier", type=_PATH, metavar="DIR", help="The verifier's directory: config, tokenizer, weights.")
@click.option("--verifier-config", type=_PATH, metavar="FILE", help="The verifier's config.json alone.")
@click.option("--reference", type=_PATH, metavar="FILE", help="A tensor table (JSON) or another checkpoint to compare with.")
@click.option("--headers-only", is_flag=True, help="Read names and shapes, no values.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(checkpoint: Path, verifier: Path | None, verifier_config: Path | None, reference: Path | None, headers_only: bool, as_json: bool) -> None:
    """Check an EAGLE-3 draft at the level of its tensors.

    CHECKPOINT is a directory or a safetensors file, in the speculators (layers.0.*) or the SpecForge/AQ-MedAI (midlayer.*) layout.
    Exit 0: no check fails. 1: one fails. 2: it cannot be read as a checkpoint.
    """
    from draftyard.verification.check_report import render
    from draftyard.verification.checks import check_checkpoint

    report = check_checkpoint(checkpoint, verifier_dir=verifier, verifier_config=verifier_config, reference=reference, values=not headers_only)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        width = max(60, min(shutil.get_terminal_size((120, 40)).columns, 160))
        click.echo(render(report, colour=sys.stdout.isatty(), width=width))
    sys.exit(report.exit_code)


@main.command()
@click.option("--params", "params_file", type=_PATH, default=Path("params.yaml"), show_default=True, metavar="FILE", help="Params to plan.")
@click.option("--verifier-config", type=_PATH, metavar="FILE", help="The verifier's config.json, where no profile or card is there.")
@click.option("--set", "overrides", multiple=True, metavar="GROUP.KEY=VALUE", shell_complete=complete_key, help="Override a key; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(params_file: Path, verifier_config: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what a build will make and cost: parameters, tensors, tokens, bytes, memory, time. Needs no weights and no GPU."""
    from draftyard.params.load import load_file
    from draftyard.planning import plan as make_plan
    from draftyard.planning_text import render_plan

    made = make_plan(load_file(params_file, overrides), Path.cwd(), params_file, verifier_config)
    click.echo(json.dumps(made.to_json(), indent=2, ensure_ascii=False) if as_json else render_plan(made))


@main.command()
@click.argument("checkpoint", type=_PATH)
@click.argument("out", type=_PATH)
@click.option("--layout", type=click.Choice(["speculators", "midlayer"]), required=True, help="Layout to write.")
@click.option(
    "--embed-tokens/--no-embed-tokens", default=None, help="Keep or drop the embeddings (default: as they are); without them engines share the verifier's."
)
def export(checkpoint: Path, out: Path, layout: Any, embed_tokens: bool | None) -> None:
    """Write CHECKPOINT to the new directory OUT in another layout, tensors byte for byte."""
    from draftyard.draft.export import export_checkpoint

    export_checkpoint(checkpoint, out, layout, embed_tokens=embed_tokens)
    click.echo(f"{out}: {layout} layout; look at it with: draftyard check {out}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Say what is installed, what this machine can run, which dtype and why. Exit 1 with the remedy when something is missing."""
    from draftyard.doctor import run

    sys.exit(run(as_json))


@main.command()
@click.option("--prune", is_flag=True, help="Remove the areas that no run will go on with; those a process works on stay.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def work(prune: bool, as_json: bool) -> None:
    """List unfinished work: stage, key, size, age, and whether a run with the params of now would go on with it. Nothing goes without --prune."""
    from draftyard import work_list
    from draftyard.runtime import work_dir

    root = Path.cwd()
    base = work_dir(root)
    listed = work_list.list_areas(base, root)
    removed = work_list.prune(listed) if prune else []
    if as_json:
        click.echo(json.dumps({"work": [area.to_json() for area in listed], "removed": [str(area.path) for area in removed]}, indent=2, ensure_ascii=False))
        return
    for area in removed:
        click.echo(f"removed {area.path} ({area.state})")
    click.echo(work_list.render([area for area in listed if area not in removed], base))


@main.command()
@click.argument("artifact")
@click.option("--files", is_flag=True, help="Also read every file, here and in DVC's cache, and say which copies are damaged and how to mend them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lineage(artifact: str, files: bool, as_json: bool) -> None:
    """Print the chain from the sources of the prompts to ARTIFACT, with digests.

    ARTIFACT is an output of the build: data/prompts, data/generations, data/hidden_states, models/verifier.json, models/vocab, models/draft, reports/verify
    or a report. Exit 0: everything fits. 1: two links do not, or something is missing or damaged.
    """
    from draftyard import lineage_chain

    links = lineage_chain.chain(Path.cwd(), artifact, files=files)
    click.echo(json.dumps(lineage_chain.to_json(links), indent=2, ensure_ascii=False) if as_json else lineage_chain.render(links))
    sys.exit(EXIT_FAIL if any(link.problems for link in links) else 0)


@main.command()
@click.option("--verify", is_flag=True, help="Read every shard and compare its digest.")
@click.option("--drop-damaged", is_flag=True, help="--verify, and remove the damaged shards, so that the stage makes them again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def store(verify: bool, drop_damaged: bool, as_json: bool) -> None:
    """Say whether the feature store holds every shard of data/hidden_states (hidden_states.storage: store), and how to get back what it lost.

    DVC knows the index alone: it takes the stage for done whatever happens to the shards. Exit 0: all are there. 1: some are missing or damaged.
    """
    from draftyard import store_check
    from draftyard.artifacts.feature_store import open_store
    from draftyard.runtime import load_runtime, work_dir

    root = Path.cwd()
    opened = open_store(root, load_runtime(root), work_dir(root))
    states = store_check.check_store(root, opened, read=verify or drop_damaged, drop=drop_damaged)
    shown = store_check.to_json(opened, states, drop_damaged)
    click.echo(json.dumps(shown, indent=2, ensure_ascii=False) if as_json else store_check.render(opened, states, drop_damaged))
    sys.exit(EXIT_FAIL if any(state.state != "present" for state in states) else 0)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash, zsh: eval "$(draftyard completion bash)" in ~/.bashrc or ~/.zshrc
    fish:      draftyard completion fish > ~/.config/fish/completions/draftyard.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(main, {}, "draftyard", "_DRAFTYARD_COMPLETE").source())


if __name__ == "__main__":
    main()
