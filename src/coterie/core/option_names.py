"""What options were called in earlier versions, which still works, and what other libraries call
them, for hints.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

FORMER_SECTIONS = {"data": "dataset", "split": "partition"}
FORMER_NAMES = {  # {section: {name before: name now}}
    "train": {
        "rate": "lr",
        "batch": "batch_size",
        "epochs": "local_epochs",
        "steps": "local_steps",
        "decay": "weight_decay",
    },
    "schedule": {"sample": "participation", "drop": "dropout_clients", "evaluate": "eval_every"},
    "dataset": {"clients": "num_clients"},
    "options": {
        "distil_rate": "distil_lr",
        "inner_rate": "inner_lr",
        "rate_c": "lr_c",
        "server_rate": "hyper_lr",
        "weight_rate": "weight_lr",
        "server_decay": "server_weight_decay",
        "public_batch": "public_batch_size",
    },
}
ALL_FORMER = {old: new for names in FORMER_NAMES.values() for old, new in names.items()}

SYNONYMS = {  # {name here: what others call it}
    "lr": "learning_rate local_learning_rate local_lr client_lr step_size eta eta0",
    "batch_size": "bs local_bs local_batch_size batchsize minibatch_size",
    "local_epochs": "epoch num_epochs local_ep num_local_epochs client_epochs max_iter",
    "local_steps": "num_steps local_iterations local_iters local_iter local_updates",
    "weight_decay": "wd l2 l2_reg l2_regularization",
    "rounds": "global_rounds num_rounds n_rounds comm_round comm_rounds communication_rounds "
    "num_server_rounds global_epochs",
    "participation": "join_ratio fraction_fit fraction_train frac fraction client_fraction "
    "sample_rate sample_ratio clients_per_round num_clients_per_round participation_rate",
    "dropout_clients": "client_drop_rate drop_rate dropout dropout_rate straggler_rate",
    "eval_every": "eval_gap eval_interval eval_freq evaluate_every test_every test_interval",
    "num_clients": "nclients n_clients clients_num number_of_clients total_clients num_users "
    "n_parties num_supernodes",
    "dataset": "data_set dataset_name data_name",
    "partition": "partitioner partition_method partitioning distribution noniid niid",
    "alpha": "dirichlet_alpha dir_alpha partition_alpha",
    "model": "network net arch architecture model_name",
    "method": "algorithm algo alg strategy",
    "seed": "random_seed random_state manual_seed",
    "device": "gpu cuda device_id",
    "lam": "lambda lamda",
    "mu": "prox_mu proximal_mu",
    "out": "output output_dir out_dir save_dir",
}
NAME_HERE = {guess: name for name, guesses in SYNONYMS.items() for guess in guesses.split()}


def rename_former(option: str, known: Collection[str] = ()) -> str:
    """The name that an option, with or without its section, has now; one of `known` stays."""
    if option in known:
        return option
    section, dot, name = option.rpartition(".")
    section = FORMER_SECTIONS.get(section, section)
    if not dot:
        return FORMER_SECTIONS.get(option) or ALL_FORMER.get(option, option)
    full = f"{section}.{name}"
    return full if full in known else f"{section}.{FORMER_NAMES.get(section, {}).get(name, name)}"


def rename_options(settings: Mapping[str, Any], known: Collection[str] = ()) -> dict[str, Any]:
    """Full names of a run of before, as they are now."""
    return {rename_former(option, known): value for option, value in settings.items()}


def rename_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a stored configuration, by the names of now."""
    found: dict[str, Any] = {}
    for section, table in tables.items():
        now = FORMER_SECTIONS.get(section, section)
        names = FORMER_NAMES.get(now, {})
        found[now] = (
            {names.get(name, name): value for name, value in table.items()}
            if isinstance(table, Mapping)
            else table
        )
    return found


def say_synonym(option: str) -> str:
    """A suffix that says what an option of other libraries is called here; "" of others."""
    return f"; here it is '{NAME_HERE[option]}'" if option in NAME_HERE else ""


def find_alike(option: str, names: Collection[str]) -> str | None:
    """The name of which `option` may be a slip: it lacks, adds, changes or swaps a letter (two of
    ten or more, or between the same ends, as alfa), or begins it.

    Names that only look alike, such as those of two methods, are further apart.
    """
    near = [
        (edits, name)
        for name in names
        if (edits := count_edits(option, name)) <= _count_slips(option, name)
    ]
    if near:
        return min(near)[1]
    begun = [name for name in sorted(names) if len(option) > 2 and name.startswith(option)]
    return begun[0] if begun else None


def _count_slips(option: str, name: str) -> int:
    """How many letters may be wrong in a word that means a name."""
    same_ends = len(option) > 3 and (option[0], option[-1]) == (name[:1], name[-1:])
    return 2 if len(option) >= 10 or same_ends else 1


def count_edits(a: str, b: str) -> int:
    """Letters to add, drop, change or swap with the next to make one word of the other."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            edits = min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y))
            if i > 1 < j and x == b[j - 2] and y == a[i - 2]:
                edits = min(edits, before[j - 2] + 1)
            row.append(edits)
        before, last = last, row
    return last[-1]
