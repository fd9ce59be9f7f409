//! Programs with streams of their own, and terminals, as root.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::time::Duration;

use common::sessions::{ALL, end, until};
use common::{Kind, Machine, contract};
use runtime::{Error, Refusal, Session, Size, StreamSpec, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn spec(words: &[&str]) -> StreamSpec {
    StreamSpec {
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
        tty: false,
        streams: ALL,
    }
}

fn terminal(words: &[&str]) -> StreamSpec {
    StreamSpec {
        tty: true,
        ..spec(words)
    }
}

async fn running(kind: Kind, name: &str) -> Machine {
    let machine = Machine::of(kind, name).await;
    machine.sandbox("s").await;
    machine.run("s", machine.container("c", &["/bin/sleep", "1000"])).await;
    machine
}

async fn a_program_has_streams_of_its_own(kind: Kind) {
    let machine = running(kind, "streams").await;
    let words = ["sh", "-c", "cat; echo $GREETING >&2; exit 3"];
    let mut session = machine.runtime.exec_stream("s", "c", spec(&words)).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    // Exceeds any pipe's capacity.
    let text = "0123456789abcdef".repeat(1 << 16);
    let write = async {
        stdin.write_all(text.as_bytes()).await.unwrap();
        drop(stdin);
    };
    let ((), (out, err, code)) = tokio::join!(write, end(session));
    assert_eq!((out == text, err.as_str(), code), (true, "hello\n", 3));
    let nothing = Streams::default();
    let quiet = StreamSpec {
        streams: nothing,
        ..spec(&["sh", "-c", "cat; echo lost"])
    };
    let session = machine.runtime.exec_stream("s", "c", quiet).await.unwrap();
    assert_eq!(end(session).await, (String::new(), String::new(), 0));
    machine.finish().await;
}

async fn a_program_that_cannot_run_is_an_error_in_words(kind: Kind) {
    let machine = running(kind, "cannot").await;
    for (words, because) in [
        (["absent"], "exec: \"absent\": executable file not found in $PATH"),
        (
            ["/absent"],
            "exec: \"/absent\": stat /absent: no such file or directory",
        ),
        (["/etc/passwd"], "exec: \"/etc/passwd\": permission denied"),
    ] {
        for spec in [spec(&words), terminal(&words)] {
            let error = match machine.runtime.exec_stream("s", "c", spec).await {
                Ok(session) => session.end.await.unwrap_err(),
                Err(error) => error,
            };
            assert!(
                matches!(&error, Error::Refused(Refusal::Program(why)) if why == because),
                "{error}"
            );
        }
    }
    machine.finish().await;
}

async fn a_terminal_is_the_containers_own_and_has_a_size(kind: Kind) {
    let machine = running(kind, "terminal").await;
    let script = "ls /dev/pts/; echo $TERM; read answer; stty size; echo got $answer; exit 4";
    let session = machine
        .runtime
        .exec_stream("s", "c", terminal(&["sh", "-c", script]))
        .await
        .unwrap();
    let Session {
        stdin,
        stdout,
        terminal,
        end,
        ..
    } = session;
    let (mut stdin, mut stdout) = (stdin.unwrap(), stdout.unwrap());
    let shown = until(&mut stdout, "xterm").await;
    assert!(
        shown.contains("0  ptmx") || shown.contains("0     ptmx") || shown.contains("ptmx"),
        "{shown}"
    );
    terminal.unwrap().resize(Size { width: 123, height: 45 }).await.unwrap();
    stdin.write_all(b"yes\n").await.unwrap();
    let shown = until(&mut stdout, "got yes").await;
    assert!(shown.contains("45 123"), "{shown}");
    assert_eq!(end.await.unwrap(), 4);
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).await.unwrap();
    machine.finish().await;
}

async fn a_short_program_on_a_terminal_shows_all_and_tells_its_code(kind: Kind) {
    let machine = running(kind, "short").await;
    for round in 0..50 {
        let session = machine
            .runtime
            .exec_stream("s", "c", terminal(&["sh", "-c", "echo out; exit 3"]))
            .await;
        let session = session.unwrap_or_else(|error| panic!("{round}: {error}"));
        assert_eq!(end(session).await, ("out\r\n".to_owned(), String::new(), 3), "{round}");
    }
    machine.finish().await;
}

async fn what_a_program_leaves_running_stays_and_what_is_left_early_dies(kind: Kind) {
    let machine = running(kind, "leaves").await;
    let words = ["sh", "-c", "sleep 333 >/dev/null 2>&1 </dev/null & echo started"];
    let session = machine.runtime.exec_stream("s", "c", spec(&words)).await.unwrap();
    assert_eq!(end(session).await.0, "started\n");
    let seen = machine.exec("s", "c", "ps", Duration::from_secs(20)).await.output;
    assert!(String::from_utf8_lossy(&seen).contains("sleep 333"));
    for spec in [
        spec(&["sh", "-c", "echo up; sleep 444"]),
        terminal(&["sh", "-c", "echo up; sleep 444"]),
    ] {
        let mut session = machine.runtime.exec_stream("s", "c", spec).await.unwrap();
        until(session.stdout.as_mut().unwrap(), "up").await;
        drop(session);
        let gone = async {
            loop {
                let seen = machine.exec("s", "c", "ps", Duration::from_secs(20)).await.output;
                if !String::from_utf8_lossy(&seen).contains("444") {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone)
            .await
            .expect("it lives on");
    }
    machine.finish().await;
}

async fn attack_17_clients_that_vanish_leave_nothing(kind: Kind) {
    let machine = running(kind, "vanish").await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for round in 0..200 {
        let words: &[&str] = if round % 2 == 0 {
            &["absent"]
        } else {
            &["sleep", "1000"]
        };
        let spec = if round % 4 < 2 { spec(words) } else { terminal(words) };
        let start = machine.runtime.exec_stream("s", "c", spec);
        // A failed start may be reported at once. Some callers are gone before their program has
        // started.
        let patience = Duration::from_millis(if round % 5 == 0 { round } else { 10_000 });
        drop(tokio::time::timeout(patience, start).await);
    }
    let mut left = String::new();
    let clean = async {
        // Just after its start, a container holds the pipes of its log. Nothing else is asked for meanwhile.
        while descriptors() > before + 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while left.matches("sleep 1000").count() != 1 {
            let seen = machine.exec("s", "c", "ps", Duration::from_secs(20)).await.output;
            left = String::from_utf8_lossy(&seen).into_owned();
        }
    };
    let cleaned = tokio::time::timeout(Duration::from_mins(2), clean).await;
    assert!(cleaned.is_ok(), "{before} descriptors, now {}; {left}", descriptors());
    machine.finish().await;
}

async fn a_hundred_programs_run_inside_at_once(kind: Kind) {
    let machine = running(kind, "hundred").await;
    // Each waits for the last one.
    let script = ": > /tmp/$$; while [ $(ls /tmp | grep -c .) -lt 100 ]; do sleep 0.5; done; echo all";
    let patience = Duration::from_mins(3);
    let all = (0..100).map(|_| machine.exec("s", "c", script, patience));
    let said = futures::future::join_all(all).await;
    let met = said.iter().filter(|result| result.output == b"all\n").count();
    assert_eq!(met, 100, "{:?}", said.first());
    machine.finish().await;
}

contract!(
    a_hundred_programs_run_inside_at_once,
    a_program_has_streams_of_its_own,
    a_program_that_cannot_run_is_an_error_in_words,
    a_short_program_on_a_terminal_shows_all_and_tells_its_code,
    a_terminal_is_the_containers_own_and_has_a_size,
    what_a_program_leaves_running_stays_and_what_is_left_early_dies,
    attack_17_clients_that_vanish_leave_nothing,
);
