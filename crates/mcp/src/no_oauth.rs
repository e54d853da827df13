//! What stands for OAuth without the feature: there is none.

use rmcp::service::ServiceError;

use crate::http::Denied;

/// Without the feature nothing is authorized.
pub(crate) enum Authorization {}

impl Authorization {
    pub(crate) fn sign_ins(&self) -> u64 {
        match *self {}
    }

    pub(crate) async fn client(&self, _: reqwest::Client) -> Result<reqwest::Client, String> {
        match *self {}
    }

    pub(crate) async fn reload(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) async fn authorize(&self, _: &str, _: u64) -> Result<(), Denied> {
        match *self {}
    }

    pub(crate) fn shown(&self, _: &str) -> String {
        match *self {}
    }
}

pub(crate) fn not_sent(_: &ServiceError) -> Option<&ServiceError> {
    None
}
