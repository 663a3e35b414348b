//! Schedules in cron's syntax, and the instants at which they are due. Pure.
//!
//! An instant is due if the time that clocks of the time zone show at it matches the schedule. So a time that a change
//! to daylight saving leaves out is not due on that day, and one that clocks show twice is due twice, as in Kubernetes
//! (docs/decisions/0029-cron-schedules.md). Between two changes of a zone's offset that is plain calendar arithmetic,
//! which `croner` does; this module goes from one change to the next.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil;
use jiff::tz::TimeZone;

use rcfarm_api::Timestamp;

/// Longest time between two dates that match, in seconds: 29 February around 2100 is due after eight years.
const LONGEST_PAUSE: i64 = 9 * 366 * 86_400;

/// A schedule in its time zone.
#[derive(Clone)]
pub struct CronSchedule {
    text: String,
    cron: Cron,
    zone: TimeZone,
    zone_name: Option<String>,
}

impl CronSchedule {
    /// Parses a schedule of five fields, or a macro such as `@daily`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, zone: (TimeZone, Option<String>)) -> Result<CronSchedule, String> {
        let trimmed = text.trim();
        if trimmed.contains("TZ=") {
            return Err("write the time zone into timeZone".to_owned());
        }
        if trimmed.starts_with("@every") {
            let why = "write when it is due, as in */15 * * * *: an interval has no fixed times";
            return Err(why.to_owned());
        }
        if trimmed.len() > LONGEST_TEXT {
            return Err(format!("it is longer than {LONGEST_TEXT} characters"));
        }
        if trimmed.split_whitespace().flat_map(|field| field.split(',')).any(str::is_empty) {
            return Err(format!("{text:?}: a part of a list is empty"));
        }
        let fields = match trimmed {
            "@midnight" => "@daily",
            other => other,
        };
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
        let parser = parser.sloppy_ranges(true).build();
        let cron = parser.parse(fields).map_err(|error| format!("{text:?}: {error}"))?;
        let (zone, zone_name) = zone;
        let schedule = CronSchedule { text: trimmed.to_owned(), cron, zone, zone_name };
        schedule.check_matches()?;
        Ok(schedule)
    }

    /// The time zone of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn zone(name: Option<&str>) -> Result<(TimeZone, Option<String>), String> {
        let Some(name) = name else { return Ok((TimeZone::UTC, None)) };
        if name.eq_ignore_ascii_case("local") {
            return Err("farms run on many machines: write a name such as Europe/Berlin".to_owned());
        }
        let zone = TimeZone::get(name).map_err(|_| {
            format!("there is no time zone {name:?}; write a name such as Europe/Berlin or Etc/UTC")
        })?;
        Ok((zone, Some(name.to_owned())))
    }

    /// Fails if no date ever matches, as on 30 February.
    fn check_matches(&self) -> Result<(), String> {
        let first = civil::date(2024, 1, 1).at(0, 0, 0, 0);
        let found = self.cron.find_next_occurrence(&first, true);
        match found.ok().filter(|found| found.year() <= 2033) {
            Some(_) => Ok(()),
            None => Err(format!("{:?} is never due: there is no such date", self.text)),
        }
    }

    /// CronSchedule and time zone, for people and for comparisons.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.zone_name {
            Some(zone) => format!("{} {zone}", self.text),
            None => self.text.clone(),
        }
    }

    /// The same schedule in UTC.
    #[must_use]
    pub fn in_utc(self) -> CronSchedule {
        CronSchedule { zone: TimeZone::UTC, ..self }
    }

    /// The time that clocks of the time zone show.
    #[must_use]
    pub fn local(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// The first due instant after `after`.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let limit = after.as_second().checked_add(LONGEST_PAUSE)?;
        let (mut from, mut inclusive) = (after, false);
        while from.as_second() <= limit {
            let offset = self.zone.to_offset(from);
            let start = offset.to_datetime(from);
            let end = self.zone.following(from).next().map(|change| change.timestamp());
            let found = self.cron.find_next_occurrence(&start, inclusive).ok();
            let found = found.and_then(|civil| offset.to_timestamp(civil).ok());
            match (found, end) {
                (Some(found), None) => return Some(found),
                (Some(found), Some(end)) if found < end => return Some(found),
                (_, Some(end)) => (from, inclusive) = (end, true),
                (None, None) => return None,
            }
        }
        None
    }

    /// The latest due instant after `after`, up to and including `until`.
    #[must_use]
    pub fn latest(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let mut from = until;
        while from > after {
            let offset = self.zone.to_offset(from);
            // The latest change at or before `from`.
            let probe = from.checked_add(Duration::from_nanos(1)).ok()?;
            let begin = self.zone.preceding(probe).next().map(|change| change.timestamp());
            let found = self.cron.find_previous_occurrence(&offset.to_datetime(from), true).ok();
            let found = found.and_then(|civil| offset.to_timestamp(civil).ok());
            match (found, begin) {
                (Some(found), begin) if begin.is_none_or(|begin| found >= begin) => {
                    return (found > after).then_some(found);
                }
                (_, Some(begin)) => from = begin.checked_sub(Duration::from_secs(1)).ok()?,
                (_, None) => return None,
            }
        }
        None
    }

    /// The due instants after `after`, up to and including `until`, at most `most` of them.
    pub fn between(
        &self,
        after: Timestamp,
        until: Timestamp,
        most: usize,
    ) -> impl Iterator<Item = Timestamp> {
        let due = std::iter::successors(self.next(after), |at| self.next(*at));
        due.take_while(move |at| *at <= until).take(most)
    }
}

impl std::fmt::Debug for CronSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CronSchedule").field(&self.describe()).finish()
    }
}

/// Limit of a schedule's text.
const LONGEST_TEXT: usize = 1000;

#[cfg(test)]
mod tests;
