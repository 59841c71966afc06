import os
import tempfile

import torch
from hypothesis import HealthCheck, settings

from coterie.core.device import avoid_broken_amx
from coterie.engines.local.timing_cache import CACHE

avoid_broken_amx()  # before the first convolution, as oneDNN looks once
torch.set_num_threads(1)
# Choices that earlier runs of this machine remember must not decide what a test sees.
os.environ[CACHE] = tempfile.mkdtemp(prefix="coterie-tests-")
os.environ.pop("COLUMNS", None)  # tables are as wide as they need, wherever tests run
# A busy machine is no fault: no example has a deadline, and slow ones are no sign of bad health.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items):
    """Whatever needs a browser is thorough: `make test-all` runs it, `make test` does not."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("thorough")
