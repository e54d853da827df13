//! Points in time, as callers give them: this crate reads no clock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Microseconds since 1970, UTC. Stored as that number, printed as RFC 3339.
///
/// Events are ordered by their version, never by this.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::Timestamp;
///
/// let at = Timestamp::from_micros(1_700_000_000_250_000);
/// assert_eq!(at.to_string(), "2023-11-14T22:13:20.250000Z");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// This many microseconds after (or before) the beginning of 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the beginning of 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This much later; at the end of time it stays there.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_add(micros(duration)))
    }

    /// This much earlier; at the beginning of time it stays there.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Timestamp(self.0.saturating_sub(micros(duration)))
    }
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp(micros(since)),
            Err(earlier) => Timestamp(micros(earlier.duration()).saturating_neg()),
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let since = Duration::from_micros(at.0.unsigned_abs());
        let time = if at.0 < 0 { UNIX_EPOCH.checked_sub(since) } else { UNIX_EPOCH.checked_add(since) };
        time.unwrap_or(UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SECOND: i64 = 1_000_000;
        let (seconds, fraction) = (self.0.div_euclid(SECOND), self.0.rem_euclid(SECOND));
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:06}Z")
    }
}

/// Year, month and day of a day counted from 1970. The year is taken to begin in March, so that the odd
/// day of leap years comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_dates_that_are_easily_got_wrong() {
        let day = 86_400_000_000;
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (11_016 * day, "2000-02-29T00:00:00.000000Z"),
            (47_540 * day, "2100-02-28T00:00:00.000000Z"),
            (47_541 * day, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Timestamp(micros).to_string(), text);
        }
    }

    #[test]
    fn saturates_at_both_ends() {
        assert_eq!(Timestamp(i64::MAX).after(Duration::MAX), Timestamp(i64::MAX));
        assert_eq!(Timestamp(i64::MIN).before(Duration::MAX), Timestamp(i64::MIN));
        let time = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(time), Timestamp(-1_000_000));
    }
}
