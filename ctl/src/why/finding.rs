//! One thing that can be said of a pod.

use super::printable;

/// Whose output to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) container: String,
    /// That of the run before.
    pub(super) previous: bool,
}

/// What is so, how it is known, and what to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// Whether it is the matter, or only good to know.
    pub(super) trouble: bool,
    what: String,
    facts: Vec<String>,
    advice: Vec<String>,
    /// The output is what is left to look at.
    by_output: bool,
    pub(super) log: Option<Log>,
}

impl Finding {
    /// Something that is wrong.
    pub(super) fn trouble(what: impl Into<String>) -> Self {
        Self {
            trouble: true,
            ..Self::note(what)
        }
    }

    /// Something that is good to know.
    pub(super) fn note(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// Adds how it is known. Empty texts are left out.
    pub(super) fn fact(mut self, text: impl Into<String>) -> Self {
        self.facts.extend(Some(text.into()).filter(|text| !text.is_empty()));
        self
    }

    /// Adds what to do.
    pub(super) fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(text.into());
        self
    }

    /// Nothing but the output can tell what to do.
    pub(super) fn ask_output(mut self) -> Self {
        self.by_output = true;
        self
    }

    /// Shows a container's output.
    pub(super) fn show(mut self, container: &str, previous: bool) -> Self {
        self.log = Some(Log {
            container: container.to_owned(),
            previous,
        });
        self
    }

    /// For people, with the lines of output that were found.
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
