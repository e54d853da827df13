//! Windows of budgets: days and months of a time zone, by the rules that are compiled in.

use std::fmt;
use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use stepfold_session_scopes::Timestamp;
use thiserror::Error;

/// An invalid budget.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The name of the time zone is unknown.
    #[error("unknown time zone `{name}`; use a name of the IANA database, such as Europe/Berlin or UTC")]
    UnknownTimeZone {
        /// The name.
        name: String,
    },
    /// The instant has no date.
    #[error("the time {at} is outside of the calendar; check the clock")]
    OutsideCalendar {
        /// The instant.
        at: Timestamp,
    },
}

/// The time for which a budget counts. A new window begins with nothing spent; a rolling one has no beginning.
///
/// A request belongs to the window in which it was sent, also if its reply comes after the end.
///
/// # Examples
/// ```
/// use stepfold_runner::BudgetWindow;
///
/// let window = BudgetWindow::day("Europe/Berlin")?;
/// assert_eq!(window.to_string(), "day in Europe/Berlin");
/// assert!(BudgetWindow::month("Europe/Berlyn").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetWindow(WindowKind);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum WindowKind {
    #[default]
    Ever,
    Calendar(WindowLength, TimeZone),
    /// So many hours until now.
    Hours(u32),
    /// The minute until now.
    Minute,
}

/// The parts of a rolling window. The oldest leaves at once, so that a little more than the window counts.
const PARTS: i64 = 12;

/// The later parts that count as well: of workers whose clocks are ahead, and of those that were faster to reserve.
const AHEAD: i64 = 4;

/// The time for which the sums of an ended window are kept: clocks of workers may be late by less than that.
const KEPT: Duration = Duration::from_secs(48 * 3_600);

/// The same for the parts of a rolling window.
const KEPT_PART: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowLength {
    Day,
    Month,
}

/// A window at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentWindow {
    /// Its name, which differs from those of all other windows.
    pub(crate) name: String,
    /// Its end, or that of its current part; `None` if it has none.
    pub(crate) until: Option<Timestamp>,
    /// The time from which its sums count for nothing, by any clock; `None` if it has no end.
    pub(crate) kept_until: Option<Timestamp>,
    /// Of a rolling window.
    pub(crate) rolling: Option<RollingParts>,
}

/// The names around the current part of a rolling window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RollingParts {
    /// The name of the window as a whole, in which all workers reserve nothing.
    pub(crate) whole: String,
    /// The names of the other parts: the earlier ones, and some that come next by the clocks of others.
    pub(crate) beside: Vec<String>,
}

impl BudgetWindow {
    /// No window: the budget counts for ever.
    pub const fn ever() -> Self {
        BudgetWindow(WindowKind::Ever)
    }

    /// A day, from midnight to midnight in a time zone of the IANA database. It has 23 or 25 hours where clocks change.
    ///
    /// # Errors
    /// [`BudgetError::UnknownTimeZone`].
    pub fn day(time_zone: &str) -> Result<Self, BudgetError> {
        Ok(BudgetWindow(WindowKind::Calendar(WindowLength::Day, zone(time_zone)?)))
    }

    /// A month of the calendar, in a time zone of the IANA database.
    ///
    /// # Errors
    /// [`BudgetError::UnknownTimeZone`].
    pub fn month(time_zone: &str) -> Result<Self, BudgetError> {
        Ok(BudgetWindow(WindowKind::Calendar(WindowLength::Month, zone(time_zone)?)))
    }

    /// A rolling window of so many hours until now, at least one. It leaves in twelve parts, so that up to a twelfth more
    /// than the window counts, and never less.
    pub fn hours(hours: u32) -> Self {
        BudgetWindow(WindowKind::Hours(hours.max(1)))
    }

    /// The minute until now, of a rate limit. It leaves in twelve parts as well.
    pub(crate) const fn minute() -> Self {
        BudgetWindow(WindowKind::Minute)
    }

    /// The names of the windows that are open at an instant or, of a rolling one, of its current and its coming parts: all
    /// in which requests of the next window's length may count.
    pub(crate) fn names_from(&self, at: Timestamp) -> Result<Vec<String>, BudgetError> {
        Ok(match &self.0 {
            WindowKind::Hours(hours) => {
                let (_, part) = part_at(hours_in_seconds(*hours), at);
                (part..part + PARTS).map(|part| part_name(&hours_name(*hours), part)).collect()
            }
            _ => vec![self.at(at)?.name],
        })
    }

    /// The window at an instant.
    pub(crate) fn at(&self, at: Timestamp) -> Result<CurrentWindow, BudgetError> {
        let (length, zone) = match &self.0 {
            WindowKind::Ever => {
                let name = "ever".to_owned();
                return Ok(CurrentWindow { name, until: None, kept_until: None, rolling: None });
            }
            WindowKind::Hours(hours) => {
                return Ok(rolling(&hours_name(*hours), hours_in_seconds(*hours), at));
            }
            WindowKind::Minute => return Ok(rolling("60s", 60, at)),
            WindowKind::Calendar(length, zone) => (length, zone),
        };
        let outside = |_| BudgetError::OutsideCalendar { at };
        let instant = jiff::Timestamp::from_microsecond(at.as_micros()).map_err(outside)?;
        let today = instant.to_zoned(zone.clone()).date();
        let (first, next) = match length {
            WindowLength::Day => (today, today.tomorrow().map_err(outside)?),
            WindowLength::Month => {
                let first = today.first_of_month();
                (first, first.checked_add(1.month()).map_err(outside)?)
            }
        };
        // NOTE: where midnight does not exist, the day begins with the first instant after it.
        let until = next.to_zoned(zone.clone()).map_err(outside)?.timestamp().as_microsecond();
        let name = format!("{}[{}]", date_name(first, *length), zone_name(zone));
        let until = Timestamp::from_micros(until);
        Ok(CurrentWindow { name, until: Some(until), kept_until: Some(until.after(KEPT)), rolling: None })
    }
}

impl fmt::Display for BudgetWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            WindowKind::Ever => f.write_str("ever"),
            WindowKind::Hours(hours) => write!(f, "{hours} hours"),
            WindowKind::Minute => f.write_str("minute"),
            WindowKind::Calendar(WindowLength::Day, zone) => write!(f, "day in {}", zone_name(zone)),
            WindowKind::Calendar(WindowLength::Month, zone) => write!(f, "month in {}", zone_name(zone)),
        }
    }
}

/// A rolling window of this many seconds, named by its length.
fn rolling(length_name: &str, seconds: u32, at: Timestamp) -> CurrentWindow {
    let (length, part) = part_at(seconds, at);
    let name = |part| part_name(length_name, part);
    let beside = (part - PARTS..part).chain(part + 1..=part + AHEAD).map(name).collect();
    let until = Timestamp::from_micros((part + 1).saturating_mul(length));
    let kept_until = until.after(Duration::from_secs(u64::from(seconds)) + KEPT_PART);
    let rolling = RollingParts { whole: length_name.to_owned(), beside };
    CurrentWindow {
        name: name(part),
        until: Some(until),
        kept_until: Some(kept_until),
        rolling: Some(rolling),
    }
}

fn hours_name(hours: u32) -> String {
    format!("{hours}h")
}

const fn hours_in_seconds(hours: u32) -> u32 {
    hours.saturating_mul(3_600)
}

/// The length of a part of a rolling window in microseconds, and the number of the current one.
const fn part_at(seconds: u32, at: Timestamp) -> (i64, i64) {
    let length = seconds as i64 * 1_000_000 / PARTS;
    (length, at.as_micros().div_euclid(length))
}

fn part_name(length_name: &str, part: i64) -> String {
    format!("{length_name}@{part}")
}

fn date_name(first: Date, length: WindowLength) -> String {
    match length {
        WindowLength::Day => first.to_string(),
        WindowLength::Month => format!("{:04}-{:02}", first.year(), first.month()),
    }
}

fn zone(name: &str) -> Result<TimeZone, BudgetError> {
    TimeZone::get(name).map_err(|_| BudgetError::UnknownTimeZone { name: name.to_owned() })
}

fn zone_name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_micros(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
    }

    fn check(window: &BudgetWindow, instant: &str, name: &str, until: &str) {
        let found = window.at(at(instant)).unwrap();
        let (until, kept_until) = (Some(at(until)), Some(at(until).after(KEPT)));
        let expected = CurrentWindow { name: name.to_owned(), until, kept_until, rolling: None };
        assert_eq!(found, expected, "{window} at {instant}");
    }

    #[test]
    fn days_end_at_midnight_of_their_zone() {
        let berlin = BudgetWindow::day("Europe/Berlin").unwrap();
        check(&berlin, "2026-11-28T22:59:59Z", "2026-11-28[Europe/Berlin]", "2026-11-28T23:00:00Z");
        check(&berlin, "2026-11-28T23:00:00Z", "2026-11-29[Europe/Berlin]", "2026-11-29T23:00:00Z");
        let utc = BudgetWindow::day("UTC").unwrap();
        check(&utc, "2026-11-28T23:00:00Z", "2026-11-28[UTC]", "2026-11-29T00:00:00Z");
    }

    #[test]
    fn a_day_on_which_clocks_change_has_23_or_25_hours() {
        let berlin = BudgetWindow::day("Europe/Berlin").unwrap();
        check(&berlin, "2026-03-28T23:00:00Z", "2026-03-29[Europe/Berlin]", "2026-03-29T22:00:00Z");
        check(&berlin, "2026-10-24T22:00:00Z", "2026-10-25[Europe/Berlin]", "2026-10-25T23:00:00Z");
        // In Beirut, clocks go from midnight to one o'clock: the day begins then.
        let beirut = BudgetWindow::day("Asia/Beirut").unwrap();
        check(&beirut, "2026-03-28T21:59:59Z", "2026-03-28[Asia/Beirut]", "2026-03-28T22:00:00Z");
        check(&beirut, "2026-03-28T22:00:00Z", "2026-03-29[Asia/Beirut]", "2026-03-29T21:00:00Z");
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        let berlin = BudgetWindow::month("Europe/Berlin").unwrap();
        check(&berlin, "2026-12-31T22:59:59Z", "2026-12[Europe/Berlin]", "2026-12-31T23:00:00Z");
        check(&berlin, "2026-12-31T23:00:00Z", "2027-01[Europe/Berlin]", "2027-01-31T23:00:00Z");
        // The clocks change within it.
        check(&berlin, "2026-03-01T00:00:00Z", "2026-03[Europe/Berlin]", "2026-03-31T22:00:00Z");
    }

    #[test]
    fn a_rolling_window_has_parts_that_leave_one_by_one() {
        let window = BudgetWindow::hours(12).at(at("1970-01-02T00:59:59Z")).unwrap();
        assert_eq!((window.name.as_str(), window.until), ("12h@24", Some(at("1970-01-02T01:00:00Z"))));
        let RollingParts { whole, beside } = window.rolling.unwrap();
        assert_eq!((whole.as_str(), beside.len()), ("12h", 16));
        assert_eq!(
            (beside[0].as_str(), beside[11].as_str(), beside[12].as_str(), beside[15].as_str()),
            ("12h@12", "12h@23", "12h@25", "12h@28")
        );
        assert_eq!(BudgetWindow::hours(5).to_string(), "5 hours");
        // A raise holds for as long as the window is.
        let raised = BudgetWindow::hours(12).names_from(at("1970-01-02T00:59:59Z")).unwrap();
        assert_eq!((raised.len(), raised[0].as_str(), raised[11].as_str()), (12, "12h@24", "12h@35"));
        let day = BudgetWindow::day("UTC").unwrap().names_from(at("1970-01-02T00:59:59Z")).unwrap();
        assert_eq!(day, ["1970-01-02[UTC]"]);
    }

    #[test]
    fn a_budget_without_a_window_has_no_end() {
        let ever = BudgetWindow::ever().at(Timestamp::from_micros(i64::MAX)).unwrap();
        assert_eq!((ever.name.as_str(), ever.until, ever.kept_until), ("ever", None, None));
        let outside = BudgetWindow::day("UTC").unwrap().at(Timestamp::from_micros(i64::MAX));
        assert!(matches!(outside, Err(BudgetError::OutsideCalendar { .. })));
    }
}
