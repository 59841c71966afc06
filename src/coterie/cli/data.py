"""`coterie data`: how a data set is partitioned over clients."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.options import PASS_THROUGH, parse_arguments
from coterie.cli.plugin_option import PLUGIN
from coterie.cli.printing import print_line
from coterie.cli.show import show_data, show_own
from coterie.core.errors import BadInput
from coterie.data.read.sources.synthetic_tables import SYNTHETIC_TABLES, write_synthetic_table
from coterie.experiment.build import federation_of, user_data_of
from coterie.experiment.config import Experiment, change_options, resolve_names
from coterie.experiment.own_code import use_named
from coterie.experiment.recipes import data_name_of


@click.command(
    context_settings=PASS_THROUGH, short_help="Show how a data set is partitioned over clients."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--OPTION VALUE]...")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="PNG or SVG to write; default DATA-SPLIT.png, numbered if taken.",
)
@click.option(
    "--make", type=click.Choice(list(SYNTHETIC_TABLES)), help="Write a drawn table as CSV and stop."
)
@PLUGIN
def data(arguments: tuple[str, ...], picture: Path | None, make: str | None) -> None:
    """Print the partition of DATA (digits) as a table and draw it (clients x classes).

    Of a file or folder of your own it also says what each column holds and becomes, and what looks
    wrong. Takes --partition, --num-clients, --validation, --test, --scale, --cut, the partition's
    own options (--alpha, --classes-each, ...), --data-dir, --seed; for your own data --client,
    --label, --features, --drop, --keep-ids, --categories, --missing, --missing-values,
    --drop-missing-labels, --decimal, --one-hot, --text, --vocabulary, --tokens, --cut-column,
    --part-column, --separator.
    """
    from coterie.data.partition_plot import SUFFIXES, plot_partition

    if make:
        _write_synthetic(make, arguments, picture)
        return
    name, settings = parse_arguments(arguments, "DATA")
    settings = ({"dataset": name} if name else {}) | settings
    use_named(settings)
    experiment = change_options(Experiment(method=""), settings)
    if picture:
        for wrong, what in (
            (picture.exists(), "exists already: give another name"),
            (picture.suffix not in SUFFIXES, f"is no picture: end it in {' or '.join(SUFFIXES)}"),
            (not picture.parent.is_dir(), f"is in no folder: make {picture.parent} first"),
        ):
            if wrong:
                raise BadInput(f"{picture} {what}")
    whole = user_data_of(experiment)
    federation = federation_of(experiment, whole)
    if whole is not None:
        show_own(whole, federation)
    show_data(federation)
    if federation.classes:
        partition = resolve_names(experiment)["partition"] or "partition"
        target = picture or _find_unused_path(Path(f"{data_name_of(experiment)}-{partition}.png"))
        plot_partition(federation, target)
        print_line(f"picture: {target}")


def _write_synthetic(name: str, arguments: tuple[str, ...], picture: Path | None) -> None:
    """Write a drawn table into this folder, and say how it is read."""
    if arguments or picture:
        raise BadInput(f"--make {name} writes {name}.csv and takes no other option")
    path = Path(f"{name}.csv")
    write_synthetic_table(name, path)
    frame = SYNTHETIC_TABLES[name](0)
    client, label = frame.columns[0], frame.columns[-1]
    print_line(f"wrote {path}: {len(frame):,} rows; read it with --client {client} --label {label}")


def _find_unused_path(path: Path) -> Path:
    target, k = path, 2
    while target.exists():
        target, k = path.with_stem(f"{path.stem}-{k}"), k + 1
    return target
