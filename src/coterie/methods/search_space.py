"""What a search may turn: the values of each option that are worth trying, read from declarations.

A knob is a range or a list of choices. Most follow from how an option is declared and from the
value it has now; OVERRIDES says it where the declared range is too wide to search, and
EXCLUDED names the options that no search turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from coterie.core.errors import BadInput, format_value
from coterie.core.method import Train
from coterie.core.options import Range, declared_options
from coterie.methods.declare import Builder, refused_of, unused_of

DIGITS = 3  # significant ones of a value that is tried
LOG_RATIO = (
    10.0  # a positive range whose ends differ by this factor is searched by order of magnitude
)


class SearchRange(NamedTuple):
    """The values of one option that a search tries: from `low` to `high`, or one of `choices`."""

    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    @property
    def log(self) -> bool:
        """Whether orders of magnitude count, as for a rate."""
        return self.low > 0 and self.high / self.low >= LOG_RATIO

    @property
    def text(self) -> Any:
        """As a file has it: "0.01..1", or a list."""
        return list(self.choices) if self.choices else f"{self.low:.12g}..{self.high:.12g}"

    def near(self, value: float, whole: bool) -> float:
        """A value inside, with few digits."""
        short = round(value) if whole else float(f"{value:.{DIGITS}g}")
        return type(short)(min(max(short, self.low), self.high))


def is_range(value: Any) -> bool:
    """Whether a value to try is a range, as "0.01..1"."""
    return isinstance(value, str) and ".." in value


def parse_range(text: str, option: str) -> SearchRange:
    """A range from its text."""
    low, _, high = text.partition("..")
    try:
        knob = SearchRange(float(low), float(high))
    except ValueError:
        knob = SearchRange()
    if not knob.low < knob.high < float("inf"):
        raise BadInput(
            f"{option} = {format_value(text)}: write a range as LOW..HIGH, such as 0.01..1"
        )
    return knob


# Options of a paper's interpretation, of sizes and of safety: they say which algorithm runs, or
# what it costs. `--tune METHOD.OPTION=...` searches them all the same.
EXCLUDED = frozenset(
    (
        *("reduction", "teacher", "kl", "aux_init", "units", "steps_rule", "fl_weight", "others"),
        *("spread", "row_norm", "mix", "draw", "public_batch_size", "patience", "held", "clip"),
        *("hyper_hidden", "hyper_layers", "embedding", "streams", "k", "warm", "converge_steps"),
        *("known_variance", "known_spread", "delta", "eps_step", "alpha_decay", "first_epochs"),
        *("server_momentum", "server_weight_decay", "inner", "after", "peers", "bundles", "anchor"),
        *("predict", "server_epochs", "tau", "memory", "batch_rows"),
    )
)
OVERRIDES: Mapping[str, Mapping[str, SearchRange]] = {  # by method, where what follows is too wide
    "fedavg": {"beta": SearchRange(0.5, 1.5)},
    "scaffold": {"beta": SearchRange(0.5, 1.5)},
    "finetune": {"tune_epochs": SearchRange(1, 20)},
    "fedprox": {"mu": SearchRange(0.001, 1)},
    "ditto": {"lam": SearchRange(0.01, 10)},
    "pfedme": {"lam": SearchRange(1, 100), "beta": SearchRange(0.5, 2)},
    "pfml": {"lam": SearchRange(0.2, 20), "beta": SearchRange(0.5, 2)},
    "ucfl": {"batches": SearchRange(choices=(0.0, 2.0, 2.5, 5.0, 10.0))},
    "ifca": {"clusters": SearchRange(choices=(2, 3, 4))},
    "fedper": {"head": SearchRange(choices=(1, 2))},
    "fedrep": {"head": SearchRange(choices=(1, 2)), "head_epochs": SearchRange(1, 20)},
    "lgfedavg": {"head": SearchRange(choices=(1, 2))},
    "fedala": {"top_layers": SearchRange(choices=(1, 2)), "weight_lr": SearchRange(0.1, 10)},
}


def build_search_space(
    name: str, builder: Builder, train: Train, options: Mapping[str, Any]
) -> dict[str, SearchRange]:
    """The knobs of a method: its rate, its local work, then what is its own."""
    found = {
        option: knob
        for option, knob in _training_space(train).items()
        if is_used(builder, option, options)
    }
    for option, (kind, default) in declared_options(builder).items():
        own = OVERRIDES.get(name, {}).get(option)
        knob = own or (
            None if option in EXCLUDED else derive_range(kind, options.get(option, default))
        )
        if knob:
            found[option] = knob
    return found


def _training_space(train: Train) -> dict[str, SearchRange]:
    """The rate within a factor of ten, and one to several times the local work."""
    lr = SearchRange(_round_digits(train.lr / 10), min(_round_digits(train.lr * 10), 1e30))
    if train.local_steps:
        return {
            "lr": lr,
            "local_steps": SearchRange(max(1, train.local_steps // 4), 4 * train.local_steps),
        }
    return {"lr": lr, "local_epochs": SearchRange(1, max(5, 2 * train.local_epochs))}


def is_used(builder: Builder, option: str, options: Mapping[str, Any]) -> bool:
    """Whether a method uses an option of `[train]`, with these options."""
    if option in refused_of(builder):
        return False
    if option not in unused_of(builder):
        return True
    when = unused_of(builder)[option]
    return (
        when is not None and options.get(when[0], declared_options(builder)[when[0]][1]) == when[1]
    )


def derive_range(kind: Any, value: Any) -> SearchRange | None:
    """The knob that follows from a declaration and the value that the option has; None: none does.

    A value of 0 switches something off, and yes or no chooses a variant: neither is a matter of
    degree.
    """
    if get_origin(kind) is Literal:
        return SearchRange(choices=get_args(kind))
    plain, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    limit = next((r for r in limits if isinstance(r, Range)), Range(0, 1e6))
    if plain not in (int, float) or isinstance(value, bool) or not value or value < 0:
        return None
    if plain is int:
        low, high = max(limit.low, value // 4, 1), min(limit.high, 4 * value)
    elif limit.high <= 1:
        low, high = max(limit.low, min(0.05, value)), min(limit.high, max(0.95, value))
    else:
        low, high = (
            max(limit.low, _round_digits(value / 10)),
            min(limit.high, _round_digits(value * 10)),
        )
    return SearchRange(low, high) if low < high else None


def _round_digits(value: float) -> float:
    """A number of few digits, so that the ends of a range can be read."""
    return round(value, DIGITS - 1 - floor(log10(value))) if 0 < value < 1e30 else value
