//! Output to the terminal.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Prints a line to standard output.
pub(crate) fn line(text: impl AsRef<str>) -> anyhow::Result<()> {
    write(&format!("{}\n", text.as_ref()))
}

/// Quotes a path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%".contains(letter);
    if text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Prints text without a newline.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    write_bytes(text.as_bytes())
}

/// Prints bytes.
pub(crate) fn write_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(unread)?;
    Ok(())
}

/// The reader of the output has closed it (`skiff get … | head`).
#[derive(Debug)]
struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl Error for ReaderGone {}

/// Marks a broken pipe of the output as the end of its reader. Elsewhere a broken pipe is a failure
/// like others.
pub(crate) fn unread(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return io::Error::new(io::ErrorKind::BrokenPipe, ReaderGone);
    }
    error
}

fn is_unread(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<ReaderGone>))
}

/// Prints a message to standard error.
pub(crate) fn note(text: impl AsRef<str>) {
    // Failed writes to standard error are ignored.
    drop(writeln!(io::stderr().lock(), "{}", text.as_ref()));
}

/// Escapes control characters: text may come from a file, a server or a container.
pub(crate) fn harmless(text: &str) -> String {
    let obeyed = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    let parts = text.chars().map(|letter| {
        if obeyed(letter) {
            letter.escape_unicode().to_string()
        } else {
            letter.to_string()
        }
    });
    parts.collect()
}

/// Prints why the command failed.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    if is_unread(error) {
        return ExitCode::SUCCESS;
    }
    // kube's errors contain their sources in their own text.
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    note(format!("{} {}", red("error:"), harmless(&text)));
    ExitCode::FAILURE
}

fn coloured(code: &str, text: &str) -> String {
    let wanted = std::env::var_os("NO_COLOR").is_none() && io::stdout().is_terminal() && io::stderr().is_terminal();
    if wanted {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

pub(crate) fn red(text: &str) -> String {
    coloured("31;1", text)
}

pub(crate) fn green(text: &str) -> String {
    coloured("32", text)
}

pub(crate) fn bold(text: &str) -> String {
    coloured("1", text)
}

pub(crate) fn dim(text: &str) -> String {
    coloured("2", text)
}

/// Progress of a wait: a spinner on a terminal, one line at the start and end elsewhere.
pub(crate) struct Waiting {
    bar: ProgressBar,
}

impl Waiting {
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let bar = if io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(80));
            bar
        } else {
            note(format!("{what} …"));
            ProgressBar::hidden()
        };
        bar.set_message(what);
        Self { bar }
    }

    /// Changes the text of the wait.
    pub(crate) fn now(&self, what: impl Into<String>) {
        let what = what.into();
        if self.bar.is_hidden() && self.bar.message() != what {
            note(format!("{what} …"));
        }
        self.bar.set_message(what);
    }

    /// Ends the wait; prints its duration.
    pub(crate) fn done(self, what: &str) {
        let took = self.bar.elapsed();
        self.bar.finish_and_clear();
        note(format!(
            "{} {what} {}",
            green("✓"),
            dim(&format!("({:.2} s)", took.as_secs_f64()))
        ));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Aligns columns to their widest cells, three spaces apart, as kubectl does.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (position, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(position) {
                Some(known) => *known = (*known).max(width),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [
            vec!["NAME".to_owned(), "AGE".to_owned()],
            vec!["nginx".to_owned(), "1s".to_owned()],
        ];
        assert_eq!(columns(&rows), "NAME    AGE\nnginx   1s\n");
    }

    #[test]
    fn only_the_outputs_reader_may_go_away() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(!is_unread(&anyhow::Error::from(broken()).context("send the files")));
        assert!(is_unread(
            &anyhow::Error::from(unread(broken())).context("write the archive")
        ));
        let full = unread(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!is_unread(&full.into()));
    }
}
