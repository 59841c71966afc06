"""The ClientApp of a site: hands every message to the site's own long-lived process and brings its
answer back.

Flower starts a new process for every message. This one imports Flower and the standard library
only, so that it is there at once; torch, the data and the client's state live in the site's process
(`coterie site`), behind a Unix socket of its owner.
"""

from __future__ import annotations

import socket

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp

from coterie_relay import frames
from coterie_relay.frames import BadFrame, Frame

RECORD, ARRAYS, BYTES = "coterie", "arrays", "bytes"
NO_SITE = 100  # error code: the site's process cannot be reached
# how an array's numbers are written: as they lie in memory, without pickle or any other format
RAW = "raw"

app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def relay(message: Message, context: Context) -> Message:
    """The site's answer, or an error that says why there is none."""
    try:
        frame = unpacked(message.content)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(context.node_config["socket"]))
            frames.send(connection, frame)
            return Message(packed(frames.receive(connection)), reply_to=message)
    except (OSError, BadFrame) as problem:
        why = f"the site's process does not answer ({problem}): start it with `coterie site`"
    except KeyError as missing:
        why = (
            f"the message or the node's configuration has no {missing}: start the site with "
            "`coterie site`"
        )
    return Message(Error(NO_SITE, why), reply_to=message)


def packed(frame: Frame) -> RecordDict:
    """A frame as Flower's records; all arrays are one, because Flower sends each by itself."""
    content = RecordDict({RECORD: ConfigRecord({"schema": frame.schema, "head": frame.head})})
    if frame.body:
        content[ARRAYS] = ArrayRecord({BYTES: Array("uint8", (len(frame.body),), RAW, frame.body)})
    return content


def unpacked(content: RecordDict) -> Frame:
    """The frame of Flower's records."""
    words = content.config_records[RECORD]
    schema, head = words["schema"], words["head"]
    body = content.array_records[ARRAYS][BYTES].data if ARRAYS in content.array_records else b""
    if not isinstance(schema, int) or not isinstance(head, str):
        raise BadFrame("the message has no schema and head")
    return Frame(schema, head, body)
