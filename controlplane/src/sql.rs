//! `sql`: queries over objects, their past and the audit log, by whoever may read the state
//! directory.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Map, Value};
use store::{Cell, Sql};

use crate::clock;

/// Maximum size of the newest part of the audit log that is read.
const AUDIT_BYTES: u64 = 64 << 20;
/// Rows by which the widths of columns are chosen.
const SAMPLE: usize = 200;
/// Characters of a cell in a table.
const WIDEST: usize = 100;

/// Options of `sql`.
#[derive(Debug, Clone, Args)]
pub struct Query {
    /// Directory of the cluster's state
    #[arg(long, default_value = "/var/lib/skiff", env = "SKIFF_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Print each row as a line of JSON, with whole values
    #[arg(long)]
    pub json: bool,
    /// Rows that are printed at most
    #[arg(long, default_value_t = 1000, value_name = "ROWS")]
    pub limit: u64,
    /// Seconds that the query may take
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub timeout: u32,
    /// A SELECT from objects, versions or audit
    pub query: String,
}

/// Prints the rows of a query. The control plane may be running.
pub fn query(options: &Query) -> anyhow::Result<()> {
    let directory = options.state_dir.join("controlplane");
    let database = directory.join("skiff.db");
    ensure!(database.exists(), "there is no {}", database.display());
    let mut sql = Sql::open(&database).context("open the database")?;
    if options.query.to_ascii_lowercase().contains("audit") {
        for file in logs(&directory.join("audit"))? {
            let lines = BufReader::new(file).lines();
            sql.add(lines.map_while(Result::ok)).context("read the audit log")?;
        }
    }
    let until = clock::now().as_second().saturating_add(options.timeout.into());
    let mut output = Output::new(options.json);
    let (mut rows, mut more) = (0, false);
    sql.query(
        &options.query,
        move || clock::now().as_second() >= until,
        |row| {
            // The first one has the names.
            more = rows > options.limit;
            if more {
                return Ok(false);
            }
            output.take(row)?;
            rows += 1;
            Ok::<_, anyhow::Error>(true)
        },
    )?;
    output.end()?;
    // A pager that waits must not hold the database.
    drop(sql);
    let written = io::stdout().lock().write_all(&output.out);
    if written
        .as_ref()
        .is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    {
        // The reader has gone (`skiff sql … | head`).
        return Ok(());
    }
    written?;
    if more {
        writeln!(
            io::stderr().lock(),
            "only the first {} rows are shown; --limit shows more",
            options.limit
        )?;
    }
    Ok(())
}

/// The newest files of the audit log that are within the limit, oldest first.
fn logs(directory: &Path) -> anyhow::Result<VecDeque<File>> {
    let mut files = VecDeque::new();
    let mut bytes = 0;
    for number in 0.. {
        let name = if number == 0 {
            "audit.log".to_owned()
        } else {
            format!("audit.log.{number}")
        };
        let path = directory.join(name);
        let Ok(about) = fs::metadata(&path) else { break };
        bytes += about.len();
        if bytes > AUDIT_BYTES && number > 0 {
            break;
        }
        files.push_front(File::open(&path).with_context(|| path.display().to_string())?);
    }
    Ok(files)
}

/// Table or lines of JSON on standard output.
struct Output {
    json: bool,
    /// Text that is printed once the query has ended.
    out: Vec<u8>,
    names: Vec<String>,
    /// Rows that wait until the widths are known.
    sample: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl Output {
    fn new(json: bool) -> Self {
        let (names, sample, widths) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            json,
            out: Vec::new(),
            names,
            sample,
            widths,
        }
    }

    fn take(&mut self, row: Vec<Cell>) -> io::Result<()> {
        if self.names.is_empty() {
            self.names = row.iter().map(text).collect();
        } else if self.json {
            let members: Map<String, Value> = self.names.iter().cloned().zip(row.into_iter().map(json)).collect();
            return writeln!(self.out, "{}", Value::Object(members));
        }
        if self.json {
            return Ok(());
        }
        self.sample.push(row.iter().map(shown).collect());
        if !self.widths.is_empty() || self.sample.len() > SAMPLE {
            self.end()?;
        }
        Ok(())
    }

    /// Prints what waits.
    fn end(&mut self) -> io::Result<()> {
        if self.widths.is_empty() {
            let width = |at: usize| {
                let cells = self.sample.iter().filter_map(|row| row.get(at));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            };
            self.widths = (0..self.names.len()).map(width).collect();
        }
        for row in std::mem::take(&mut self.sample) {
            let cells = row
                .iter()
                .zip(&self.widths)
                .map(|(cell, &width)| format!("{cell:width$}"));
            writeln!(self.out, "{}", cells.collect::<Vec<_>>().join("   ").trim_end())?;
        }
        Ok(())
    }
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Integer(number) => number.to_string(),
        Cell::Real(number) => number.to_string(),
        Cell::Text(text) => text.clone(),
    }
}

/// A cell in a line of a terminal.
fn shown(cell: &Cell) -> String {
    let text = text(cell);
    let plain = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    let mut short: String = plain.take(WIDEST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn json(cell: Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Integer(number) => number.into(),
        Cell::Real(number) => number.into(),
        Cell::Text(text) => text.into(),
    }
}
