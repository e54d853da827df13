//! The wait that a server requests in its headers.

use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;

/// The requested wait before the next request, if the headers have one.
///
/// `Retry-After` in seconds, fractions included, or as a date; `retry-after-ms`; else the time until the
/// exhausted one of the counters `x-ratelimit-*` is filled up.
pub(super) fn retry_after(headers: &HeaderMap, now: impl Fn() -> SystemTime) -> Option<Duration> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = header("retry-after-ms").and_then(|text| duration(text.parse::<f64>().ok()? / 1000.0));
    let requested = milliseconds.or_else(|| {
        let text = header("retry-after")?;
        if let Ok(seconds) = text.parse::<f64>() {
            return duration(seconds);
        }
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(now()).unwrap_or_default())
    });
    if requested.is_some() {
        return requested;
    }
    let waits = ["requests", "tokens"].into_iter().filter_map(|what| {
        let remaining = header(&format!("x-ratelimit-remaining-{what}"))?.parse::<f64>().ok()?;
        let reset = header(&format!("x-ratelimit-reset-{what}"))?;
        // NOTE: A counter that is not exhausted also has a reset time, which is no reason to wait.
        if remaining <= 0.0 { parse_units(reset) } else { None }
    });
    waits.max()
}

/// Seconds, if they are a time one can wait.
fn duration(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.max(0.0)).ok()
}

/// A time such as `6m0s`, `1.5s` or `20ms`; a bare number is seconds.
pub(super) fn parse_units(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, more) = rest.split_at(digits);
        let letters = more.find(|c: char| c.is_ascii_digit()).unwrap_or(more.len());
        let (unit, after) = more.split_at(letters);
        let factor = match unit {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total = total.checked_add(duration(number.parse::<f64>().ok()? * factor)?)?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn check(headers: &[(&'static str, &'static str)], expected: Option<f64>) {
        let headers: HeaderMap = headers
            .iter()
            .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let now = || SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 5);
        assert_eq!(retry_after(&headers, now).map(|wait| wait.as_secs_f64()), expected, "{headers:?}");
    }

    #[test]
    fn seconds_dates_and_counters() {
        check(&[], None);
        check(&[("retry-after", "7")], Some(7.0));
        check(&[("retry-after", " 0.25 ")], Some(0.25));
        check(&[("retry-after", "-3")], Some(0.0));
        check(&[("retry-after", "soon")], None);
        check(&[("retry-after", "1e300")], None);
        check(&[("retry-after", "NaN")], Some(0.0));
        check(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], Some(5.0));
        check(&[("retry-after", "Sat, 06 Nov 1993 08:49:37 GMT")], Some(0.0));
        check(&[("retry-after-ms", "1500"), ("retry-after", "2")], Some(1.5));
        // What cannot be read does not hide what can.
        check(&[("retry-after-ms", "inf"), ("retry-after", "2")], Some(2.0));
        check(
            &[
                ("retry-after", "soon"),
                ("x-ratelimit-remaining-tokens", "0"),
                ("x-ratelimit-reset-tokens", "2s"),
            ],
            Some(2.0),
        );
        let counters = |requests, tokens| {
            [
                ("x-ratelimit-remaining-requests", requests),
                ("x-ratelimit-reset-requests", "1m0.5s"),
                ("x-ratelimit-remaining-tokens", tokens),
                ("x-ratelimit-reset-tokens", "20ms"),
            ]
        };
        check(&counters("1", "5"), None);
        check(&counters("1", "0"), Some(0.02));
        check(&counters("0", "0"), Some(60.5));
        check(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "2030-01-01")], None);
    }
}
