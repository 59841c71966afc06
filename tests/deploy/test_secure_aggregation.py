"""What stands between Flower's SecAgg+ and the present interface, as docs/privacy.md says.

Should one of these fail with a newer Flower, secure aggregation is worth another look.
"""

import pytest
import torch

from coterie.deploy.wire import pack
from helpers.town import Message

# isort: split
from flwr.app import Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.server.workflow import SecAggPlusWorkflow

from coterie.deploy.frames import pack_frame
from helpers.town import BytesGrid


def context():
    return Context(1, 1, {"socket": "nowhere"}, RecordDict(), {})


def test_the_workflow_refuses_the_context_of_a_present_server_app():
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    with pytest.raises(TypeError, match="Expect a LegacyContext, but get Context"):
        workflow(BytesGrid(), context())


def test_the_mod_takes_no_message_of_ours():
    BytesGrid()  # gives this process an identity
    frame = pack({"kind": "train"}, torch.zeros(2))
    message = Message(pack_frame(frame), 1, "train")
    with pytest.raises(KeyError, match=RECORD_KEY_CONFIGS):
        secaggplus_mod(message, context(), lambda message, context: message)


def test_an_exchange_would_take_four_trips():
    assert len(Stage.all()) == 4
