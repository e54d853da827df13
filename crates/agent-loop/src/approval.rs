//! Approvals (human in the loop): the requests, and the decisions.
//!
//! Tools and the agent declare which calls need approval ([`Approval`](stepfold_tools::Approval)). No call of
//! a reply runs before all decisions about that reply are available. Otherwise the order of the decisions
//! would determine what a call reads, and the same step would not always give the same state.

use std::fmt::{self, Write as _};
use std::future::Future;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stepfold_state_core::canonical_json;
use stepfold_state_core::chat::{Arguments, ToolCall};
use stepfold_tools::{AnsweredRequest, Deadline, InputRequest, InputResponse, LaterRequest};

use crate::digest;
use crate::state_input::{StateInput, canonical_inputs};
use crate::stored_form::{check_format, first_format, is_first_format, is_once, once};

/// A request for approval of a call.
///
/// Stored with the run, so that a person is asked once, in whatever process the answer arrives.
#[doc(alias("interrupt", "human_in_the_loop", "deferred"))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredRequest", into = "StoredRequest")]
#[non_exhaustive]
pub struct ApprovalRequest {
    /// The id that a decision names, such as `c1#9f86d081884c7d65`: the place of the request, and a digest of its
    /// content.
    ///
    /// The first part is the id of the call, percent-encoded where it is more than letters, digits and `-._:`; of a
    /// question of a node, the branch and the label; of a request inside of an agent that is a tool or a node, the whole
    /// path, with `/` between its parts. The digest is over the run,
    /// the step, the tool or node, the arguments, and the values that the state adds to them. So an id is never used
    /// again for anything else, and a decision approves what was shown and nothing else.
    pub id: String,
    /// The call as it runs if it is approved: as the model made it, or with the arguments that an earlier decision gave it.
    pub call: ToolCall,
    /// The parameters that the state fills when the call runs, with their current values. If the values have changed when
    /// the call is about to start, it does not start: there is a new request.
    pub inputs_from_state: Vec<StateInput>,
    /// The reason of the request.
    pub reason: AskReason,
    /// The number of equal calls of the reply that the decision covers: more than one only for equal calls
    /// that are approved [once](stepfold_tools::Approval::Once).
    pub times: usize,
    /// The question of a tool to the user, if the request is [one](AskReason::Input). The arguments of `call` are its
    /// details.
    pub message: Option<String>,
    /// The token under which [an outcome that comes later](AskReason::Later) is delivered.
    pub token: Option<String>,
    /// When waiting for it ends.
    pub deadline: Option<SystemTime>,
    /// Whether sensitive parts of what is shown were [replaced](crate::Redact). A call that is approved runs with its original
    /// arguments in the process that has them; after a restart it does not run.
    pub is_redacted: bool,
    /// Whether the same call was asked about before, with another id: with other arguments or values, or for a tool that has
    /// changed since. Who saw that request has not seen this one.
    pub is_asked_again: bool,
    /// The difference of the tool from the one that was approved before, where its server lists it.
    pub change: Option<String>,
    /// Whether the call only may have started, if the request is about [one that may have happened](AskReason::MayHaveHappened): its
    /// tool was repeatable then, so that the record does not say that it had.
    pub is_start_uncertain: bool,
    /// The JSON Schema that modified arguments must fit, where a node or the question of a tool has given it.
    pub(crate) parameters: Option<Value>,
    /// The asking tool's own data, given back to it when it continues.
    pub(crate) state: Option<Value>,
}

impl ApprovalRequest {
    /// A request about one call.
    pub(crate) const fn new(id: String, call: ToolCall, reason: AskReason) -> Self {
        ApprovalRequest {
            id,
            call,
            inputs_from_state: Vec::new(),
            reason,
            times: 1,
            message: None,
            token: None,
            deadline: None,
            is_redacted: false,
            is_asked_again: false,
            change: None,
            is_start_uncertain: false,
            parameters: None,
            state: None,
        }
    }

    /// Whether other arguments can be decided on. A node may rule that out.
    pub fn can_modify(&self) -> bool {
        self.parameters != Some(Value::Bool(false))
    }

    /// The JSON Schema that the arguments of [`Decision::Modify`] must fit, where a node or the question of a tool has
    /// given it.
    pub fn schema(&self) -> Option<&Value> {
        self.parameters.as_ref().filter(|schema| **schema != Value::Bool(false))
    }

    /// The same request with the question as its tool asked it.
    pub(crate) fn with_question(&self, question: InputRequest) -> Self {
        let InputRequest { message, details, state, .. } = question;
        let call = ToolCall::new(&*self.call.id, &*self.call.name, Arguments::from(details));
        ApprovalRequest { message: Some(message), call, state, ..self.clone() }
    }

    /// The question of a tool, as it was asked.
    fn input_request(&self) -> InputRequest {
        let details = self.call.arguments.as_object().cloned().unwrap_or_default();
        let mut request = InputRequest::new(&*self.call.id, self.message.clone().unwrap_or_default());
        request.details = Value::Object(details);
        request.schema.clone_from(&self.parameters);
        request.state.clone_from(&self.state);
        let at = self.deadline.map(Deadline::At);
        request.later = self.token.clone().map(|token| LaterRequest::new(token, at));
        request
    }

    /// Whether it is for no person: an outcome comes later, or the deadline passes.
    pub fn is_later(&self) -> bool {
        self.reason == AskReason::Later
    }

    /// Whether the deadline has passed at this time.
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The question of a tool with the answer that a decision gives.
    pub(crate) fn answered(&self, decision: &Decision) -> AnsweredRequest {
        let response = match decision {
            Decision::Approve => InputResponse::Accept(Value::Object(Map::new())),
            Decision::Modify { arguments } => InputResponse::Accept(arguments.clone()),
            Decision::Reject { reason } => InputResponse::Decline { reason: reason.clone() },
            Decision::Complete { outcome } => InputResponse::Completed(outcome.clone()),
            Decision::Expire => InputResponse::Expired,
        };
        AnsweredRequest::new(self.input_request(), response)
    }
}

/// The reason of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AskReason {
    /// The tool or the agent requires approval of such calls.
    Rule,
    /// The call was started before a crash and may have had its effect. To approve it is to run it again.
    MayHaveHappened,
    /// A node of a graph requests it: [`OpenBranch::decision`](crate::plan::OpenBranch::decision). The call has the
    /// node's name and the subject; a modified one is passed to the node.
    Node,
    /// A tool asks the user something while it runs: [`ToolContext::ask`](stepfold_tools::ToolContext::ask). The call has
    /// the tool's name and what is shown beside the [message](ApprovalRequest::message). The decision is the answer:
    /// [`Decision::Modify`] with what the [schema](ApprovalRequest::schema) asks for, [`Decision::Approve`] where that is
    /// nothing, [`Decision::Reject`] to decline. The tool runs again with it.
    Input,
    /// The outcome of a call [comes later](stepfold_tools::ToolContext::later): it is delivered under the
    /// [token](ApprovalRequest::token), or the [deadline](ApprovalRequest::deadline) passes. No person is asked. The
    /// decision is [`Decision::Complete`], [`Decision::Reject`] with the reason of a failure, or [`Decision::Expire`].
    /// The tool runs again with it.
    Later,
}

impl AskReason {
    /// Whether a tool asks while it runs, and runs again with the answer.
    pub(crate) const fn is_of_running(self) -> bool {
        matches!(self, AskReason::Input | AskReason::Later)
    }
}

/// The reason of a request for approval, and the values from the state.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::{AskReason, ApprovalQuestion};
///
/// assert_eq!(serde_json::to_value(ApprovalQuestion::from(AskReason::Rule))?, json!("rule"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredQuestion", into = "StoredQuestion")]
#[non_exhaustive]
pub struct ApprovalQuestion {
    /// The reason.
    pub reason: AskReason,
    /// The parameters that the state fills.
    pub inputs_from_state: Vec<StateInput>,
    /// A digest of the tool as it was shown, where tools are listed at each step: a server may change it while the run waits.
    pub definition: Option<String>,
    /// The difference from the tool that was approved before, in words.
    pub change: Option<String>,
    /// The JSON Schema of its arguments, where tools are listed at each step: other arguments are checked by it while its server
    /// cannot be asked.
    pub parameters: Option<Value>,
}

impl ApprovalQuestion {
    pub(crate) const fn new(reason: AskReason, inputs_from_state: Vec<StateInput>) -> Self {
        ApprovalQuestion { reason, inputs_from_state, definition: None, change: None, parameters: None }
    }

    /// The question about a tool with this digest, which differs so from the one that was approved.
    pub(crate) fn about(self, definition: Option<String>, change: Option<String>) -> Self {
        ApprovalQuestion { definition, change, ..self }
    }

    /// The same with the schema of the tool's arguments.
    pub(crate) fn with_parameters(self, parameters: Option<Value>) -> Self {
        ApprovalQuestion { parameters, ..self }
    }
}

impl From<AskReason> for ApprovalQuestion {
    fn from(reason: AskReason) -> Self {
        ApprovalQuestion::new(reason, Vec::new())
    }
}

/// The stored form: the reason alone if there is nothing else.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredQuestion {
    Reason(AskReason),
    Whole {
        reason: AskReason,
        // NOTE: Also where it is empty: earlier versions require it.
        inputs_from_state: Vec<StateInput>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        definition: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        change: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parameters: Option<Value>,
    },
}

impl From<ApprovalQuestion> for StoredQuestion {
    fn from(question: ApprovalQuestion) -> Self {
        let ApprovalQuestion { reason, inputs_from_state, definition, change, parameters } = question;
        let has_tool = definition.is_some() || change.is_some() || parameters.is_some();
        match inputs_from_state.is_empty() && !has_tool {
            true => StoredQuestion::Reason(reason),
            false => StoredQuestion::Whole { reason, inputs_from_state, definition, change, parameters },
        }
    }
}

impl From<StoredQuestion> for ApprovalQuestion {
    fn from(stored: StoredQuestion) -> Self {
        match stored {
            StoredQuestion::Reason(reason) => reason.into(),
            StoredQuestion::Whole { reason, inputs_from_state, definition, change, parameters } => {
                ApprovalQuestion { reason, inputs_from_state, definition, change, parameters }
            }
        }
    }
}

/// A decision about a call. Input that cannot be parsed as one of these is not a decision.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_agent_loop::Decision;
///
/// assert_eq!(serde_json::to_value(Decision::Approve)?, json!("approve"));
/// assert_eq!(serde_json::to_value(Decision::reject("too much"))?, json!({"reject": {"reason": "too much"}}));
/// assert!(serde_json::from_value::<Decision>(json!("yes")).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[doc(alias("Command", "confirmation"))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Decision {
    /// The call runs.
    Approve,
    /// The call does not run; the model reads why.
    Reject {
        /// The reason, for the model. May be empty.
        #[serde(default)]
        reason: String,
    },
    /// The call runs with these arguments. The model's message is unchanged; the result mentions the change.
    Modify {
        /// The arguments, a JSON object that fits the tool's schema.
        arguments: Value,
    },
    /// The outcome of a call that [came later](AskReason::Later).
    Complete {
        /// The outcome.
        outcome: Value,
    },
    /// The deadline of such a call has passed. Given by the host that keeps the time.
    Expire,
}

impl Decision {
    /// The call does not run; the model reads why.
    pub fn reject(reason: impl Into<String>) -> Self {
        Decision::Reject { reason: reason.into() }
    }

    /// The decision, in one word.
    pub(crate) const fn verb(&self) -> &'static str {
        match self {
            Decision::Approve => "approved",
            Decision::Reject { .. } => "rejected",
            Decision::Modify { .. } => "modified",
            Decision::Complete { .. } => "completed",
            Decision::Expire => "expired",
        }
    }

    /// The outcome of a call that [came later](AskReason::Later).
    pub fn complete(outcome: impl Into<Value>) -> Self {
        Decision::Complete { outcome: outcome.into() }
    }

    /// Whether it is one about a call that waits for an outcome, or not.
    pub(crate) const fn is_for(&self, reason: AskReason) -> bool {
        match self {
            Decision::Approve | Decision::Modify { .. } => !matches!(reason, AskReason::Later),
            Decision::Complete { .. } | Decision::Expire => matches!(reason, AskReason::Later),
            Decision::Reject { .. } => true,
        }
    }

    /// The call runs with these arguments.
    pub fn modify(arguments: impl Into<Value>) -> Self {
        Decision::Modify { arguments: arguments.into() }
    }
}

impl fmt::Display for Decision {
    /// The decision about a call, such as `rejected: too dear`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Reject { reason } if !reason.is_empty() => write!(f, "rejected: {reason}"),
            Decision::Modify { arguments } => write!(f, "approved with {arguments}"),
            Decision::Complete { outcome } => write!(f, "completed: {outcome}"),
            Decision::Approve | Decision::Reject { .. } | Decision::Expire => f.write_str(self.verb()),
        }
    }
}

/// Decides about calls while the run waits: a prompt, a policy, a test.
///
/// Called by the driver with all open requests, repeatedly until none is open or no new decision is made.
/// Requests without a decision stay open: the run then pauses, and the answers may come later. An async
/// closure is an approver, too.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{ApprovalRequest, Approver, Decision};
///
/// /// Lets small orders pass and leaves the others to a human.
/// struct SmallOrders;
///
/// impl Approver for SmallOrders {
///     async fn decide(&self, requests: Vec<ApprovalRequest>) -> Vec<(String, Decision)> {
///         let is_small = |request: &ApprovalRequest| {
///             request.call.arguments.as_object().is_some_and(|arguments| arguments["amount"].as_u64() < Some(100))
///         };
///         requests.into_iter().filter(is_small).map(|request| (request.id, Decision::Approve)).collect()
///     }
/// }
/// ```
pub trait Approver: Send + Sync {
    /// Decides about some of the requests, each by its [id](ApprovalRequest::id).
    fn decide(&self, requests: Vec<ApprovalRequest>) -> impl Future<Output = Vec<(String, Decision)>> + Send;
}

impl<F, Fut> Approver for F
where
    F: Fn(Vec<ApprovalRequest>) -> Fut + Send + Sync,
    Fut: Future<Output = Vec<(String, Decision)>> + Send,
{
    fn decide(&self, requests: Vec<ApprovalRequest>) -> impl Future<Output = Vec<(String, Decision)>> + Send {
        self(requests)
    }
}

/// The erased twin of [`Approver`].
pub(crate) trait DynApprover: Send + Sync {
    fn decide_boxed(&self, requests: Vec<ApprovalRequest>) -> BoxFuture<'_, Vec<(String, Decision)>>;
}

impl<A: Approver> DynApprover for A {
    fn decide_boxed(&self, requests: Vec<ApprovalRequest>) -> BoxFuture<'_, Vec<(String, Decision)>> {
        Box::pin(self.decide(requests))
    }
}

/// The place and the content of a request: everything that distinguishes it from every other one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSubject<'a> {
    /// The recorded id of the run.
    pub(crate) run: &'a str,
    /// The step, or the superstep of a graph.
    pub(crate) step: u64,
    /// The place of the call or branch in the step.
    pub(crate) place: usize,
    /// The number of earlier requests about this call or branch, after crashes for instance.
    pub(crate) round: u32,
    pub(crate) reason: AskReason,
    /// The tool or the node.
    pub(crate) name: &'a str,
    /// The number of equal calls.
    pub(crate) times: usize,
    /// The values that the state adds to the call.
    pub(crate) inputs: &'a [StateInput],
}

impl<'a> RequestSubject<'a> {
    /// The subject of a question of a branch, at a place, of a node.
    pub(crate) const fn of_node(
        run: &'a str,
        step: u64,
        (place, node): (usize, &'a str),
        round: u32,
    ) -> Self {
        let reason = AskReason::Node;
        RequestSubject { run, step, place, round, reason, name: node, times: 1, inputs: &[] }
    }
}

impl RequestSubject<'_> {
    /// The id of a request about this at a path.
    pub(crate) fn id(&self, path: &str, about: &Arguments) -> String {
        match about.as_object() {
            Some(arguments) => self.id_over(path, &stepfold_state_core::canonical_object(arguments)),
            None => self.id_over(path, &about.to_text()),
        }
    }

    /// The same about any value.
    pub(crate) fn id_about(&self, path: &str, about: &Value) -> String {
        self.id_over(path, &canonical_json(about))
    }

    fn id_over(&self, path: &str, content: &str) -> String {
        let (step, place, round) = (self.step.to_string(), self.place.to_string(), self.round.to_string());
        let reason = match self.reason {
            AskReason::Rule => "rule",
            AskReason::MayHaveHappened => "may_have_happened",
            AskReason::Node => "node",
            AskReason::Input => "input",
            AskReason::Later => "later",
        };
        let (times, inputs) = (self.times.to_string(), canonical_inputs(self.inputs));
        let mut parts = vec![self.run, &step, &place, &round, reason, self.name, path, content];
        if self.times > 1 {
            parts.push(&times);
        }
        if !inputs.is_empty() {
            parts.push(&inputs);
        }
        format!("{path}#{}", digest::of_parts(&parts))
    }
}

/// The id of a request for a record that is continued with another prefix of idempotency keys: decisions for
/// one prefix do not apply to another.
pub(crate) fn id_within(scope: &str, id: &str) -> String {
    let (path, _) = id.rsplit_once('#').unwrap_or((id, ""));
    format!("{path}#{}", digest::of_parts(&[scope, id]))
}

/// The id of a call as a part of a path. Servers choose it, so whatever is not a letter, a digit or one of `-._:` is
/// percent-encoded: no call looks like the digest of another request, or like the path of something inside.
pub(crate) fn path_of_call(call_id: &str) -> String {
    call_id.bytes().fold(String::with_capacity(call_id.len()), |mut path, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b':' => path.push(byte.into()),
            // Writing to a string cannot fail.
            byte => drop(write!(path, "%{byte:02X}")),
        }
        path
    })
}

/// The path of something inside of something else.
pub(crate) fn nested_path(outer: &str, inner: &str) -> String {
    format!("{outer}/{inner}")
}

/// The text for the model about a rejected call.
pub(crate) fn rejection_text(tool: &str, reason: &str) -> String {
    match reason.trim() {
        "" => format!("tool '{tool}' not run: the call was rejected"),
        reason => format!("tool '{tool}' not run: the call was rejected: {reason}"),
    }
}

/// The note for the model beside the result of a call whose arguments were changed.
pub(crate) fn modification_note(arguments: &Arguments) -> String {
    format!("{MODIFIED}{}]", arguments.to_text())
}

const MODIFIED: &str = "[The arguments were changed before the call ran, to ";

/// Whether a text is a note about changed arguments.
pub(crate) fn is_modification_note(text: &str) -> bool {
    text.starts_with(MODIFIED)
}

/// The newest format of a stored request. The first one does not say its number.
const REQUEST_FORMAT: u32 = 1;

/// The stored form: the call by its parts, since a call has no form of its own outside a message.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredRequest {
    #[serde(default = "first_format", skip_serializing_if = "is_first_format")]
    format: u32,
    id: String,
    call_id: String,
    tool: String,
    arguments: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs_from_state: Vec<StateInput>,
    reason: AskReason,
    #[serde(default = "once", skip_serializing_if = "is_once")]
    times: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// In microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    asked_again: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    start_uncertain: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameters: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Value>,
}

/// Microseconds since 1970; 0 for what was before.
fn micros(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The time of so many microseconds since 1970, if there is such a time.
fn of_micros(at: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(at))
}

/// As it is stored.
pub(crate) fn whole_micros(at: SystemTime) -> SystemTime {
    of_micros(micros(at)).unwrap_or(at)
}

impl From<ApprovalRequest> for StoredRequest {
    fn from(request: ApprovalRequest) -> Self {
        let ApprovalRequest { id, call, inputs_from_state, reason, times, message, .. } = request;
        let ApprovalRequest {
            token,
            deadline,
            is_redacted,
            is_asked_again,
            change,
            is_start_uncertain,
            parameters,
            state,
            ..
        } = request;
        StoredRequest {
            format: REQUEST_FORMAT,
            id,
            // NOTE: As text: arguments that are not JSON must be read back as the model sent them.
            arguments: call.arguments.to_text().into_owned(),
            call_id: call.id,
            tool: call.name,
            inputs_from_state,
            reason,
            times,
            message,
            token,
            deadline: deadline.map(micros),
            redacted: is_redacted,
            asked_again: is_asked_again,
            change,
            start_uncertain: is_start_uncertain,
            parameters,
            state,
        }
    }
}

/// Refuses a newer format.
impl TryFrom<StoredRequest> for ApprovalRequest {
    type Error = serde::de::value::Error;

    fn try_from(stored: StoredRequest) -> Result<Self, Self::Error> {
        let StoredRequest { format, id, call_id, tool, arguments, inputs_from_state, .. } = stored;
        let StoredRequest { reason, times, message, token, deadline, .. } = stored;
        let StoredRequest { redacted, asked_again, change, start_uncertain, parameters, state, .. } = stored;
        check_format::<Self::Error>("an approval request", format, REQUEST_FORMAT)?;
        let deadline = deadline.and_then(of_micros);
        let call = ToolCall::new(call_id, tool, Arguments::parse(arguments));
        Ok(ApprovalRequest {
            id,
            call,
            inputs_from_state,
            reason,
            times,
            message,
            token,
            deadline,
            is_redacted: redacted,
            is_asked_again: asked_again,
            change,
            is_start_uncertain: start_uncertain,
            parameters,
            state,
        })
    }
}
