//! The stand-in for OAuth without its feature.

use rmcp::service::ServiceError;

use crate::http::AuthorizationDenied;

/// Has no value: without the feature, no server has an authorization.
pub(crate) enum ServerAuthorization {}

impl ServerAuthorization {
    pub(crate) fn sign_ins(&self) -> u64 {
        match *self {}
    }

    pub(crate) async fn client(&self, _: reqwest::Client) -> Result<reqwest::Client, String> {
        match *self {}
    }

    pub(crate) async fn reload(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) async fn authorize(&self, _: &str, _: u64) -> Result<(), AuthorizationDenied> {
        match *self {}
    }

    pub(crate) fn redact(&self, _: &str) -> String {
        match *self {}
    }
}

pub(crate) fn not_sent(_: &ServiceError) -> Option<&ServiceError> {
    None
}
