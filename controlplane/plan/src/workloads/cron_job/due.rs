//! The schedule time that is due (`mostRecentScheduleTime` of `pkg/controller/cronjob/utils.go`).

use std::time::Duration;

use api::schedule::Schedule;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Number of missed times above which a warning event is recorded.
const MANY: i64 = 100;

/// The last schedule time that has passed without a Job.
pub(super) struct Due {
    pub(super) time: Option<Timestamp>,
    /// True if too many times were missed.
    pub(super) many: bool,
    /// True if the deadline for starting has passed.
    pub(super) is_late: bool,
    /// Time until the next schedule time.
    pub(super) next: Duration,
}

/// Schedule times between `earliest` and now.
struct Missed {
    earliest: Timestamp,
    last: Option<Timestamp>,
    count: i64,
}

impl Due {
    /// Returns `None` for a schedule that never fires.
    pub(super) fn new(
        cron_job: &CronJob,
        last: Option<Timestamp>,
        schedule: &Schedule,
        zone: &TimeZone,
        now: Timestamp,
    ) -> Option<Self> {
        let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let earliest = last.or(created).unwrap_or(now);
        let deadline = cron_job.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
        let opened = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
        let missed = Missed::new(
            opened.map_or(earliest, |opened| opened.max(earliest)),
            schedule,
            zone,
            now,
        )?;
        let all = Missed::new(earliest, schedule, zone, now);
        let base = match all {
            Some(Missed { last: Some(last), .. }) => last,
            Some(Missed { earliest, count: 0, .. }) => earliest,
            Some(_) | None => now,
        };
        let next = schedule.next(base, zone)?;
        let closes = missed
            .last
            .zip(deadline)
            .and_then(|(time, deadline)| time.checked_add(deadline).ok());
        Some(Self {
            time: missed.last,
            many: missed.count > MANY,
            is_late: closes.is_some_and(|closes| closes < now),
            next: Duration::try_from(next.duration_since(now)).unwrap_or_default(),
        })
    }
}

impl Missed {
    fn new(earliest: Timestamp, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Self> {
        let first = schedule.next(earliest, zone)?;
        let missed = |last, count| Some(Self { earliest, last, count });
        if now < first {
            return missed(None, 0);
        }
        let second = schedule.next(first, zone)?;
        if now < second {
            return missed(Some(first), 0);
        }
        let period = second.duration_since(first).as_secs().max(1);
        let count = now.duration_since(first).as_secs().div_euclid(period).saturating_add(1);
        // Starts one period before the last time, assuming that all periods are as long as the
        // first one: the schedule gives the exact times.
        let back = SignedDuration::from_secs(count.saturating_sub(2).saturating_mul(period));
        let mut time = schedule.next(first.checked_add(back).ok()?, zone)?;
        let mut last = None;
        while time <= now {
            last = Some(time);
            time = schedule.next(time, zone)?;
        }
        missed(last, count)
    }
}
