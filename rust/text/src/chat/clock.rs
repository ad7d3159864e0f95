//! `strftime` for chat templates, in UTC and the C locale. The time is an argument.

/// Formats `seconds` since 1970; an unknown directive is an error, not a guess.
pub(crate) fn strftime(seconds: i64, format: &str) -> Result<String, String> {
    let time = Time::new(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // glibc's `-` leaves out the padding.
        let (directive, padded) = match chars.next() {
            Some('-') => (chars.next(), false),
            other => (other, true),
        };
        let directive = directive.ok_or("strftime: the format ends in %")?;
        time.write(directive, padded, &mut out)?;
    }
    Ok(out)
}

struct Time {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// 0 is Sunday.
    weekday: i64,
    /// 1 is the first of January.
    day_of_year: i64,
}

impl Time {
    fn new(seconds: i64) -> Self {
        let (days, second_of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        let day_of_year = days - days_from_civil(year, 1, 1) + 1;
        Self {
            year,
            month,
            day,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
            weekday: (days + 4).rem_euclid(7),
            day_of_year,
        }
    }

    fn write(&self, directive: char, padded: bool, out: &mut String) -> Result<(), String> {
        let name = |names: &[&'static str], index: i64| {
            usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or("")
        };
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 0 };
            out.push_str(&format!("{value:0width$}"));
        };
        match directive {
            'Y' => number(self.year, 0),
            'm' => number(self.month, 2),
            'd' => number(self.day, 2),
            'H' => number(self.hour, 2),
            'I' => number((self.hour + 11) % 12 + 1, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'y' => number(self.year.rem_euclid(100), 2),
            'j' => number(self.day_of_year, 3),
            'w' => number(self.weekday, 0),
            'e' if padded => out.push_str(&format!("{:2}", self.day)),
            'e' => number(self.day, 0),
            'B' => out.push_str(name(&MONTHS, self.month - 1)),
            'b' | 'h' => out.push_str(&name(&MONTHS, self.month - 1)[..3]),
            'A' => out.push_str(name(&DAYS, self.weekday)),
            'a' => out.push_str(&name(&DAYS, self.weekday)[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'F' => self.write_all("%Y-%m-%d", out)?,
            'T' => self.write_all("%H:%M:%S", out)?,
            'D' => self.write_all("%m/%d/%y", out)?,
            'R' => self.write_all("%H:%M", out)?,
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            other => return Err(format!("strftime: the directive %{other} is not supported")),
        }
        Ok(())
    }

    fn write_all(&self, format: &str, out: &mut String) -> Result<(), String> {
        format.chars().try_for_each(|c| match c {
            '%' => Ok(()),
            c if c.is_ascii_alphabetic() => self.write(c, true, out),
            c => {
                out.push(c);
                Ok(())
            }
        })
    }
}

/// Year, month and day of a day number since 1970-01-01 (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms").
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of `civil_from_days`.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_dates_are_those_of_the_calendar() {
        // 2024-02-29 13:05:09 UTC, a Thursday and day 60 of the year.
        let leap = 1_709_211_909;
        let format = "%Y-%m-%d %H:%M:%S|%d %b %Y|%B %-d|%A %a|%j|%I %p|%y|%e|%F %T|%%";
        let wanted = "2024-02-29 13:05:09|29 Feb 2024|February 29|Thursday Thu|060|01 PM|24|29|\
                      2024-02-29 13:05:09|%";
        assert_eq!(strftime(leap, format).unwrap(), wanted);
        assert_eq!(strftime(0, "%A %d %B %Y %-H").unwrap(), "Thursday 01 January 1970 0");
        assert_eq!(strftime(-1, "%F %T").unwrap(), "1969-12-31 23:59:59");
        assert_eq!(strftime(951_782_400, "%F").unwrap(), "2000-02-29");
    }

    #[test]
    fn test_unknown_directive_is_an_error() {
        assert!(strftime(0, "%Q").is_err());
        assert!(strftime(0, "100%").is_err());
    }
}
