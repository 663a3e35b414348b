//! Durations in Go's notation (`"1h30m"`, `"10.5s"`, `"800ms"`), which Consul's API uses.

use std::time::Duration;

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a duration into nanoseconds: an optional sign and one or more decimal numbers with units, or `0`.
///
/// # Errors
/// The message of Go's `time.ParseDuration`.
pub(super) fn parse(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
        };
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total += i128::from(whole) * scale + part(fraction, *scale);
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// `0.fraction` of a unit. Digits after the 18th are ignored.
fn part(fraction: &str, scale: i128) -> i128 {
    let digits = &fraction[..fraction.len().min(18)];
    let value: i128 = digits.parse().unwrap_or(0);
    value * scale / 10i128.pow(u32::try_from(digits.len()).unwrap_or(0))
}

/// A duration from nanoseconds. Negative ones are zero.
pub(super) fn from_nanos(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// A duration as text that [`parse`] reads.
pub(super) fn text(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else if duration.subsec_nanos().is_multiple_of(1_000_000) {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{}ns", duration.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        let s = 1_000_000_000;
        for (text, nanos) in [
            ("10s", 10 * s),
            ("10.5s", 10 * s + s / 2),
            (".5s", s / 2),
            ("10000ms", 10 * s),
            ("24h0m1s", 86_401 * s),
            ("1h30m", 5_400 * s),
            ("-10s", -10 * s),
            ("+1s", s),
            ("0", 0),
            ("0s", 0),
            ("9.999s", 9_999_000_000),
            ("1µs", 1_000),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_with_gos_words() {
        assert_eq!(parse("10").unwrap_err(), "time: missing unit in duration \"10\"");
        assert_eq!(parse("abc").unwrap_err(), "time: invalid duration \"abc\"");
        assert_eq!(parse("").unwrap_err(), "time: invalid duration \"\"");
        assert_eq!(parse("1d").unwrap_err(), "time: unknown unit \"d\" in duration \"1d\"");
        for bad in [".s", "1.2.3s", "s", "-", "1s ", "99999999999h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for millis in [0, 1, 999, 1_000, 10_500, 86_400_000] {
            let d = Duration::from_millis(millis);
            assert_eq!(parse(&text(d)).map(from_nanos), Ok(d));
        }
        let odd = Duration::from_nanos(1_000_000_001);
        assert_eq!(parse(&text(odd)).map(from_nanos), Ok(odd));
    }
}
