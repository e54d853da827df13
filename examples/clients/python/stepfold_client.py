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

class Accepted(TypedDict):
    """An accepted request."""

    invocation: str


class AddedCases(TypedDict):
    """The result of adding cases."""

    added: int
    unsuited: list[str]


class AppDetail(TypedDict):
    """An app, with what its agent is made of."""

    agent: str
    agents: list[InsideRow]
    app: str
    description: str | None
    graph: NotRequired[Any]
    has_graph: bool
    instructions: NotRequired[str | None]
    lists_tools: bool
    model: str
    models: list[ModelOfRow]
    output: NotRequired[OutputRow | None]
    prices: NotRequired[PricesRow | None]
    refused_tools: list[RefusedToolRow]
    schema: Any
    tools: list[ToolRow]


class AppRow(TypedDict):
    """An app: an agent with its sessions."""

    agent: str
    app: str
    description: str | None
    has_graph: bool
    model: str
    schema: Any


class Apps(TypedDict):
    """The apps of a server."""

    apps: list[AppRow]


class BlameRow(TypedDict):
    """The newest writes of a key, oldest first."""

    count: int
    earlier: NotRequired[int | None]
    key: str
    writes: list[BlamedWrite]


class BlamedWrite(TypedDict):
    """A write of a key."""

    after: NotRequired[Any]
    at: str
    before: NotRequired[Any]
    call_id: NotRequired[str]
    handler: NotRequired[str | None]
    key: str
    kind: str
    node: NotRequired[str | None]
    tool: NotRequired[str | None]
    value: NotRequired[Any]
    version: int


class BudgetQuestionRow(TypedDict):
    """The budget that a run waits for: it continues in the next window, or is resumed under a higher limit, or abandoned."""

    limit: int
    name: str
    requested: int
    reserved: int
    scope: str
    spent: int
    text: str
    unit: str
    until: NotRequired[str | None]


class BudgetRow(TypedDict):
    """A budget in its current window."""

    declared: int
    limit: int
    name: str
    reserved: int
    scope: str
    spent: int
    unit: str
    until: NotRequired[str | None]
    window: str


class BudgetRows(TypedDict):
    """Budgets."""

    budgets: list[BudgetRow]


class CachedRequestRow(TypedDict):
    """A request beside the one before it."""

    broken_by: NotRequired[str | None]
    cached_input_tokens: int
    input_tokens: int
    lost_tokens: int
    model: NotRequired[str | None]
    shared_tokens: int
    tokens: int
    version: int


class CallRow(TypedDict):
    """A call of a tool."""

    arguments: Any
    id: str
    name: str


class CancelRow(TypedDict):
    """Whether a run was cancelled."""

    cancelled: bool


class ChangeRow(TypedDict):
    """A changed value."""

    after: NotRequired[Any]
    before: NotRequired[Any]
    key: str


class Changed(TypedDict):
    """A version after a change."""

    version: int


class CompareRow(TypedDict):
    """The differences of two sessions."""

    aligned: list[PairRow]
    changed: list[ChangeRow]
    common: int
    first: str | None
    left: list[EventRow]
    right: list[EventRow]


class ComparisonRow(TypedDict):
    """The comparison of two experiments."""

    losses: int
    lost: list[str]
    text: str
    ties: int
    unpaired: list[str]
    unpaired_count: int
    verdict: str
    wins: int
    won: list[str]


class Completed(TypedDict):
    """A stored outcome."""

    not_continued: NotRequired[list[str]]
    requests: list[str]
    version: int


class Decided(TypedDict):
    """Stored decisions."""

    by: str | None
    invocation: str
    not_continued: NotRequired[list[str]]
    requests: list[str]
    version: int


class DecidedRow(TypedDict):
    """A decision."""

    decision: Any
    request: str


DiffRow = TypedDict("DiffRow", {"changed": "list[ChangeRow]", "from": "int", "messages": "list[Any]", "to": "int"})


class EditedRow(TypedDict):
    """The changes of an edit beside values, which are its writes."""

    arguments: NotRequired[dict[str, Any]]
    results: dict[str, Any]


class EndRow(TypedDict):
    """The end of a run."""

    exit: Any


class ErasedCaseRow(TypedDict):
    """A case of a data set that was taken from erased content, or is an erased user's own."""

    case: str
    data_set: str
    user: str


class ErasedVersion(TypedDict):
    """An event that was erased, or would be."""

    session: str
    version: int


class ErasurePage(TypedDict):
    """Records of erasures, oldest first."""

    erasures: list[ErasureRecordRow]
    next: NotRequired[int | None]


class ErasureRecordRow(TypedDict):
    """The record of an erasure: it has neither content nor the id of a user."""

    at: str
    by: str
    events: int
    id: str
    kind: str
    reason: str
    sessions: int


class ErasureRow(TypedDict):
    """The result of an erasure."""

    budgets: int
    cases: list[ErasedCaseRow]
    dry_run: bool
    events: int
    found: bool
    id: NotRequired[str | None]
    key: bool
    results: int
    sessions: list[str]
    spend: int
    user_keys: list[str]
    vacuumed: bool
    versions: list[ErasedVersion]


class EventRow(TypedDict):
    """A commit of a session."""

    asked: NotRequired[list[QuestionRow]]
    at: str
    author: str
    calls: NotRequired[list[CallRow]]
    cost: NotRequired[str | None]
    decided_by: NotRequired[str | None]
    decisions: NotRequired[list[DecidedRow]]
    edited: NotRequired[EditedRow | None]
    elapsed_us: NotRequired[int | None]
    exit: NotRequired[Any]
    failure: NotRequired[str | None]
    hook: NotRequired[HookRow | None]
    invocation: str
    kind: str
    latency_us: NotRequired[int | None]
    messages: list[Any]
    model: NotRequired[str | None]
    outcomes: NotRequired[list[OutcomeRow]]
    path: NotRequired[list[ItemRow]]
    planned: NotRequired[list[ItemRow]]
    started: NotRequired[list[ItemRow]]
    step: NotRequired[int | None]
    summary: NotRequired[str | None]
    usage: NotRequired[UsageRow | None]
    version: int
    visible: bool
    writes: list[WriteRow]


class EventRows(TypedDict):
    """A page of commits."""

    events: list[EventRow]
    next: NotRequired[int | None]
    oldest: int
    version: int


class ExperimentList(TypedDict):
    """Data sets and experiments."""

    data_sets: list[str]
    experiments: list[ExperimentRow]
    unreadable: list[str]


class ExperimentRow(TypedDict):
    """An experiment, with its counts."""

    candidate: str
    cases: int
    coverage: int | None
    errors: int
    expected: int
    failed: int
    left_record: int
    mode: str
    name: str
    pass_rate: int | None
    passed: int
    skipped: int
    status: str
    steps: int
    tokens: int
    why: str | None


class ExperimentRows(TypedDict):
    """An experiment with its results."""

    comparison: ComparisonRow | None
    experiment: ExperimentRow
    next: NotRequired[int | None]
    results: list[ResultRow]


class ExportRowInput(TypedDict):
    """A session as a file."""

    app: str
    created: str
    events: list[StoredRow]
    first: dict[str, Any]
    format: str
    format_version: int
    id: str
    labels: NotRequired[list[ExportedLabel]]
    oldest: int
    parent: NotRequired[ParentRow | None]
    shared: NotRequired[dict[str, Any]]
    values: dict[str, Any]
    version: int


class ExportedLabel(TypedDict):
    """A label of an exported session."""

    label: str
    version: int


class Fork(TypedDict):
    """A fork, with or without changes. A run that is open at the version waits in it until it is resumed, or continues at once."""

    arguments: NotRequired[dict[str, Any]]
    at: NotRequired[int | None]
    id: NotRequired[str | None]
    results: NotRequired[dict[str, Any]]
    run: NotRequired[bool]
    set: NotRequired[dict[str, Any]]


class ForkRow(TypedDict):
    """A fork."""

    created: str
    id: str
    version: int


class ForkRows(TypedDict):
    """The forks of a session."""

    forks: list[ForkRow]


class ForkedRow(TypedDict):
    """A session that was forked."""

    claimed: bool
    created: str
    forks: NotRequired[int | None]
    id: str
    imported: NotRequired[ImportedRow | None]
    not_continued: NotRequired[list[str]]
    oldest: int
    parent: ParentRow | None
    status: NotRequired[Status | None]
    title: NotRequired[str | None]
    updated: str
    version: int


class FoundMessageRow(TypedDict):
    """A message that a search has found."""

    at: str
    excerpt: str
    message: int
    role: str
    session: str
    tool: str | None
    version: int


class FoundMessages(TypedDict):
    """A page of found messages."""

    found: list[FoundMessageRow]
    next: int | None


class HookAnswerRow(TypedDict):
    """A call that a hook has answered."""

    call_id: str
    kind: ItemKind
    name: str
    place: int
    result: str


class HookRow(TypedDict):
    """The effects of the hooks of a point: the messages and the writes are those of the commit."""

    answers: NotRequired[list[HookAnswerRow]]
    point: str
    verdict: Any
    wrote: NotRequired[list[str]]


class ImportedRow(TypedDict):
    """The mark of an imported session. Its first commits are those of the file, with the authors and decisions that it names."""

    at: str
    by: str
    version: int


class InsideRow(TypedDict):
    """An agent inside of another one."""

    inside_of: list[str]
    instructions: NotRequired[str | None]
    lists_tools: bool
    model: str
    name: str
    output: NotRequired[OutputRow | None]
    refused_tools: list[RefusedToolRow]
    tools: list[ToolRow]


class ItemRow(TypedDict):
    """A call or a branch."""

    call_id: str
    kind: ItemKind
    name: str
    place: int


class LabelRow(TypedDict):
    """A label: the name of a version."""

    label: str
    version: int


class LabelRows(TypedDict):
    """The labels of a session."""

    labels: list[LabelRow]


class LabelSet(TypedDict):
    """A label that was set."""

    before: NotRequired[int | None]
    label: str
    version: int


class Labelled(TypedDict):
    """The version that a label names."""

    version: int


LeftOutRow = TypedDict("LeftOutRow", {"from": "int", "messages": "list[Any]", "summarised": "bool", "to": "int"})


class MeRow(TypedDict):
    """The caller."""

    name: str
    role: str
    user: str


class ModelOfRow(TypedDict):
    """A model, and the agents that have it."""

    agents: list[str]
    model: str


class ModelRow(TypedDict):
    """The request that a model was sent."""

    agent: str
    changes: NotRequired[list[WireChangeRow]]
    conversation: int
    cost: NotRequired[str | None]
    instructions: NotRequired[str | None]
    left_out: list[LeftOutRow]
    messages: list[ShownRow]
    model: str
    output: NotRequired[OutputRow | None]
    params: Any
    path: NotRequired[list[ItemRow]]
    reasons: list[str]
    reply: NotRequired[int | None]
    step: int
    tokens: TokensRow
    tool_choice: Any
    tools: list[OfferedRow]
    unknown: list[UnknownRow]
    usage: NotRequired[UsageRow | None]
    version: int
    wire: NotRequired[Any]


class Modification(TypedDict):
    """With what a call runs."""

    arguments: Any


class NewCases(TypedDict):
    """The turns to be added to a data set."""

    at: NotRequired[int | None]
    data_set: str
    session: str
    user: NotRequired[str | None]


class NewDecisions(TypedDict):
    """Decisions about requests."""

    decisions: dict[str, DecisionRow]
    with_changed_agent: NotRequired[bool]


class NewErasure(TypedDict):
    """The content to be erased, and the reason."""

    call: NotRequired[str | None]
    dry_run: NotRequired[bool]
    everything: NotRequired[bool]
    id: NotRequired[str | None]
    reason: str
    session: NotRequired[str | None]
    user: str
    vacuum: NotRequired[bool]
    versions: NotRequired[list[int]]


class NewExperiment(TypedDict):
    """An experiment to be run."""

    allow: NotRequired[list[str]]
    data_set: str
    instructions: NotRequired[str | None]
    judge: NotRequired[bool]
    max_requests: NotRequired[int | None]
    mode: NotRequired[ModeName]
    model: NotRequired[str | None]
    name: str
    repeats: NotRequired[int | None]
    set: NotRequired[list[str]]


class NewFile(TypedDict):
    """An image or a file of a message."""

    data: str
    media_type: str
    name: NotRequired[str | None]


class NewLimit(TypedDict):
    """A raise of a budget's limit."""

    budget: str
    limit: int
    session: NotRequired[str | None]
    user: NotRequired[str | None]


class NewMessage(TypedDict):
    """A message of the user."""

    files: NotRequired[list[NewFile]]
    text: str
    values: NotRequired[dict[str, Any]]
    when_busy: NotRequired[WhenBusy | None]


class NewOutcome(TypedDict):
    """An outcome that comes later."""

    error: NotRequired[str | None]
    result: NotRequired[Any]
    token: str


class NewSession(TypedDict):
    """A new session."""

    id: NotRequired[str | None]
    values: NotRequired[dict[str, Any]]


class OfModelRow(TypedDict):
    """The tokens of a model."""

    cost: NotRequired[str | None]
    model: str
    replies: int
    usage: UsageRow


class OfferedRow(TypedDict):
    """A tool that a model was offered."""

    description: str
    digest: str
    name: str
    parameters: Any
    tokens: int


class OpenAiError(TypedDict):
    """An error in the form of OpenAI."""

    code: str
    message: str
    param: str | None
    type: str


class OriginRow(TypedDict):
    """The origin of a value."""

    call_id: NotRequired[str]
    handler: str | None
    kind: str
    node: NotRequired[str | None]
    tool: NotRequired[str | None]
    version: int
    writes: int


class OutcomeRow(TypedDict):
    """The outcome of a call or a branch."""

    attempts: int
    call_id: str
    error: NotRequired[str | None]
    kind: ItemKind
    name: str
    result: NotRequired[Any]
    status: OutcomeStatus
    wrote: NotRequired[list[str]]


class OutputRow(TypedDict):
    """A requested output."""

    mode: str
    schema: Any


class PairRow(TypedDict):
    """A row of two sessions side by side."""

    left: NotRequired[int | None]
    right: NotRequired[int | None]
    same: bool


class ParentRow(TypedDict):
    """The origin of a fork."""

    id: str
    version: int


class PricesRow(TypedDict):
    """The prices of models."""

    currency: str
    models: Any


class Problem(TypedDict):
    """A problem document."""

    accepted: NotRequired[bool]
    actual: NotRequired[int | None]
    detail: str
    error: NotRequired[OpenAiError | None]
    expected: NotRequired[int | None]
    kind: str
    pending: NotRequired[list[str]]
    remedy: str
    status: int
    title: str
    type: str


class PromptCacheRow(TypedDict):
    """The requests to the model in a session."""

    requests: list[CachedRequestRow]


class QuestionRow(TypedDict):
    """A call about which a decision is requested. What waits now is in the session's `pending`."""

    call: CallRow
    message: NotRequired[str | None]


RaiseRow = TypedDict("RaiseRow", {"at": "str", "budget": "str", "by": "str", "from": "int", "scope": "str", "to": "int", "unit": "str", "user": "NotRequired[str | None]"})


class RaiseRows(TypedDict):
    """Raises of budgets."""

    raises: list[RaiseRow]


class RaisedRow(TypedDict):
    """A raised budget."""

    continues: bool
    declared: int
    limit: int
    name: str
    not_continued: NotRequired[list[str]]
    reserved: int
    scope: str
    spent: int
    unit: str
    until: NotRequired[str | None]
    window: str


class RefusedToolRow(TypedDict):
    """A tool that is not offered."""

    reason: str
    tool: str
    toolset: str


class Rejection(TypedDict):
    """Why a call does not run."""

    reason: NotRequired[str]


class ReplayRow(TypedDict):
    """The result of a replay."""

    first_divergence: str | None
    invocation: str | None
    runs: int | None
    same: bool
    version: int | None


class RequestRow(TypedDict):
    """A request that waits for a decision."""

    asked_again: NotRequired[bool]
    call: CallRow
    can_modify: bool
    changed: NotRequired[str | None]
    deadline: NotRequired[str | None]
    id: str
    inputs_from_state: NotRequired[Any]
    message: NotRequired[str | None]
    reason: Any
    schema: NotRequired[Any]
    text: str
    times: NotRequired[int | None]
    token: NotRequired[str | None]
    warnings: NotRequired[list[str] | None]


class ResultEdit(TypedDict):
    """Changes of calls."""

    arguments: NotRequired[dict[str, Any]]
    expected: int
    results: NotRequired[dict[str, Any]]


class ResultRow(TypedDict):
    """The result of a case."""

    case: str
    differs_at: int | None
    made: list[str]
    recorded: list[str]
    repeat: int
    status: str
    steps: int
    tokens: int
    why: str


class Resumption(TypedDict):
    """A resumption."""

    with_changed_agent: NotRequired[bool]


class Rewind(TypedDict):
    """A rewind."""

    expected: int
    to: int


class RunRow(TypedDict):
    """The result of a run."""

    budget: NotRequired[BudgetQuestionRow | None]
    exit: NotRequired[Any]
    invocation: str
    output: NotRequired[Any]
    pending: list[RequestRow]
    status: StatusRow
    text: str
    usage: UsageRow
    version: int


class SessionDetail(TypedDict):
    """A session, and what it waits for."""

    budget: NotRequired[BudgetQuestionRow | None]
    claimed: bool
    created: str
    forks: NotRequired[int | None]
    id: str
    imported: NotRequired[ImportedRow | None]
    inbox: list[WaitingRow]
    invalid: NotRequired[str | None]
    oldest: int
    parent: ParentRow | None
    pending: list[RequestRow]
    running: str | None
    status: NotRequired[Status | None]
    title: NotRequired[str | None]
    unfinished: bool
    updated: str
    version: int


class SessionRow(TypedDict):
    """A session in a list."""

    claimed: bool
    created: str
    forks: NotRequired[int | None]
    id: str
    imported: NotRequired[ImportedRow | None]
    oldest: int
    parent: ParentRow | None
    status: NotRequired[Status | None]
    title: NotRequired[str | None]
    updated: str
    version: int


class SessionRows(TypedDict):
    """A page of sessions."""

    next: NotRequired[str | None]
    sessions: list[SessionRow]


class ShownRow(TypedDict):
    """A message that a model was shown."""

    index: NotRequired[int | None]
    message: Any
    source: ShownSource
    tokens: int


class SpendRow(TypedDict):
    """The spend of a group."""

    cost: str
    estimated: int
    group: str
    input_tokens: int
    output_tokens: int
    requests: int
    unpriced: int


class SpendRows(TypedDict):
    """Spend on models."""

    by: GroupRow
    left_out: int
    spend: list[SpendRow]
    total: SumRow


class StateEdit(TypedDict):
    """Changes of values."""

    expected: int
    set: NotRequired[dict[str, Any]]
    unset: NotRequired[list[str]]


class StateRow(TypedDict):
    """The state of a session at a version."""

    changed_elsewhere: NotRequired[dict[str, OriginRow]]
    origin: NotRequired[dict[str, OriginRow] | None]
    values: dict[str, Any]
    version: int


class StoredRow(TypedDict):
    """A commit as it is stored."""

    at: int
    body: Any
    id: str
    version: int


class SumRow(TypedDict):
    """The sums of some requests to models."""

    cost: str
    estimated: int
    input_tokens: int
    output_tokens: int
    requests: int
    unpriced: int


class TokensRow(TypedDict):
    """An estimate of tokens."""

    instructions: int
    messages: int
    tools: int
    total: int


class ToolRow(TypedDict):
    """A tool."""

    agent: NotRequired[str | None]
    approval: str
    description: str
    digest: str
    effect: Any
    name: str
    parameters: Any


class TotalRow(TypedDict):
    """The tokens of a session, and their cost."""

    cost: NotRequired[str | None]
    currency: str
    models: list[OfModelRow]
    replies: int
    unpriced: list[str]
    usage: UsageRow
    version: int


class UnknownRow(TypedDict):
    """A part of what a model was shown that is not in the record."""

    part: ShownPart
    why: str


class UpgradeRow(TypedDict):
    """An unfinished run whose agent has changed."""

    continues: bool
    left: bool
    reasons: list[str]
    session: str
    status: str
    user: str
    version: int


class UpgradeRows(TypedDict):
    """The unfinished runs of an app, beside its agent."""

    checked: int
    compatible: int
    forced: int
    has_more: bool
    left: int
    pinned: int
    refused: int
    runs: list[UpgradeRow]
    unchanged: int


class UsageRow(TypedDict):
    """Token counts."""

    cached_input_tokens: int
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int


class WaitingRow(TypedDict):
    """A message in the inbox of a session."""

    at: str
    invocation: str
    joins: bool
    text: str


class WireChangeRow(TypedDict):
    """A difference between a conversation and the request to a model's server."""

    change: str
    message: NotRequired[int | None]


class WriteRow(TypedDict):
    """A write to the state."""

    call_id: NotRequired[str]
    handler: NotRequired[str | None]
    key: str
    node: NotRequired[str | None]
    tool: NotRequired[str | None]
    value: NotRequired[Any]


DecisionRow: TypeAlias = Literal["approve"] | dict[str, Rejection] | dict[str, Modification]
ExportForm: TypeAlias = Literal["json", "test"]
GroupRow: TypeAlias = Literal["session", "user", "model", "day"]
ItemKind: TypeAlias = Literal["tool", "node"]
ModeName: TypeAlias = Literal["replay", "next", "roll", "live", "recorded"]
OutcomeStatus: TypeAlias = Literal["done", "failed", "rejected", "cancelled", "unknown"]
ShownPart: TypeAlias = Literal["messages", "tools", "agent"]
ShownSource: TypeAlias = Literal["instructions", "conversation", "summary"]
Status: TypeAlias = Literal["running", "waiting", "interrupted", "failed", "idle", "invalid", "sealed", "deleted"]
StatusRow: TypeAlias = Literal["finished", "waiting", "suspended"]
WhenBusy: TypeAlias = Literal["wait", "steer", "interrupt", "refuse"]


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

    def list_apps(self) -> Apps:
        """Lists the apps."""
        return self._ask("GET", "/api/v1/apps", {})

    def read_app(self, app: str) -> AppDetail:
        """Reads an app."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}", {})

    def list_budgets(self, app: str, *, session: str | None = None, user: str | None = None) -> BudgetRows:
        """Lists budgets with their sums and limits: those of the principal's user; those that users share, and those of other users, for the role `raise_budgets`."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/budgets", {"session": session, "user": user})

    def raise_budget(self, app: str, body: NewLimit) -> RaisedRow:
        """Raises the limit of a budget for its current window, and continues a run that waits for it."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/budgets", {}, body)

    def list_raises(self, app: str, *, user: str | None = None) -> RaiseRows:
        """Lists raises of budgets, newest first: who raised which limit, when, from what to what. Those of the principal's user; all for the role `raise_budgets`."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/budgets/raises", {"user": user})

    def add_cases(self, app: str, body: NewCases) -> AddedCases:
        """Adds turns of stored sessions to a data set: of the principal, or of another user for an administrator."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/cases", {}, body)

    def delete_data_set(self, app: str, data_set: str, *, user: str | None = None) -> None:
        """Deletes a data set. Reports of its experiments stay; one that is under way keeps it."""
        return self._ask("DELETE", f"/api/v1/apps/{_part(app)}/data-sets/{_part(data_set)}", {"user": user})

    def list_erasures(self, app: str, *, after: int | None = None) -> ErasurePage:
        """Lists the records of erasures, oldest first: when, by whom and why, never of what."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/erasures", {"after": after})

    def erase(self, app: str, body: NewErasure) -> ErasureRow:
        """Erases content for good: events, a call, a session with its forks, or a user."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/erasures", {}, body)

    def list_experiments(self, app: str, *, under_way: bool | None = None, user: str | None = None) -> ExperimentList:
        """Lists the data sets and experiments of the principal."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/experiments", {"under_way": under_way, "user": user})

    def run_experiment(self, app: str, body: NewExperiment) -> ExperimentRow:
        """Accepts an experiment, which confronts the agent, or a changed one, with a data set. It is run in the background, and continues after a restart."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/experiments", {}, body)

    def delete_experiment(self, app: str, experiment: str, *, user: str | None = None) -> None:
        """Deletes an experiment. One that waits or runs is cancelled."""
        return self._ask("DELETE", f"/api/v1/apps/{_part(app)}/experiments/{_part(experiment)}", {"user": user})

    def read_experiment(self, app: str, experiment: str, *, after: int | None = None, baseline: str | None = None, user: str | None = None) -> ExperimentRows:
        """Reads an experiment with its results so far, and compares them with those of another one."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/experiments/{_part(experiment)}", {"after": after, "baseline": baseline, "user": user})

    def read_graph(self, app: str) -> Any:
        """Reads the nodes and edges of an app that is a graph."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/graph", {})

    def import_(self, app: str, body: ExportRowInput, *, id: str | None = None) -> SessionRow:
        """Creates a session from an export."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/import", {"id": id}, body)

    def search(self, app: str, *, query: str, after: int | None = None, limit: int | None = None, session: str | None = None) -> FoundMessages:
        """Finds messages by words, best first: in all sessions of the principal, or in one."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/search", {"query": query, "after": after, "limit": limit, "session": session})

    def list_sessions(self, app: str, *, after: str | None = None, limit: int | None = None, q: str | None = None, status: Status | None = None, stopped: bool | None = None) -> SessionRows:
        """Lists sessions, the one that was written last first."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions", {"after": after, "limit": limit, "q": q, "status": status, "stopped": stopped})

    def create_session(self, app: str, body: NewSession | None = None) -> SessionRow:
        """Creates a session."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions", {}, body or {})

    def delete_session(self, app: str, session: str, *, user_state: bool | None = None) -> None:
        """Deletes a session for good."""
        return self._ask("DELETE", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}", {"user_state": user_state})

    def read_session(self, app: str, session: str) -> SessionDetail:
        """Reads a session and what it waits for."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}", {})

    def abandon(self, app: str, session: str) -> EndRow:
        """Ends a run that waits, was interrupted or failed."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/abandon", {})

    def blame(self, app: str, session: str, *, key: str, at: int | None = None, before: int | None = None, limit: int | None = None) -> BlameRow:
        """Lists the writes of a key."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/blame", {"key": key, "at": at, "before": before, "limit": limit})

    def read_prompt_cache(self, app: str, session: str) -> PromptCacheRow:
        """Lists the requests to the model: the prefix that each shares with the one before, and what broke it."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/cache", {})

    def cancel(self, app: str, session: str) -> CancelRow:
        """Cancels the run, in any process."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/cancel", {})

    def compare(self, app: str, session: str, *, with_: str) -> CompareRow:
        """Compares a session with another one, such as a fork."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/compare", {"with": with_})

    def complete(self, app: str, session: str, body: NewOutcome) -> Completed:
        """Delivers the outcome of a call that came later, under its token."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/complete", {}, body)

    def decide(self, app: str, session: str, body: NewDecisions, *, idempotency_key: str | None = None) -> Decided:
        """Decides about requests, in one commit, and continues the run."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/decisions", {}, body, key=idempotency_key)

    def diff(self, app: str, session: str, *, from_: int, to: int | None = None) -> DiffRow:
        """Lists the changes between two versions."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/diff", {"from": from_, "to": to})

    def list_events(self, app: str, session: str, *, after: int | None = None, around: int | None = None, brief: bool | None = None, limit: int | None = None) -> EventRows:
        """Lists commits, in order."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/events", {"after": after, "around": around, "brief": brief, "limit": limit})

    def read_event(self, app: str, session: str, version: int) -> EventRow:
        """Reads a commit."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/events/{_part(version)}", {})

    def export(self, app: str, session: str, *, as_: ExportForm | None = None) -> Any:
        """Exports a session: whole as JSON, or as a scripted test."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/export", {"as": as_})

    def fork(self, app: str, session: str, body: Fork | None = None) -> ForkedRow:
        """Creates a session that shares the history up to a version."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/fork", {}, body or {})

    def list_forks(self, app: str, session: str) -> ForkRows:
        """Lists the forks of a session."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/forks", {})

    def list_labels(self, app: str, session: str) -> LabelRows:
        """Lists the labels of versions."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/labels", {})

    def remove_label(self, app: str, session: str, label: str) -> None:
        """Removes a label."""
        return self._ask("DELETE", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/labels/{_part(label)}", {})

    def set_label(self, app: str, session: str, label: str, body: Labelled) -> LabelSet:
        """Labels a version."""
        return self._ask("PUT", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/labels/{_part(label)}", {}, body)

    def send(self, app: str, session: str, body: NewMessage, *, idempotency_key: str | None = None) -> Accepted:
        """Accepts a message, and starts a run."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/messages", {}, body, key=idempotency_key)

    def withdraw(self, app: str, session: str, message: str) -> None:
        """Withdraws a message that was not taken yet."""
        return self._ask("DELETE", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/messages/{_part(message)}", {})

    def read_model_step(self, app: str, session: str, *, at: int | None = None, path: str | None = None, wire: bool | None = None) -> ModelRow:
        """Reads what the model was shown at a step."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/model", {"at": at, "path": path, "wire": wire})

    def replay(self, app: str, session: str) -> ReplayRow:
        """Replays every run without model and tools, and reports the first divergence."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/replay", {})

    def edit_results(self, app: str, session: str, body: ResultEdit, *, idempotency_key: str | None = None) -> Changed:
        """Changes recorded results, and arguments of calls that have not begun, of a run that is paused."""
        return self._ask("PATCH", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/results", {}, body, key=idempotency_key)

    def resume(self, app: str, session: str, body: Resumption | None = None) -> Accepted:
        """Continues a run that was interrupted or failed."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/resume", {}, body or {})

    def rewind(self, app: str, session: str, body: Rewind) -> Changed:
        """Goes back to a version; nothing is deleted."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/rewind", {}, body)

    def run(self, app: str, session: str, body: NewMessage, *, idempotency_key: str | None = None) -> RunRow:
        """Accepts a message, and waits for the result of its run."""
        return self._ask("POST", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/run", {}, body, key=idempotency_key)

    def read_state(self, app: str, session: str, *, at: int | None = None, origin: bool | None = None) -> StateRow:
        """Reads the state at a version."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/state", {"at": at, "origin": origin})

    def edit_state(self, app: str, session: str, body: StateEdit, *, idempotency_key: str | None = None) -> Changed:
        """Changes values between runs, or of a run that is paused."""
        return self._ask("PATCH", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/state", {}, body, key=idempotency_key)

    def read_usage(self, app: str, session: str, *, at: int | None = None) -> TotalRow:
        """Reads the tokens of a session and their cost."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/sessions/{_part(session)}/usage", {"at": at})

    def read_spend(self, app: str, *, all_users: bool | None = None, by: GroupRow | None = None, since_us: int | None = None, until_us: int | None = None) -> SpendRows:
        """Adds up what was spent on models under budgets."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/spend", {"all_users": all_users, "by": by, "since_us": since_us, "until_us": until_us})

    def check_upgrade(self, app: str, *, limit: int | None = None) -> UpgradeRows:
        """Checks the unfinished runs beside the agent of today: those of the principal, or of all users for an administrator."""
        return self._ask("GET", f"/api/v1/apps/{_part(app)}/upgrade", {"limit": limit})

    def login(self) -> None:
        """Sets a cookie with the bearer token of this request."""
        return self._ask("POST", "/api/v1/login", {})

    def logout(self) -> None:
        """Removes the cookie."""
        return self._ask("POST", "/api/v1/logout", {})

    def read_principal(self) -> MeRow:
        """Reads the user and the role of the caller."""
        return self._ask("GET", "/api/v1/me", {})

    def metrics(self) -> Any:
        """The metrics of this process, in the format of OpenMetrics."""
        return self._ask("GET", "/api/v1/metrics", {})

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
