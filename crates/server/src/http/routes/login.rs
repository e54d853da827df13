//! Cookies for browsers, whose event streams send no header.

use axum::response::NoContent;
use http::{HeaderName, HeaderValue, header};

use crate::http::guard::gate::cookie_name;
use crate::http::guard::problem::Problem;
use crate::http::operation::admission::bearer;
use crate::http::operation::request::{ApiRequest, WholeServer};

/// A cookie to keep.
type CookieReply = ([(HeaderName, HeaderValue); 1], NoContent);

pub(super) async fn login(request: ApiRequest<WholeServer>) -> Result<CookieReply, Problem> {
    let token = bearer(&request.headers).ok_or_else(Problem::unauthenticated)?;
    set(&request, token, "")
}

pub(super) async fn logout(request: ApiRequest<WholeServer>) -> Result<CookieReply, Problem> {
    set(&request, "", "; Max-Age=0")
}

fn set(request: &ApiRequest<WholeServer>, value: &str, rest: &str) -> Result<CookieReply, Problem> {
    let name = cookie_name(&request.headers);
    let secure = if request.shared.has_secure_cookies { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{rest}");
    let cookie = HeaderValue::from_str(&cookie).map_err(|error| Problem::invalid("token", error))?;
    Ok(([(header::SET_COOKIE, cookie)], NoContent))
}
