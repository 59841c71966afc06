"""`coterie data`: how a data set is dealt to clients."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.printing import say
from coterie.cli.show import show_data, show_own
from coterie.cli.words import FREE, words_of
from coterie.core.errors import BadInput
from coterie.data.made import MADE, write_made
from coterie.experiment.build import federation_of, own_of
from coterie.experiment.config import Experiment, change, chosen_names
from coterie.experiment.recipes import data_name


@click.command(context_settings=FREE, short_help="Show how a data set is dealt to clients.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[DATA] [--WORD VALUE]...")
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    help="PNG or SVG to write; default DATA-SPLIT.png, numbered if taken.",
)
@click.option("--make", type=click.Choice(list(MADE)), help="Write a drawn table as CSV and stop.")
def data(arguments: tuple[str, ...], picture: Path | None, make: str | None) -> None:
    """Print the split of DATA (digits) as a table and draw it (clients x classes).

    Of a file or folder of your own it also says what each column holds and becomes, and what looks
    wrong. Takes --split, --clients, --validation, --test, --scale, --cut, the split's own options
    (--alpha, --classes-each, ...), --data-dir, --seed; for your own data --client, --label,
    --features, --categories, --missing, --one-hot, --text, --vocabulary, --tokens, --cut-column,
    --separator.
    """
    from coterie.data.picture import SUFFIXES, split_picture

    if make:
        _make(make, arguments, picture)
        return
    name, words = words_of(arguments, "DATA")
    experiment = change(Experiment(method=""), ({"data": name} if name else {}) | words)
    if picture:
        for wrong, what in (
            (picture.exists(), "exists already: give another name"),
            (picture.suffix not in SUFFIXES, f"is no picture: end it in {' or '.join(SUFFIXES)}"),
            (not picture.parent.is_dir(), f"is in no folder: make {picture.parent} first"),
        ):
            if wrong:
                raise BadInput(f"{picture} {what}")
    whole = own_of(experiment)
    federation = federation_of(experiment, whole)
    if whole is not None:
        show_own(whole, federation)
    show_data(federation)
    if federation.classes:
        target = picture or _unused(
            Path(f"{data_name(experiment)}-{chosen_names(experiment)['split'] or 'split'}.png")
        )
        split_picture(federation, target)
        say(f"picture: {target}")


def _make(name: str, arguments: tuple[str, ...], picture: Path | None) -> None:
    """Write a drawn table into this folder, and say how it is read."""
    if arguments or picture:
        raise BadInput(f"--make {name} writes {name}.csv and takes no other word")
    path = Path(f"{name}.csv")
    write_made(name, path)
    frame = MADE[name](0)
    client, label = frame.columns[0], frame.columns[-1]
    say(f"wrote {path}: {len(frame):,} rows; read it with --client {client} --label {label}")


def _unused(path: Path) -> Path:
    target, k = path, 2
    while target.exists():
        target, k = path.with_stem(f"{path.stem}-{k}"), k + 1
    return target
