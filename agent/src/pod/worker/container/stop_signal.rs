//! Stop signals of containers.

use agent_plan::pod::pods;
use nix::sys::signal::Signal;

use crate::pod::worker::Worker;

const SIGTERM: i32 = 15;
/// SIGRTMIN and SIGRTMAX, as glibc counts and container runtimes name them.
const REAL_TIME: (i32, i32) = (34, 64);

impl Worker {
    /// Returns the pod's stop signal, or the image's.
    pub(in crate::pod::worker) fn stop_signal(&self, container: &str) -> i32 {
        let own = pods::container(&self.pod, container)
            .and_then(|container| container.lifecycle.as_ref()?.stop_signal.clone());
        // For an instance of an earlier agent, the image was not resolved yet.
        let known = || {
            let name = &self.view.latest(container)?.image;
            self.context.parts.images.resolve(name).ok().flatten()
        };
        let image = || {
            let image = self.images.get(container).cloned().or_else(known)?;
            image.config.config().as_ref()?.stop_signal().clone()
        };
        own.or_else(image)
            .and_then(|name| signal_number(&name))
            .unwrap_or(SIGTERM)
    }
}

/// Parses a signal's name, in either case and with or without `SIG`, or its number
/// (`signal.ParseSignal` of github.com/moby/sys).
fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse() {
        return (1..=REAL_TIME.1).contains(&number).then_some(number);
    }
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let offset = |rest: &str, sign: char| match rest.strip_prefix(sign) {
        Some(digits) => digits.parse().ok().filter(|offset| (1..=15).contains(offset)),
        None => rest.is_empty().then_some(0),
    };
    if let Some(rest) = name.strip_prefix("RTMIN") {
        return Some(REAL_TIME.0 + offset(rest, '+')?);
    }
    if let Some(rest) = name.strip_prefix("RTMAX") {
        return Some(REAL_TIME.1 - offset(rest, '-')?);
    }
    let name = match name {
        "CLD" => "CHLD",
        "IOT" => "ABRT",
        "POLL" => "IO",
        "UNUSED" => "SYS",
        name => name,
    };
    let signal: Signal = format!("SIG{name}").parse().ok()?;
    Some(signal as i32)
}

#[cfg(test)]
mod tests {
    use super::signal_number;

    #[test]
    fn signals_are_named_as_by_container_runtimes() {
        for (name, number) in [
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("rtmax-14", Some(50)),
            ("SIGRTMAX", Some(64)),
            ("SIGPOLL", Some(29)),
            ("SIGCLD", Some(17)),
            ("37", Some(37)),
            ("65", None),
            ("0", None),
            ("SIGRTMIN3", None),
            ("SIGRTMIN+40", None),
            ("SIGNONE", None),
        ] {
            assert_eq!(signal_number(name), number, "{name}");
        }
    }
}
