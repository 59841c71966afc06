"""The service does what its OpenAPI document says, whatever is thrown at it."""

import json
import warnings

import hypothesis
import pytest

from coterie.serving.app import build_app
from coterie.serving.service import Service, ServiceLimits
from helpers.serving import asking, people_run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        ignored_auth,
        negative_data_rejection,
        positive_data_acceptance,
        response_schema_conformance,
        status_code_conformance,
        unsupported_method,
    )

ALWAYS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]
OF_JSON = [negative_data_rejection, positive_data_acceptance, ignored_auth]


def throw_at(operation, mode, address, token, seen, examples=30):
    """Ask what the document allows, or what it does not allow, and check every answer."""
    admin = operation.path == "/reload"

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate,),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def throw(case):
        if "client" in case.path_parameters and mode == GenerationMode.POSITIVE:
            case.path_parameters["client"] = "site-1"
        json_body = case.media_type in (None, "application/json")
        checks = ALWAYS + (OF_JSON if json_body and not admin else [])
        headers = {"Authorization": f"Bearer {token}"}
        answer = case.call_and_validate(base_url=address, checks=checks, headers=headers)
        seen.add((case.operation.path, answer.status_code))

    throw()


@pytest.mark.filterwarnings("ignore")
def test_nothing_is_found_where_the_service_differs_from_its_document(tmp_path):
    run = people_run(tmp_path, rounds=1)
    service = Service(run.folder, tmp_path / "tokens.json", ServiceLimits(rows=20))
    tokens = json.loads((tmp_path / "tokens.json").read_text())
    seen: set[tuple[str, int]] = set()
    with asking(build_app(service)) as client:
        address = str(client.base_url)
        schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
        for found in schema.get_all_operations():
            operation = found.ok()
            admin = operation.path == "/reload"
            token = tokens["admin"] if admin else tokens["clients"]["site-1"]
            modes = [GenerationMode.POSITIVE]
            modes += [GenerationMode.NEGATIVE] if operation.body else []
            for mode in modes:
                throw_at(operation, mode, address, token, seen)
    assert ("/clients/{client}/predict", 200) in seen
    assert ("/clients/{client}/predict", 422) in seen
    assert ("/clients/{client}/card", 200) in seen
    assert ("/reload", 422) in seen
