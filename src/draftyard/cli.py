"""`draftyard doctor | plan | check | export`. Heavy packages are imported inside the command that needs them."""

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
_PATH = click.Path(path_type=Path)


class _Group(click.Group):
    """Prints a DraftyardError as one sentence; with --debug its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (DraftyardError, OSError) as error:  # OSError: a full disk, a directory that cannot be written
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            click.echo(f"draftyard: {error}", err=True)
            ctx.exit(EXIT_FAIL)


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
@click.option("--set", "overrides", multiple=True, metavar="GROUP.KEY=VALUE", help="Override a key; may be repeated.")
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


if __name__ == "__main__":
    main()
