"""The OpenAPI document of a service: exactly what it takes and gives, made from the run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from coterie.core.task import find_task
from coterie.core.version import __version__
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import FittedColumn
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, TEXT
from coterie.data.read.number_forms import parse_form
from coterie.results.personal_models import ModelTask
from coterie.serving.generation import LIMITS, Sampling
from coterie.serving.request_rows import ARROW, CSV, JSON, LARGEST_NUMBER

Json = dict[str, Any]
PATTERNS = {  # of the parts of a date
    "%Y": "20[0-9]{2}",
    "%m": "(0[1-9]|1[0-2])",
    "%d": "(0[1-9]|1[0-9]|2[0-8])",
    "%H": "([01][0-9]|2[0-3])",
    "%M": "[0-5][0-9]",
    "%S": "[0-5][0-9]",
    "%.f": r"\.[0-9]{3}",
}
REFUSAL_MEANINGS = {
    "401": "There is no token, or it is not known.",
    "403": "The token does not open this.",
    "404": "The run has no such client, or there is no such address.",
    "413": "The body is too large.",
    "415": "The body is of another kind.",
    "422": "The rows do not fit the model.",
    "503": "Too many requests wait; try again.",
    "504": "The answer took too long.",
}


def build_document(intake: InputBuilder, task: ModelTask, most: int, tokens: bool) -> Json:
    """The whole document."""
    secured: list[Json] = [{"token": []}] if tokens else []
    parts: Json = {"schemas": {"Problem": _problem_schema(), "Rows": _rows_schema(intake, most)}}
    parts["schemas"]["Answer"] = _answer_schema(task)
    if tokens:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths = {
        "/clients/{client}/predict": {"post": _predict_operation(secured, tokens)},
        "/clients/{client}/card": {"get": _card_operation(secured, tokens)},
        "/health": {"get": _plain_operation("Whether the service answers.", "health", JSON)},
        "/metrics": {"get": _plain_operation("Numbers for Prometheus.", "metrics", "text/plain")},
    }
    if find_task(task.kind).has_tokens:
        paths["/clients/{client}/generate"] = {"post": _generate_operation(secured, tokens)}
    if tokens:
        paths["/reload"] = {"post": _reload_operation(secured)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Personal models",
            "version": __version__,
            "description": "Every client's own model, opened by that client's token.",
        },
        "paths": paths,
        "components": parts,
    }


def _problem_schema() -> Json:
    return _object_schema({"problem": {"type": "string"}})


def _object_schema(properties: Json, more: bool = False) -> Json:
    schema: Json = {"type": "object", "properties": properties, "required": list(properties)}
    return schema if more else schema | {"additionalProperties": False}


def _rows_schema(intake: InputBuilder, most: int) -> Json:
    """The JSON body of a request."""
    kept = intake.preparation
    if intake.is_table and kept is not None:
        row = _object_schema(
            {c.name: _allow_blanks(_cell_schema(c), kept.missing_values) for c in kept.columns},
            more=True,
        )
    else:
        row = _array_schema(intake.row_shape)
        if len(intake.row_shape) > 1:
            row = {"anyOf": [row, _array_schema((math.prod(intake.row_shape),))]}
    return _object_schema(
        {"rows": {"type": "array", "items": row, "minItems": 1, "maxItems": most}}
    )


def _array_schema(shape: tuple[int, ...]) -> Json:
    inner = _array_schema(shape[1:]) if len(shape) > 1 else _number_schema("number")
    return {"type": "array", "items": inner, "minItems": shape[0], "maxItems": shape[0]}


def _number_schema(*kinds: str) -> Json:
    return {
        "type": kinds[0] if len(kinds) == 1 else list(kinds),
        "minimum": -LARGEST_NUMBER,
        "maximum": LARGEST_NUMBER,
    }


def _cell_schema(column: FittedColumn) -> Json:
    """One cell of a column; null where it is missing."""
    if column.kind == BOOLEAN:
        return {"type": ["boolean", "null"]}
    if column.kind == TEXT:
        return {"type": ["string", "null"], "description": "a text"}
    if column.kind == CATEGORY:
        known = ", ".join(column.categories) or "any"
        return {"type": ["string", "integer", "null"], "description": f"{known}; else (other)"}
    if column.kind == DATE:
        form = column.form or "%Y-%m-%d"
        found = re.sub(r"%\.f|%[A-Za-z]|.", lambda m: PATTERNS.get(m[0]) or re.escape(m[0]), form)
        return {"type": ["string", "null"], "pattern": f"^{found}$", "description": form}
    number = parse_form(column.form)
    unit = f" in {number.unit}" if number and number.unit else ""
    return _number_schema("number", "null") | {"description": f"a number{unit}"}


def _allow_blanks(schema: Json, blanks: Sequence[str]) -> Json:
    """A cell that may also be one of the texts that count as missing."""
    return {"anyOf": [schema, {"enum": list(blanks)}]} if blanks else schema


def _answer_schema(task: ModelTask) -> Json:
    """What comes back."""
    parts: Json = {
        "client": {"type": "string"},
        "predictions": {"type": "array", "items": task.schema()},
    }
    if task.names:
        parts["classes"] = {"type": "array", "items": {"type": task.kind_of_names}}
        parts["probabilities"] = {
            "type": "array",
            "items": {"type": "array", "items": {"type": "number"}},
        }
    schema = _object_schema(parts)
    return schema | {"properties": parts | _sure_properties(task)}


def _sure_properties(task: ModelTask) -> Json:
    """What comes back beside it where sure is true."""
    if task.several:
        return {}
    share: Json = {"type": "number", "description": "how often sets or intervals hold the truth"}
    if task.names:
        items: Json = {"type": "array", "items": {"type": task.kind_of_names}}
        return {"confidence": share, "sets": {"type": "array", "items": items}}
    ends = {"type": ["number", "null"]}
    items = {"type": "array", "items": ends, "minItems": 2, "maxItems": 2}
    return {"confidence": share, "intervals": {"type": "array", "items": items}}


def _refusal_responses(*statuses: str) -> Json:
    held = {JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {s: {"description": REFUSAL_MEANINGS[s], "content": held} for s in statuses}


def _refusal_codes(tokens: bool) -> tuple[str, ...]:
    """How a client that may not ask, or is not there, is refused."""
    return ("401", "403", "404") if tokens else ("404",)


def _client_parameter() -> list[Json]:
    schema = {"type": "string", "minLength": 1}
    return [{"name": "client", "in": "path", "required": True, "schema": schema}]


def _sure_parameter() -> Json:
    meaning = (
        "Calibrated probabilities, and the set of classes or the interval that holds the truth as "
        "often as confidence says, where `coterie explain` has fitted them; else 422."
    )
    schema = {"type": "boolean", "default": False}
    return {"name": "sure", "in": "query", "description": meaning, "schema": schema}


def _predict_operation(secured: list[Json], tokens: bool) -> Json:
    raw = {"schema": {"type": "string", "format": "binary"}}
    answer = {JSON: {"schema": {"$ref": "#/components/schemas/Answer"}}, CSV: raw, ARROW: raw}
    return {
        "summary": "What the client's own model says of rows.",
        "operationId": "predict",
        "security": secured,
        "parameters": [*_client_parameter(), _sure_parameter()],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"$ref": "#/components/schemas/Rows"}},
                CSV: raw,
                ARROW: raw,
            },
        },
        "responses": {
            "200": {"description": "One answer per row.", "content": answer},
            **_refusal_responses(*_refusal_codes(tokens), "413", "415", "422", "503", "504"),
        },
    }


def _generate_operation(secured: list[Json], tokens: bool) -> Json:
    options = {
        name: {"type": "integer" if kind is int else "number", "minimum": low, "maximum": high}
        | {"default": Sampling._field_defaults[name]}
        for name, (kind, low, high) in LIMITS.items()
    }
    body = {
        "type": "object",
        "properties": {"prompt": {"type": "string"}, "stream": {"type": "boolean"}} | options,
        "required": ["prompt"],
        "additionalProperties": False,
    }
    answer = _object_schema(
        {
            "client": {"type": "string"},
            "text": {"type": "string"},
            "finish_reason": {"type": "string", "enum": ["stop", "length"]},
            "tokens": {"type": "integer"},
        }
    )
    content = {JSON: {"schema": answer}, "text/event-stream": {"schema": {"type": "string"}}}
    return {
        "summary": "A text that the client's own language model goes on with.",
        "operationId": "generate",
        "security": secured,
        "parameters": _client_parameter(),
        "requestBody": {"required": True, "content": {JSON: {"schema": body}}},
        "responses": {
            "200": {"description": "The text, whole or as it grows.", "content": content},
            **_refusal_responses(*_refusal_codes(tokens), "413", "415", "422", "503", "504"),
        },
    }


def _card_operation(secured: list[Json], tokens: bool) -> Json:
    return {
        "summary": "All that is known of the client's own model.",
        "operationId": "card",
        "security": secured,
        "parameters": _client_parameter(),
        "responses": {
            "200": {"description": "Its card.", "content": {JSON: {"schema": {"type": "object"}}}},
            **_refusal_responses(*_refusal_codes(tokens), "503"),
        },
    }


def _plain_operation(summary: str, name: str, kind: str) -> Json:
    schema = {"type": "object"} if kind == JSON else {"type": "string"}
    return {
        "summary": summary,
        "operationId": name,
        "responses": {"200": {"description": "Now.", "content": {kind: {"schema": schema}}}},
    }


def _reload_operation(secured: list[Json]) -> Json:
    run = {"type": "string", "description": "A folder beside the one that is served."}
    body = {"type": "object", "properties": {"run": run}, "additionalProperties": False}
    content = {JSON: {"schema": {"type": "object"}}}
    return {
        "summary": "Read the run again, or take over to a newer one; no request is dropped.",
        "operationId": "reload",
        "security": secured,
        "requestBody": {"content": {JSON: {"schema": body}}},
        "responses": {
            "200": {"description": "It serves now.", "content": content},
            **_refusal_responses("401", "403", "413", "415", "422"),
        },
    }
