"""The option `--plugin`, which every command that may need code of one's own has; it is light, as
help needs no tensors.
"""

from __future__ import annotations

import click


def _load_plugins(ctx: click.Context, parameter: click.Parameter, files: tuple[str, ...]) -> None:
    if files:
        from coterie.experiment.own_code import use_plugins

        use_plugins(files)


PLUGIN = click.option(
    "--plugin",
    multiple=True,
    metavar="FILE",
    callback=_load_plugins,
    expose_value=False,
    is_eager=True,  # before what needs it
    help="Python file or module of your own: its methods are known by their names, networks, data "
    "sets, losses and metrics as module:name. May be given several times.",
)
