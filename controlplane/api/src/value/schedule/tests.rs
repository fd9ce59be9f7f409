use expect_test::{Expect, expect};

use super::{Schedule, time_zone};

#[test]
fn what_is_no_schedule() {
    let bad = [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("  @daily", "expected exactly 5 fields, found 1: [@daily]"),
        ("0 * * * * *", "expected exactly 5 fields, found 6: [0 * * * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* 24 * * *", "end of range (24) above maximum (23): 24"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * 13 *", "end of range (13) above maximum (12): 13"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("*/-5 * * * *", "negative number (-5) not allowed: -5"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        (
            "a * * * *",
            "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax",
        ),
        (
            "99999999999999999999 * * * *",
            "failed to parse int from 99999999999999999999: strconv.Atoi: parsing \"99999999999999999999\": value out of range",
        ),
        ("@often", "unrecognized descriptor: @often"),
        ("@Daily", "unrecognized descriptor: @Daily"),
        ("@every", "unrecognized descriptor: @every"),
        (
            "@every 5",
            "failed to parse duration @every 5: time: missing unit in duration \"5\"",
        ),
        (
            "@every 5d",
            "failed to parse duration @every 5d: time: unknown unit \"d\" in duration \"5d\"",
        ),
        (
            "@every soon",
            "failed to parse duration @every soon: time: invalid duration \"soon\"",
        ),
    ];
    for (text, problem) in bad {
        let found = Schedule::parse(text).expect_err(text).to_string();
        assert_eq!(found, problem, "{text}");
    }
}

/// Formats the next four times of each schedule, one row per line.
fn times(rows: &[(&str, &str, &str)], expected: &Expect) {
    let mut lines = Vec::new();
    for (text, name, from) in rows {
        let (schedule, zone) = (Schedule::parse(text).unwrap(), time_zone(name).unwrap());
        let mut at = from.parse().unwrap();
        let mut line = format!("{text} {name}:");
        for _ in 0..4 {
            let Some(next) = schedule.next(at, &zone) else { break };
            at = next;
            line = format!("{line} {at}");
        }
        lines.push(line);
    }
    expected.assert_eq(&lines.join("\n"));
}

/// Expected times are those of `robfig/cron`.
#[test]
fn the_next_times() {
    let from = "2026-01-31T22:58:30Z";
    let row = |(text, zone)| (text, zone, from);
    let rows = [
        ("* * * * *", "UTC"),
        ("*/20 * * * *", "UTC"),
        ("5/20 8-10/2 * * *", "UTC"),
        ("0 0 1,15 * mon-fri", "UTC"),
        ("0 0 1 * ?", "UTC"),
        ("0 12 */2 * 1", "UTC"),
        ("30 4 29 feb *", "UTC"),
        ("0 0 31 2 *", "UTC"),
        (", * * * *", "UTC"),
        ("@weekly", "Europe/Berlin"),
        ("@yearly", "Asia/Kathmandu"),
        ("@every 1h30m", "UTC"),
        ("@every -5s", "UTC"),
        ("@every 1500ms", "UTC"),
    ];
    times(
        &rows.map(row),
        &expect![[r"
        * * * * * UTC: 2026-01-31T22:59:00Z 2026-01-31T23:00:00Z 2026-01-31T23:01:00Z 2026-01-31T23:02:00Z
        */20 * * * * UTC: 2026-01-31T23:00:00Z 2026-01-31T23:20:00Z 2026-01-31T23:40:00Z 2026-02-01T00:00:00Z
        5/20 8-10/2 * * * UTC: 2026-02-01T08:05:00Z 2026-02-01T08:25:00Z 2026-02-01T08:45:00Z 2026-02-01T10:05:00Z
        0 0 1,15 * mon-fri UTC: 2026-02-01T00:00:00Z 2026-02-02T00:00:00Z 2026-02-03T00:00:00Z 2026-02-04T00:00:00Z
        0 0 1 * ? UTC: 2026-02-01T00:00:00Z 2026-03-01T00:00:00Z 2026-04-01T00:00:00Z 2026-05-01T00:00:00Z
        0 12 */2 * 1 UTC: 2026-02-01T12:00:00Z 2026-02-02T12:00:00Z 2026-02-03T12:00:00Z 2026-02-05T12:00:00Z
        30 4 29 feb * UTC: 2028-02-29T04:30:00Z 2032-02-29T04:30:00Z 2036-02-29T04:30:00Z 2040-02-29T04:30:00Z
        0 0 31 2 * UTC:
        , * * * * UTC:
        @weekly Europe/Berlin: 2026-01-31T23:00:00Z 2026-02-07T23:00:00Z 2026-02-14T23:00:00Z 2026-02-21T23:00:00Z
        @yearly Asia/Kathmandu: 2026-12-31T18:15:00Z 2027-12-31T18:15:00Z 2028-12-31T18:15:00Z 2029-12-31T18:15:00Z
        @every 1h30m UTC: 2026-02-01T00:28:30Z 2026-02-01T01:58:30Z 2026-02-01T03:28:30Z 2026-02-01T04:58:30Z
        @every -5s UTC: 2026-01-31T22:58:31Z 2026-01-31T22:58:32Z 2026-01-31T22:58:33Z 2026-01-31T22:58:34Z
        @every 1500ms UTC: 2026-01-31T22:58:31Z 2026-01-31T22:58:32Z 2026-01-31T22:58:33Z 2026-01-31T22:58:34Z"]],
    );
}

/// An hour that the clock skips has no times; a repeated one has them twice.
#[test]
fn daylight_saving() {
    let rows = [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z"),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:10:00Z"),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z"),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z"),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z"),
        ("0 0 * * *", "America/Havana", "2026-03-07T12:00:00Z"),
        ("0 0 * * *", "America/Santiago", "2026-09-05T00:00:00Z"),
    ];
    times(
        &rows,
        &expect![[r"
        30 2 * * * Europe/Berlin: 2026-03-30T00:30:00Z 2026-03-31T00:30:00Z 2026-04-01T00:30:00Z 2026-04-02T00:30:00Z
        0 * * * * Europe/Berlin: 2026-03-29T01:00:00Z 2026-03-29T02:00:00Z 2026-03-29T03:00:00Z 2026-03-29T04:00:00Z
        30 2 * * * America/New_York: 2026-03-09T06:30:00Z 2026-03-10T06:30:00Z 2026-03-11T06:30:00Z 2026-03-12T06:30:00Z
        30 1 * * * America/New_York: 2026-11-01T05:30:00Z 2026-11-01T06:30:00Z 2026-11-02T06:30:00Z 2026-11-03T06:30:00Z
        */30 2 * * * Europe/Berlin: 2026-10-25T00:00:00Z 2026-10-25T00:30:00Z 2026-10-25T01:00:00Z 2026-10-25T01:30:00Z
        0 0 * * * America/Havana: 2026-03-09T04:00:00Z 2026-03-10T04:00:00Z 2026-03-11T04:00:00Z 2026-03-12T04:00:00Z
        0 0 * * * America/Santiago: 2026-09-05T04:00:00Z 2026-09-07T03:00:00Z 2026-09-08T03:00:00Z 2026-09-09T03:00:00Z"]],
    );
}

#[test]
fn names_of_time_zones_are_exact() {
    let known = [
        "UTC",
        "Etc/UTC",
        "Europe/Berlin",
        "America/Argentina/Buenos_Aires",
        "EST5EDT",
        "US/Eastern",
    ];
    assert!(known.iter().all(|name| time_zone(name).is_some()));
    let unknown = ["", "Mars/Olympus", "europe/berlin", "Local", "+01:00", "UTC+1"];
    assert!(unknown.iter().all(|name| time_zone(name).is_none()));
}
