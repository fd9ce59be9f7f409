//! Programs with streams of their own, terminals, and clients that attach, as root.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers are tests"
)]

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::time::Duration;

use common::{Kind, Machine, contract};
use runtime::{Error, Refusal, Session, Size, Stdin, StreamSpec, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ALL: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: true,
};

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

/// Both outputs to their end, and the exit code.
async fn end(session: Session) -> (String, String, i32) {
    let Session {
        stdout, stderr, end, ..
    } = session;
    let text = async |stream: Option<runtime::Output>| {
        let mut text = String::new();
        if let Some(mut stream) = stream {
            stream.read_to_string(&mut text).await.unwrap();
        }
        text
    };
    let all = async { tokio::join!(text(stdout), text(stderr), end) };
    let (out, err, code) = tokio::time::timeout(Duration::from_secs(20), all)
        .await
        .expect("no end");
    (out, err, code.unwrap())
}

/// Reads until a text has come.
async fn until(output: &mut runtime::Output, expected: &str) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(expected) {
            let mut chunk = [0; 1024];
            let length = output.read(&mut chunk).await.unwrap();
            assert!(
                length > 0,
                "the end came before {expected:?}: {}",
                String::from_utf8_lossy(&seen)
            );
            seen.extend_from_slice(&chunk[..length]);
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), reading).await;
    let text = String::from_utf8_lossy(&seen).into_owned();
    assert!(done.is_ok(), "no {expected:?} in {text:?}");
    text
}

/// Attaches; a refusal may come as the end of the session.
async fn attached(machine: &Machine, container: &str) -> Result<Session, Error> {
    let mut session = machine.runtime.attach("s", container, ALL).await?;
    match tokio::time::timeout(Duration::from_millis(50), &mut session.end).await {
        Ok(end) => Err(end.expect_err("it is not refused and at its end")),
        Err(_elapsed) => Ok(session),
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
    // More than any pipe holds.
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

async fn what_a_program_leaves_running_stays_and_what_is_left_early_dies(kind: Kind) {
    let machine = running(kind, "leaves").await;
    let words = ["sh", "-c", "sleep 333 >/dev/null 2>&1 </dev/null & echo started"];
    let session = machine.runtime.exec_stream("s", "c", spec(&words)).await.unwrap();
    assert_eq!(end(session).await.0, "started\n");
    let seen = machine.exec("s", "c", "ps", Duration::from_secs(5)).await.output;
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
                let seen = machine.exec("s", "c", "ps", Duration::from_secs(5)).await.output;
                if !String::from_utf8_lossy(&seen).contains("444") {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone)
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
        // One that cannot run may be told so at once.
        drop(machine.runtime.exec_stream("s", "c", spec).await);
    }
    let clean = async {
        loop {
            let seen = machine.exec("s", "c", "ps", Duration::from_secs(5)).await.output;
            let left = String::from_utf8_lossy(&seen).matches("sleep 1000").count();
            if left == 1 && descriptors() <= before + 2 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), clean)
        .await
        .expect("something is left");
    machine.finish().await;
}

async fn clients_share_a_containers_streams_with_the_log(kind: Kind) {
    let mut machine = Machine::of(kind, "attach").await;
    machine.sandbox("s").await;
    let mut container = machine.shell(
        "c",
        "echo before; while read line; do echo got $line; done; echo end >&2; exit 5",
    );
    container.stdin = Stdin::Once;
    machine.run("s", container).await;
    let silent = Streams { stdin: false, ..ALL };
    let watcher = machine.runtime.attach("s", "c", silent).await.unwrap();
    let mut session = machine.runtime.attach("s", "c", ALL).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\ntwo\n").await.unwrap();
    let seen = until(session.stdout.as_mut().unwrap(), "got two\n").await;
    assert!(seen.ends_with("got one\ngot two\n"), "{seen}");
    drop(stdin);
    // The container's input ends with that of its client; both see the rest.
    let (out, err, code) = end(session).await;
    assert_eq!((out.as_str(), err.as_str(), code), ("", "end\n", 0));
    let (out, err, _) = end(watcher).await;
    assert!(out.ends_with("got one\ngot two\n") && err == "end\n", "{out} {err}");
    assert_eq!(machine.exit().await.code, 5);
    let log = machine.output("c");
    assert!(
        log.contains("before\n") && log.contains("got two\n") && log.contains("end\n"),
        "{log}"
    );
    machine.finish().await;
}

async fn an_open_input_outlives_its_clients_and_what_is_not_open_takes_nothing(kind: Kind) {
    let mut machine = Machine::of(kind, "input").await;
    machine.sandbox("s").await;
    let mut container = machine.shell("c", "while read line; do echo got $line; done; echo over");
    container.stdin = Stdin::Open;
    machine.run("s", container).await;
    for line in ["one", "two"] {
        let mut session = machine.runtime.attach("s", "c", ALL).await.unwrap();
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        until(session.stdout.as_mut().unwrap(), &format!("got {line}\n")).await;
        drop(stdin);
        // The client's input ends, and with it the session; the container's goes on.
        assert_eq!(end(session).await, (String::new(), String::new(), 0));
    }
    machine.run("s", machine.container("closed", &["/bin/cat"])).await;
    assert_eq!(
        machine.exit().await.code,
        0,
        "its input is at the end from the beginning"
    );
    machine
        .run("s", machine.container("deaf", &["/bin/sleep", "1000"]))
        .await;
    let mut session = machine.runtime.attach("s", "deaf", ALL).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let refused = async { while stdin.write_all(&[b'x'; 4096]).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), refused)
        .await
        .expect("somebody takes it");
    drop(stdin);
    machine.runtime.signal("s", "deaf", 9).await.unwrap();
    assert_eq!(end(session).await.2, 0);
    let refused = attached(&machine, "closed").await.unwrap_err().to_string();
    assert!(refused.contains("closed is exited"), "{refused}");
    machine.finish().await;
}

/// An agent that dies leaves a container that had a client without one: its input is at the end then, as if the client had left.
async fn a_single_input_ends_with_the_agent_of_its_client(kind: Kind) {
    let mut machine = Machine::of(kind, "once").await;
    machine.sandbox("s").await;
    let mut container = machine.shell("c", "while read line; do echo got $line; done; echo over; exit 6");
    container.stdin = Stdin::Once;
    machine.run("s", container).await;
    let mut session = machine.runtime.attach("s", "c", ALL).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    until(session.stdout.as_mut().unwrap(), "got one\n").await;
    machine.crash().await;
    drop((stdin, session));
    machine.reopen().await;
    let ended = async {
        while !machine.output("c").contains("over\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended)
        .await
        .expect("the input goes on");
    machine.finish().await;
}

async fn attack_17_clients_that_attach_and_vanish_or_do_not_read_leave_nothing(kind: Kind) {
    let machine = Machine::of(kind, "attached").await;
    machine.sandbox("s").await;
    let mut container = machine.container("c", &["/bin/cat"]);
    container.stdin = Stdin::Open;
    machine.run("s", container).await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for _ in 0..200 {
        let attached = tokio::time::timeout(Duration::from_secs(20), async {
            // Those that left may be counted for a moment still.
            loop {
                if let Ok(session) = machine.runtime.attach("s", "c", ALL).await {
                    return session;
                }
                tokio::task::yield_now().await;
            }
        });
        drop(attached.await.expect("nobody is let in"));
    }
    let mut sessions = Vec::new();
    let filling = async {
        loop {
            match attached(&machine, "c").await {
                Ok(session) => sessions.push(session),
                // Of those before, some may not have left yet.
                Err(_) if sessions.is_empty() => {}
                Err(refused) => break refused.to_string(),
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), filling)
        .await
        .expect("there is no bound");
    assert!(refused.contains("too many at the same time"), "{refused}");
    // One of them writes and nobody reads: what waits is bounded, and nobody but the container waits.
    let stdin = sessions[0].stdin.as_mut().unwrap();
    let flood = async { while stdin.write_all(&[b'x'; 4096]).await.is_ok() {} };
    drop(tokio::time::timeout(Duration::from_millis(500), flood).await);
    drop(sessions);
    let joining = async {
        loop {
            if let Ok(session) = attached(&machine, "c").await {
                return session;
            }
        }
    };
    let mut session = tokio::time::timeout(Duration::from_secs(20), joining)
        .await
        .expect("nobody is let in");
    let mut stdin = session.stdin.take().unwrap();
    let reading = async {
        stdin.write_all(b"\nlast\n").await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = reading => {}
        _ = until(session.stdout.as_mut().unwrap(), "\nlast\n") => {}
    }
    drop((stdin, session));
    let clean = async {
        while descriptors() > before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), clean)
        .await
        .expect("something is left");
    machine.finish().await;
}

async fn a_container_can_have_a_terminal(kind: Kind) {
    let mut machine = Machine::of(kind, "container-terminal").await;
    machine.sandbox("s").await;
    let mut container = machine.shell("c", "stty size; while read line; do stty size; echo got $line; done");
    container.stdin = Stdin::Open;
    let mut process = container.spec.process().clone().unwrap();
    process.set_terminal(Some(true));
    container.spec.set_process(Some(process));
    machine.run("s", container).await;
    let mut session = machine
        .runtime
        .attach("s", "c", Streams { stderr: false, ..ALL })
        .await
        .unwrap();
    let terminal = session.terminal.take().unwrap();
    terminal.resize(Size { width: 99, height: 33 }).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\n").await.unwrap();
    let seen = until(session.stdout.as_mut().unwrap(), "got one").await;
    assert!(seen.contains("33 99"), "{seen}");
    // Its input is at its end, and with it the session; the container goes on.
    drop(stdin);
    assert_eq!(end(session).await.2, 0);
    let again = machine.runtime.attach("s", "c", ALL).await.unwrap();
    assert!(machine.output("c").contains("got one"));
    machine.runtime.signal("s", "c", 9).await.unwrap();
    end(again).await;
    assert_eq!(machine.exit().await.code, 137);
    machine.finish().await;
}

contract!(
    a_program_has_streams_of_its_own,
    a_program_that_cannot_run_is_an_error_in_words,
    a_terminal_is_the_containers_own_and_has_a_size,
    what_a_program_leaves_running_stays_and_what_is_left_early_dies,
    attack_17_clients_that_vanish_leave_nothing,
    clients_share_a_containers_streams_with_the_log,
    an_open_input_outlives_its_clients_and_what_is_not_open_takes_nothing,
    a_single_input_ends_with_the_agent_of_its_client,
    attack_17_clients_that_attach_and_vanish_or_do_not_read_leave_nothing,
    a_container_can_have_a_terminal,
);
