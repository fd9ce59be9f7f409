//! Usage of nodes and pods over time, in a file of its own beside the database.
//!
//! ```text
//! series  id ─► name
//! sample  tier, time, series ─► CPU, memory        a minute each, then averages of ten minutes, then of an hour
//! ```
//!
//! Nothing depends on the file: a damaged one is begun anew, and one that is full loses its oldest
//! quarter. Samples are in the order of time, so that each round writes to a few pages.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, Error, ErrorCode, OptionalExtension as _, Transaction, params};

use super::{backend_error, schema};
use crate::backend::BackendError;

/// "SKIM": identifies the file as Skiff's.
const APPLICATION_ID: i32 = 0x534b_494d;
/// Version of the tables. A file of another version is replaced.
const USER_VERSION: i32 = 1;
/// Maximum size of the file: 64 MiB.
const PAGE: i64 = 4096;
const PAGES: i64 = (64 << 20) / PAGE;
const HOUR: i64 = 3600;
/// Seconds between the samples of each tier, and for how many seconds they are kept.
const TIERS: [(i64, i64); 3] = [(60, 6 * HOUR), (600, 48 * HOUR), (HOUR, 30 * 24 * HOUR)];

const TABLES: &str = "
    CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE sample (
        tier INTEGER NOT NULL,
        time INTEGER NOT NULL,
        series INTEGER NOT NULL,
        cpu INTEGER NOT NULL,
        memory INTEGER NOT NULL,
        PRIMARY KEY (tier, time, series)
    ) STRICT, WITHOUT ROWID;
";

/// Usage at a time, or the average from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// Seconds since 1970.
    pub time: i64,
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
}

/// The file with the samples. Calls block.
#[derive(Debug)]
pub struct Measures {
    path: PathBuf,
    pages: i64,
    /// `None` before the first use, and after a failure.
    connection: Mutex<Option<Connection>>,
}

impl Measures {
    /// Measures beside a database; the file is opened when it is used first.
    pub fn beside(database: &Path) -> Self {
        Self {
            path: database.with_added_extension("measures"),
            pages: PAGES,
            connection: Mutex::new(None),
        }
    }

    /// Seconds between two rounds of samples.
    pub const fn interval() -> i64 {
        let [(interval, _), ..] = TIERS;
        interval
    }

    /// Adds one round of samples, as name, CPU and memory, and thins out older ones.
    pub fn add(&self, time: i64, round: &[(String, i64, i64)]) -> Result<(), BackendError> {
        self.with(|connection| {
            let transaction = connection.transaction()?;
            insert(&transaction, time - time.rem_euclid(Self::interval()), round)?;
            thin(&transaction, time)?;
            transaction.commit()
        })
    }

    /// Samples of a series from a time on, oldest first; older ones are averages.
    pub fn of(&self, name: &str, since: i64) -> Result<Vec<Measure>, BackendError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT time, cpu, memory FROM sample WHERE tier = ?1 AND time >= ?2 AND time < ?3
                 AND series = (SELECT id FROM series WHERE name = ?4) ORDER BY time DESC",
            )?;
            let mut samples: Vec<Measure> = Vec::new();
            for (tier, (step, _)) in (0_i64..).zip(TIERS) {
                let until = samples.last().map_or(i64::MAX, |oldest| oldest.time - step + 1);
                let read = statement.query_map(params![tier, since, until, name], |row| {
                    let (time, cpu, memory) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok(Measure { time, cpu, memory })
                })?;
                for sample in read {
                    samples.push(sample?);
                }
            }
            samples.reverse();
            Ok(samples)
        })
    }

    fn with<T>(&self, run: impl FnOnce(&mut Connection) -> Result<T, Error>) -> Result<T, BackendError> {
        let mut held = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => self.open().map_err(backend_error)?,
        };
        let done = run(&mut connection);
        match done.as_ref().map_err(Error::sqlite_error_code) {
            Err(Some(ErrorCode::DiskFull)) => shrink(&connection).map_err(backend_error)?,
            // The next use opens it again.
            Err(_) => return done.map_err(backend_error),
            Ok(_) => {}
        }
        *held = Some(connection);
        done.map_err(backend_error)
    }

    /// Opens the file; begins anew if it is none of ours or damaged.
    fn open(&self) -> Result<Connection, Error> {
        match self.connect() {
            Err(error)
                if !matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::CannotOpen | ErrorCode::DiskFull)
                ) =>
            {
                tracing::warn!(error = &error as &dyn std::error::Error, file = %self.path.display(), "begin the measures anew");
                for ending in ["", "-journal"] {
                    let mut file = self.path.as_os_str().to_owned();
                    file.push(ending);
                    // If this fails, so does the next step.
                    drop(std::fs::remove_file(file));
                }
                self.connect()
            }
            done => done,
        }
    }

    fn connect(&self) -> Result<Connection, Error> {
        schema::create_private(&self.path)?;
        let connection = schema::connection(&self.path)?;
        let pages = self.pages;
        connection.execute_batch(&format!(
            "PRAGMA page_size = {PAGE}; PRAGMA max_page_count = {pages}; PRAGMA journal_mode = DELETE;
             PRAGMA synchronous = NORMAL; PRAGMA cache_size = -256;"
        ))?;
        let pragma = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
        if pragma("page_count")? == 0 {
            connection.execute_batch(&format!(
                "BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {USER_VERSION}; COMMIT;"
            ))?;
        }
        if (pragma("application_id")?, pragma("user_version")?) != (APPLICATION_ID, USER_VERSION) {
            return Err(Error::InvalidQuery);
        }
        let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if found == "ok" {
            Ok(connection)
        } else {
            Err(Error::InvalidQuery)
        }
    }
}

fn insert(transaction: &Transaction<'_>, time: i64, round: &[(String, i64, i64)]) -> Result<(), Error> {
    let mut find = transaction.prepare_cached("SELECT id FROM series WHERE name = ?1")?;
    let mut name_it = transaction.prepare_cached("INSERT INTO series (name) VALUES (?1)")?;
    let mut add = transaction.prepare_cached("INSERT OR REPLACE INTO sample VALUES (0, ?1, ?2, ?3, ?4)")?;
    for (name, cpu, memory) in round {
        let known: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let id = match known {
            Some(id) => id,
            None => name_it.insert([name])?,
        };
        add.execute(params![time, id, cpu, memory])?;
    }
    Ok(())
}

/// Averages the whole steps of each coarser tier that have passed, and removes what is too old.
fn thin(transaction: &Transaction<'_>, now: i64) -> Result<(), Error> {
    for (tier, (step, _)) in (0_i64..).zip(TIERS).skip(1) {
        let newest = "SELECT coalesce(max(time) + ?2, 0) FROM sample WHERE tier = ?1";
        let from: i64 = transaction.query_row(newest, [tier, step], |row| row.get(0))?;
        let until = now - now.rem_euclid(step);
        if from >= until {
            continue;
        }
        let averages = "INSERT OR IGNORE INTO sample
             SELECT ?1, time - time % ?2, series, CAST(avg(cpu) AS INTEGER), CAST(avg(memory) AS INTEGER)
             FROM sample WHERE tier = ?1 - 1 AND time >= ?3 AND time < ?4 GROUP BY time / ?2, series";
        transaction.execute(averages, params![tier, step, from, until])?;
        let unused = "DELETE FROM series WHERE id NOT IN (SELECT series FROM sample)";
        transaction.execute(unused, [])?;
    }
    for (tier, (_, kept)) in (0_i64..).zip(TIERS) {
        transaction.execute("DELETE FROM sample WHERE tier = ?1 AND time < ?2", [tier, now - kept])?;
    }
    Ok(())
}

/// Removes the oldest quarter of each tier: the file has reached its maximum size.
fn shrink(connection: &Connection) -> Result<(), Error> {
    let oldest = "DELETE FROM sample WHERE tier = ?1 AND time <=
        (SELECT min(time) + (max(time) - min(time)) / 4 FROM sample WHERE tier = ?1)";
    for (tier, _) in (0_i64..).zip(TIERS) {
        connection.execute(oldest, [tier])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;

    fn measures(directory: &tempfile::TempDir) -> Measures {
        Measures::beside(&directory.path().join("skiff.db"))
    }

    #[test]
    fn samples_are_thinned_out_with_age() {
        let directory = tempfile::tempdir().unwrap();
        let measures = measures(&directory);
        let minutes = 32 * 24 * 60;
        for minute in (0..minutes - 480).step_by(30).chain(minutes - 480..minutes) {
            let round = [
                ("pod/a/b".to_owned(), minute % 60, 1 << 20),
                ("node/n".to_owned(), 7, 7),
            ];
            measures.add(START + minute * 60, &round).unwrap();
        }
        let now = START + (minutes - 1) * 60;
        let samples = measures.of("pod/a/b", 0).unwrap();
        assert!(samples.is_sorted_by_key(|sample| sample.time), "{samples:?}");
        let steps: Vec<i64> = samples.windows(2).map(|pair| pair[1].time - pair[0].time).collect();
        assert!(steps.iter().all(|step| (60..=2 * HOUR).contains(step)), "{steps:?}");
        assert!((1000..1400).contains(&samples.len()), "{}", samples.len());
        assert_eq!(samples.last().unwrap().time, now - now.rem_euclid(60));
        assert!(samples[0].time >= now - 31 * 24 * HOUR, "{:?}", samples[0]);
        assert_eq!(
            samples[0],
            Measure {
                memory: 1 << 20,
                cpu: 15,
                ..samples[0]
            },
            "an average"
        );
        let few = measures.of("pod/a/b", now - 600).unwrap();
        assert_eq!(few.len(), 11, "{few:?}");
        assert_eq!(measures.of("pod/a/other", 0).unwrap(), []);
    }

    #[test]
    fn the_file_stays_within_its_size() {
        let directory = tempfile::tempdir().unwrap();
        let measures = Measures {
            pages: 64,
            ..measures(&directory)
        };
        let round: Vec<_> = (0..200)
            .map(|pod| (format!("pod/default/p{pod}"), pod, pod << 20))
            .collect();
        let mut failed = 0;
        for minute in 0..200 {
            failed += i32::from(measures.add(START + minute * 60, &round).is_err());
        }
        let size = std::fs::metadata(&measures.path).unwrap().len();
        assert!(size <= 64 * 4096, "{size}");
        assert!(
            (1..50).contains(&failed),
            "rounds are lost only where room is made: {failed}"
        );
        assert!(measures.of("pod/default/p7", 0).unwrap().len() > 20);
    }

    #[test]
    fn a_damaged_file_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let round = [("node/n".to_owned(), 1, 2)];
        measures(&directory).add(START, &round).unwrap();
        std::fs::write(&measures(&directory).path, vec![b'x'; 20_000]).unwrap();
        let again = measures(&directory);
        again.add(START + 60, &round).unwrap();
        let kept = again.of("node/n", 0).unwrap();
        assert_eq!(kept.iter().map(|sample| sample.time).collect::<Vec<_>>(), [START + 60]);
    }
}
