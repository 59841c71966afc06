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
    "lr_schedule": "scheduler lr_scheduler schedule lr_decay learning_rate_decay lr_decay_gamma "
    "learning_rate_decay_gamma lr_gamma ldg ld warmup warmup_rounds",
    "optimizer": "optim opt optimiser client_optimizer local_optimizer betas adam",
    "server_optimizer": "server_optim server_opt global_optimizer",
    "clip_norm": "grad_clip clip_grad clip_grad_norm gradient_clipping max_grad_norm clipping_norm",
    "augment": "augmentation data_augmentation transform transforms",
    "batch_size": "bs local_bs local_batch_size batchsize minibatch minibatch_size lbs",
    "local_epochs": "epoch num_epochs local_ep num_local_epochs client_epochs max_iter ls le",
    "local_steps": "num_steps local_iterations local_iters local_iter local_updates",
    "weight_decay": "wd l2 l2_reg l2_regularization",
    "rounds": "global_rounds num_rounds n_rounds comm_round comm_rounds communication_rounds "
    "num_server_rounds global_epochs gr iterations n_iter",
    "participation": "join_ratio fraction_fit fraction_train frac fraction client_fraction "
    "sample_rate sample_ratio clients_per_round num_clients_per_round participation_rate jr "
    "sample_clients client_sampling num_sampled_clients fraction_clients",
    "dropout_clients": "client_drop_rate drop_rate dropout dropout_rate straggler_rate",
    "eval_every": "eval_gap eval_interval eval_freq evaluate_every test_every test_interval eg",
    "num_clients": "nclients n_clients clients_num number_of_clients total_clients num_users "
    "n_parties num_supernodes nc",
    "validation": "val val_split validation_split val_ratio val_fraction val_size",
    "test": "test_size test_split test_ratio test_fraction",
    "label": "target target_column label_column label_col",
    "client": "client_column client_col client_id user_column",
    "missing_values": "na_values null_values na",
    "decimal": "decimal_mark decimal_separator decimal_comma",
    "drop_missing_labels": "drop_unlabelled drop_unlabeled drop_missing",
    "scale": "normalize normalise normalization standardize standardise scaler",
    "dataset": "data_set dataset_name data_name",
    "partition": "partitioner partition_method partitioning distribution non_iid niid iid",
    "alpha": "dirichlet_alpha dir_alpha partition_alpha",
    "classes_each": "classes_per_client num_classes_per_client class_per_client shards_per_client "
    "num_classes_per_partition",
    "model": "network net arch architecture model_name m",
    "method": "algorithm algo alg strategy",
    "seed": "random_seed random_state manual_seed",
    "device": "gpu cuda device_id dev did use_cuda",
    "threads": "workers num_workers n_jobs num_threads cpus",
    "track": "wandb tensorboard mlflow tracker use_wandb",
    "metric": "metrics scoring score",
    "lam": "lambda lamda",
    "mu": "prox_mu proximal_mu",
    "out": "output output_dir out_dir save_dir save log_dir save_folder_name sfn o",
    "quiet": "verbose verbosity",
}
NAME_HERE = {guess: name for name, guesses in SYNONYMS.items() for guess in guesses.split()}
METHOD_SYNONYMS = {  # {method: {what others call an option of it: its name here}}
    "apfl": {"al": "alpha"},
    "ditto": {"mu": "lam"},
    "fedala": {"eta": "weight_lr", "rand_percent": "share", "layer_idx": "top_layers"},
    "fedamp": {"alphaK": "alpha", "alk": "alpha"},
    "fedbabu": {"fine_tuning_epochs": "tune_epochs"},
    "feddbe": {"kl_weight": "kappa", "klw": "kappa"},
    "feddyn": {"mu": "alpha"},
    "fedfomo": {"M": "offers"},
    "fedrep": {"plocal_epochs": "head_epochs", "head_steps": "head_epochs"},
    "pfedme": {"K": "inner", "lrp": "inner_lr", "p_learning_rate": "inner_lr"},
    "scaffold": {"server_learning_rate": "beta"},
}

VALUES = {  # {what may be chosen here: what others call it}: methods, networks, schedules, ...
    "local": "standalone separate individual localonly solo",
    "finetune": "fedavgft fedavgfinetune finetuning fedft ft",
    "perfedavg": "maml pfedavg perfedavgfo",
    "fedadam": "fedopt",
    "dirichlet": "dir lda latentdirichlet noniidlabeldir",
    "classes": "noniid niid pathological pat shards shard labelskew",
    "user": "natural real writer",
    "smallcnn": "cnn convnet",
    "mcmahan": "fedavgcnn cnnmnist",
    "lenet5": "lenet",
    "dnn": "mlp fcn",
    "mlr": "linear logreg logisticregression softmax",
    "kt-resnet18": "resnet resnet18",
    "kt-alexnet": "alexnet",
    "kt-shufflenet": "shufflenet shufflenetv2",
    "lstm": "rnn",
    "hf": "bert distilbert vit gpt2 transformer",
    "cosine": "cosineannealing cosineannealinglr",
    "exponential": "exponentiallr",
    "step": "steplr multistep",
    "sgd": "momentum",
    "adam": "fedadam",
    "yogi": "fedyogi",
    "adagrad": "fedadagrad",
    "client": "own perclient",
    "accuracy": "acc",
    "auc": "rocauc auroc",
    "mae": "l1",
    "rmse": "mse l2",
    "concordance": "cindex",
    "survival": "cox",
    "run": "train fit start simulate",
    "compare": "benchmark",
    "resume": "continue restart",
}


def _fold(name: str) -> str:
    """A name without what people spell differently: capitals, hyphens, blanks."""
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


VALUES_HERE: dict[str, list[str]] = {}


def add_guesses(values: Mapping[str, str]) -> None:
    """Answer guesses of what may be chosen: {name: what others call it, with blanks between}."""
    for name, guesses in values.items():
        for guess in guesses.split():
            VALUES_HERE.setdefault(guess, []).append(name)


add_guesses(VALUES)


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


def find_synonym(option: str, method: str = "") -> str | None:
    """What an option of other libraries is called here, or such an option of one method."""
    guesses = METHOD_SYNONYMS.get(method, {}) if method else NAME_HERE
    return {_fold(guess): name for guess, name in guesses.items()}.get(_fold(option))


def find_alike(option: str, names: Collection[str]) -> str | None:
    """The name that is the same but for capitals and hyphens, or is what others call `option`; else
    that of which `option` may be a slip: it lacks, adds, changes or swaps a letter (two of ten or
    more, or between the same ends, as alfa), or begins it.

    Names that only look alike, such as those of two methods, are further apart.
    """
    plain = _fold(option)
    meant = [n for n in names if _fold(n) == plain] + VALUES_HERE.get(plain, [])
    if same := next((name for name in meant if name in names), None):
        return same
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
