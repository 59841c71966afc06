"""What travels between a server and a site, whichever way: a frame, as a message of Flower.

Flower's Fleet API carries a message in parts: its metadata first, then each object of its content
by itself, known by its digest. Nothing of a message is ever imported or run.
"""

from __future__ import annotations

from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    get_object_type_from_object_content,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

RECORD, BODY = "coterie", "body"
LARGEST_HEAD = 2**26
LARGEST_BODY = 2**33
PIECE_BYTES = 2**22  # bytes of a body in one record, which Flower sends as one object
# the objects that a frame is made of; those of Flower's arrays may say that a part comes a million
# times
OBJECTS = ("Message", "RecordDict", "ConfigRecord")


class Frame(NamedTuple):
    """The version of a message's form, its head and the bytes of its arrays."""

    schema: int  # of the head and the body; each side refuses another than its own
    head: str  # JSON
    body: bytes


class BadFrame(Exception):
    """A message that is none of ours."""


class Parts(NamedTuple):
    """A message as the Fleet API carries it."""

    number: str  # a digest of the whole message
    proto: MessageProto  # without content
    tree: ObjectTree  # which objects there are
    objects: dict[str, bytes]  # by their digests


def pack_frame(frame: Frame) -> RecordDict:
    """A frame as Flower's records: few of them, because Flower sends each by itself."""
    pieces = [frame.body[k : k + PIECE_BYTES] for k in range(0, len(frame.body), PIECE_BYTES)]
    first, *others = pieces or [b""]
    record = ConfigRecord({"schema": frame.schema, "head": frame.head, BODY: first})
    more = {f"{BODY}{k}": ConfigRecord({BODY: piece}) for k, piece in enumerate(others)}
    return RecordDict({RECORD: record, **more})


def unpack_frame(content: RecordDict, largest: int | None = None) -> Frame:
    """The frame of Flower's records; largest: bytes that its body may have. They are counted
    before it is put together, because records may refer to one piece again and again.
    """
    records = content.config_records
    if RECORD not in records:
        raise BadFrame("it is no message of coterie")
    others = (records[f"{BODY}{k}"] for k in range(len(records)) if f"{BODY}{k}" in records)
    main = records[RECORD]
    schema, head = main.get("schema"), main.get("head")
    pieces = [p for record in (main, *others) if isinstance(p := record.get(BODY), bytes)]
    if not isinstance(schema, int) or not isinstance(head, str):
        raise BadFrame("it has no schema and head")
    size, most = sum(map(len, pieces)), LARGEST_BODY if largest is None else largest
    if len(head) > LARGEST_HEAD or size > most:
        what = f"its body has {size:,} bytes, at most {most:,} were asked for"
        raise BadFrame(f"it is too large: its head has {len(head):,} bytes, {what}")
    return Frame(schema, head, b"".join(pieces))


def take_apart(message: Message) -> Parts:
    """A message as the Fleet API carries it; it is given its number."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        proto = message_to_proto(remove_content_from_message(message))
        return Parts(message.object_id, proto, get_object_tree(message), objects)


def put_together(number: str, objects: dict[str, bytes]) -> Message:
    """The message of these objects; whatever they raise where they make none."""
    for content in objects.values():
        if (kind := get_object_type_from_object_content(content)) not in OBJECTS:
            raise BadFrame(
                f"it holds an object of kind '{kind[:40]}', which no message of ours has"
            )
    message = inflate_object_from_contents(number, dict(objects))
    if not isinstance(message, Message):
        raise BadFrame(f"it is a {type(message).__name__}, not a message")
    message.metadata.__dict__["_message_id"] = number
    return message
