"""What stopped a run is told, whether or not Prefect's server takes the record of it."""

from __future__ import annotations

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from flows.launch import own_errors
from flows.local_server import ServerError
from roleagent.errors import BankError


def refuse() -> None:
    response = httpx.Response(500, request=httpx.Request("POST", "http://127.0.0.1:1/api/flow_runs/x/set_state"))
    try:
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        raise PrefectHTTPStatusError.from_httpx_error(error) from error.__cause__


def stop(reason: BankError) -> None:
    try:
        try:
            raise reason
        finally:
            refuse()  # the end of the inner flow cannot be recorded
    finally:
        refuse()  # nor that of the outer one


def test_a_refused_record_does_not_hide_the_error_of_the_run() -> None:
    reason = BankError("the disk is full")
    with pytest.raises(BankError) as caught, own_errors():
        stop(reason)
    assert caught.value is reason


def test_a_refusal_alone_names_the_log() -> None:
    with pytest.raises(ServerError, match=r"answered 500.*prefect-server\.log") as caught, own_errors():
        refuse()
    assert "\n" not in str(caught.value)
