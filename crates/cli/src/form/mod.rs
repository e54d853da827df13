//! The forms of agent files and graph files: their fields, read with lines, and the faults in them.

pub(crate) mod agent;
pub(crate) mod budget;
mod by_type;
mod faults;
pub(crate) mod graph;
mod nearest;
mod placeholders;
pub(crate) mod rate_limit;
mod read;
pub(crate) mod redact;
pub(crate) mod retention;
mod schema;

pub(crate) use self::faults::{FaultCollector, FileFaults};
pub(crate) use self::nearest::{near, nearest, unknown_key};
pub(crate) use self::placeholders::check_closed;
pub(crate) use self::read::read;
pub(crate) use self::schema::json_schema;
