"""The words for devices, and the way there and back."""

import numpy as np
import pytest
import torch

from coterie.core.device import CPU, device_of, to_default_device, to_double, to_numpy, use_device
from coterie.core.errors import BadInput
from coterie.core.point import Point


@pytest.fixture
def sees(monkeypatch):
    """Torch with so many CUDA devices."""

    def see(count):
        found = torch.device("cuda") if count else None
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: bool(count))
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)

    return see


def test_the_processor_is_always_there(sees):
    sees(0)
    assert device_of("cpu") == device_of("cpu:0") == device_of("auto") == CPU


def test_an_accelerator_is_taken_where_there_is_one(sees):
    sees(2)
    assert [str(device_of(option)) for option in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda",
        "cuda",
        "cuda:1",
        "cpu",
    ]


@pytest.mark.parametrize(
    ("option", "count", "said"),
    [
        ("cuda", 0, "device = 'cuda': torch sees no CUDA device here; use cpu or auto"),
        ("mps", 1, "device = 'mps': torch sees no MPS device here; use cpu or auto"),
        ("cuda:2", 2, "device = 'cuda:2': the last CUDA device here is cuda:1; use that one"),
        ("gpu", 1, "device = 'gpu': give auto, cpu, cuda, cuda:1 or mps"),
        ("", 1, "device = '': give auto, cpu, cuda, cuda:1 or mps"),
    ],
)
def test_a_device_that_is_not_there_is_refused(option, count, said, sees):
    sees(count)
    with pytest.raises(BadInput) as problem:
        device_of(option)
    assert str(problem.value) == said


def test_tensors_are_made_and_moved_where_the_work_is():
    point = Point({"w": torch.ones(2)})
    with use_device(torch.device("meta")):
        assert (
            torch.zeros(3).device.type == to_default_device(point).params["w"].device.type == "meta"
        )
        with use_device(CPU):
            assert torch.zeros(3).device == CPU
    assert to_default_device(point).params["w"] is point.params["w"]


def test_values_come_back_in_full():
    values = torch.tensor([1.0, 0.1])
    assert np.array_equal(to_numpy(values), np.array([1.0, 0.1], dtype=np.float32))
    assert to_double(values).dtype == torch.float64
