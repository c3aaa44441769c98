//! Dates as templates write them, in universal time.

use std::time::{SystemTime, UNIX_EPOCH};

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
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A time by C's `strftime` format, as far as templates use it; another letter stays as it is.
pub(super) fn strftime(time: SystemTime, format: &str) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text += &year.to_string(),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{:02}", second / 3600),
            Some('M') => text += &format!("{:02}", second / 60 % 60),
            Some('S') => text += &format!("{:02}", second % 60),
            Some('%') => text.push('%'),
            other => text.extend(['%'].into_iter().chain(other)),
        }
    }
    text
}

/// Year, month and day of a day counted from 1970-01-01: years of 365 or 366 days are taken off,
/// then months.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years are 146,097 days, so that no time takes long.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    loop {
        let length = match month {
            2 => 28 + u64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if days < length {
            return (year, month, days + 1);
        }
        days -= length;
        month += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// By GNU date: `date -u -d @SECONDS "+%Y-%m-%d %H:%M:%S %a %A %b %B %y %%"`.
    #[test]
    fn dates_are_those_of_gnu_date() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thu Thursday Jan January 70 %"),
            (951_782_400, "2000-02-29 00:00:00 Tue Tuesday Feb February 00 %"),
            (1_722_006_123, "2024-07-26 15:02:03 Fri Friday Jul July 24 %"),
            (4_107_542_399, "2100-02-28 23:59:59 Sun Sunday Feb February 00 %"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon Monday Mar March 00 %"),
            (253_402_300_799, "9999-12-31 23:59:59 Fri Friday Dec December 99 %"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime(time, "%Y-%m-%d %H:%M:%S %a %A %b %B %y %%"), expected);
        }
        assert_eq!(strftime(UNIX_EPOCH, "%q%"), "%q%");
    }
}
