"""Laws of partitions: one Hugging Face data set per client, saved or at hand."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets.utils.logging import disable_progress_bar

import coterie
from coterie.core.errors import BadInput
from coterie.data.read.flower_partitions import is_partitions
from coterie.data.read.user_data import from_partitions, read_user_data

disable_progress_bar()
KINDS = Features(
    {"age": Value("int64"), "town": Value("string"), "label": ClassLabel(names=["no", "yes"])}
)


def rows_of(client, count=12):
    """The rows of a client."""
    rng = np.random.default_rng(client)
    columns = {
        "age": rng.integers(20, 60, count).tolist(),
        "town": rng.choice(["Ulm", "Bonn"], count).tolist(),
        "label": [k % 2 for k in range(count)],
    }
    return Dataset.from_dict(columns, features=KINDS)


class Partitioner:
    """What flwr-datasets' partitioners have: names are known once a partition was loaded."""

    def __init__(self, names=()):
        self.num_partitions, self.partition_id_to_natural_id = 3, {}
        self._names = names

    def load_partition(self, partition_id):
        self.partition_id_to_natural_id = dict(enumerate(self._names))
        return rows_of(partition_id)


class Federated:
    """What flwr-datasets' FederatedDataset has."""

    def __init__(self):
        self.partitioners = {"train": Partitioner(), "test": Partitioner()}

    def load_partition(self, partition_id, split=None):
        return self.partitioners[split].load_partition(partition_id)


def check(whole, names, rows=36):
    """All rows are there, and whose they are."""
    assert whole.clients == names
    assert whole.labels == ["no", "yes"]
    assert [c.name for c in whole.columns] == ["age", "town"]
    for k, name in enumerate(names):
        mine = whole.data.x[whole.data.users == k, 0]
        assert mine[:12].tolist() == rows_of(k)["age"], name
    assert len(whole.data.y) == rows


def test_a_folder_of_saved_data_sets_has_a_client_per_folder(tmp_path):
    for client in range(3):
        rows_of(client).save_to_disk(tmp_path / f"partition_{client}")
    check(read_user_data(tmp_path), ["partition_0", "partition_1", "partition_2"])


def test_parts_of_a_saved_client_stay_its_own(tmp_path):
    for client in range(3):
        both = DatasetDict(train=rows_of(client), test=rows_of(client, 4))
        both.save_to_disk(tmp_path / str(client))
    whole = read_user_data(tmp_path)
    check(whole, ["0", "1", "2"], 48)
    assert whole.data.train.reshape(3, 16).tolist() == [[True] * 12 + [False] * 4] * 3


def test_partitions_at_hand_are_clients():
    check(from_partitions([rows_of(k) for k in range(3)]), ["0", "1", "2"])
    check(from_partitions(Partitioner()), ["0", "1", "2"])
    check(from_partitions(Partitioner(["Ann", "Bob", "Cleo"])), ["Ann", "Bob", "Cleo"])


def test_every_part_of_a_federated_data_set_is_read():
    whole = from_partitions(Federated())
    check(whole, ["0", "1", "2"], 72)
    assert whole.data.train.sum() == 36


def test_rows_of_a_partition_that_was_selected_are_these_alone():
    chosen = rows_of(0).select([3, 5, 7])
    whole = from_partitions([chosen, rows_of(1)])
    assert whole.data.x[:3, 0].tolist() == [rows_of(0)["age"][k] for k in (3, 5, 7)]


def test_partitions_train_from_python(tmp_path):
    run = coterie.run(
        "local", dataset=Partitioner(), out=tmp_path / "run", rounds=1, features="age"
    )
    assert run.summary()
    assert not is_partitions("digits")
    assert not is_partitions([])
    with pytest.raises(BadInput, match="dataset is a list: give a name, a path, a frame"):
        coterie.run("local", dataset=[1, 2], out=tmp_path / "other")
