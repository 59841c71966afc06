import os
import tempfile

import torch

from coterie.engines.local.remembered import CACHE

torch.set_num_threads(1)
# Choices that earlier runs of this machine remember must not decide what a test sees.
os.environ[CACHE] = tempfile.mkdtemp(prefix="coterie-tests-")
