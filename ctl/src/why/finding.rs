//! Single findings about an object.

use super::printable;

/// Container whose log is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) container: String,
    /// True for the log of the previous instance.
    pub(super) previous: bool,
}

/// Finding with its evidence and advice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// True for a problem, false for a note.
    pub(super) trouble: bool,
    what: String,
    facts: Vec<String>,
    advice: Vec<String>,
    /// True if the log is the remaining source.
    by_output: bool,
    pub(super) log: Option<Log>,
}

impl Finding {
    /// Creates a finding of a problem.
    pub(super) fn trouble(what: impl Into<String>) -> Self {
        Self {
            trouble: true,
            ..Self::note(what)
        }
    }

    /// Creates a finding that is only a note.
    pub(super) fn note(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// Adds evidence. Empty texts are left out.
    pub(super) fn fact(mut self, text: impl Into<String>) -> Self {
        self.facts.extend(Some(text.into()).filter(|text| !text.is_empty()));
        self
    }

    /// Adds advice.
    pub(super) fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(text.into());
        self
    }

    /// Marks the container's output as the only source of advice.
    pub(super) fn ask_output(mut self) -> Self {
        self.by_output = true;
        self
    }

    /// Adds a container's log.
    pub(super) fn show(mut self, container: &str, previous: bool) -> Self {
        self.log = Some(Log {
            container: container.to_owned(),
            previous,
        });
        self
    }

    /// Formats the finding, with lines of the log.
    pub(super) fn text(&self, log: &[String]) -> String {
        let mut lines = vec![String::new(), format!("* {}", printable(&self.what))];
        lines.extend(
            self.facts
                .iter()
                .map(|fact| format!("  {}", printable(fact.trim_end()))),
        );
        if !log.is_empty() {
            lines.push("  The last lines of its output:".to_owned());
            lines.extend(log.iter().map(|line| format!("    | {line}")));
        }
        lines.extend(self.advice.iter().map(|advice| format!("  -> {advice}")));
        if self.by_output {
            lines.push(match log {
                [] => "  -> it printed nothing: have it say why it ends".to_owned(),
                _ => "  -> what it printed should tell the cause".to_owned(),
            });
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
