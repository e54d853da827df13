//! The rows of the API: its own shapes of sessions and commits, apart from what is stored.

mod app;
mod budget;
mod convert;
mod event;
pub(super) mod import_mark;
pub(super) mod overview;
pub(super) mod pricing;
mod request;
pub(super) mod row_builder;
mod run;
mod session;
pub(super) mod session_status;
mod state;
pub(super) mod upgrade;

pub(super) use self::app::{
    AgentRow, AppDetail, AppRow, Apps, InsideRow, MeRow, ModelOfRow, OutputRow, PricesRow, RefusedToolRow,
    ToolRow,
};
pub(super) use self::budget::BudgetQuestionRow;
pub(super) use self::convert::{exit, json, short};
pub(super) use self::event::{EventRow, EventRows, ItemRow, UsageRow, WriteRow, WriterRow};
pub(super) use self::request::{CallRow, DecisionRow, RequestRow};
pub(super) use self::run::{Accepted, Decided, RunRow};
pub(super) use self::session::{ParentRow, SessionDetail, SessionRow, SessionRows, WaitingRow};
pub(super) use self::state::{BlameRow, BlamedWrite, ChangeRow, DiffRow, OriginRow, StateRow};
pub(super) use self::upgrade::UpgradeRows;
