"""A client of `stepfold serve` without dependencies, for Python 3.11 and newer.

`cargo xtask clients` makes it of the OpenAPI document of the server: change `crates/server/tests/it/generated/templates/client.py` instead.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

#TYPES


class Refused(Exception):
    """A request that was refused. Programs branch on `problem["kind"]`; `problem["remedy"]` says whether to send it again."""

    def __init__(self, problem: Problem, retry_after: float | None) -> None:
        super().__init__(f"{problem['status']} {problem['kind']}: {problem['detail']}")
        self.problem = problem
        self.retry_after = retry_after


class Event(NamedTuple):
    """An event of a live stream."""

    id: str | None
    event: str
    data: Any


class Client:
    """The operations of a server, with the token of a principal."""

    def __init__(self, url: str, token: str, timeout: float = 60.0) -> None:
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout

    def live(self, app: str, session: str, *, after: int | str | None = None) -> Iterator[Event]:
        """Follows a session: all that happens after a version, or after the id of an event; from now on by default.

        It connects again where it ended, so that each commit comes once, until the session is deleted.
        """
        path = f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/live"
        last, pause = None, 1.0
        while True:
            headers = {} if last is None else {"Last-Event-ID": last}
            try:
                with self._open("GET", path, {"after": after}, None, headers) as response:
                    for event in _events(response):
                        last, pause = event.id or last, 1.0
                        if event.event == "bye" and event.data["reason"] != "deleted":
                            break
                        yield event
                        if event.event == "bye":
                            return
            except Refused as refused:
                if refused.problem["remedy"] != "retry":
                    raise
                pause = refused.retry_after or pause
            except (OSError, http.client.HTTPException):
                # It is not there, or the connection was cut.
                pause = min(pause * 2, 30.0)
            time.sleep(pause)
#METHODS

    def _ask(self, method: str, path: str, query: dict[str, Any], body: Any = None, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        with self._open(method, path, query, body, headers) as response:
            text = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return json.loads(text) if is_json else text.decode() or None

    def _open(self, method: str, path: str, query: dict[str, Any], body: Any, headers: dict[str, str]) -> Any:
        given = {name: _text(value) for name, value in query.items() if value is not None}
        url = f"{self._url}{path}" + (f"?{urlencode(given)}" if given else "")
        headers = {**headers, "Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urlopen(Request(url, data, headers, method=method), timeout=self._timeout)
        except HTTPError as error:
            with error:
                if error.headers.get_content_type() != "application/problem+json":
                    raise
                after = error.headers.get("Retry-After")
                raise Refused(json.load(error), float(after) if after else None) from None
        except URLError as error:
            raise error.reason if isinstance(error.reason, OSError) else error


def _part(name: object) -> str:
    return quote(str(name), safe="")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _events(response: Any) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
            continue
        if "event" in fields:
            yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
        fields = {}
