//! Clients that attach to containers, as root.

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
use common::{Kind, Machine, contract, eventually};
use runtime::{Error, Session, Size, Stdin, Streams};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

/// Age up to which who attaches is shown all that a container said.
const FRESH: Duration = Duration::from_secs(5);

/// Attaches; a refusal may come as the end of the session, within `patience`.
async fn attached(machine: &Machine, container: &str, patience: u64) -> Result<Session, Error> {
    let mut session = machine.runtime.attach("s", container, ALL).await?;
    match tokio::time::timeout(Duration::from_millis(patience), &mut session.end).await {
        Ok(end) => Err(end.expect_err("it is not refused and at its end")),
        Err(_elapsed) => Ok(session),
    }
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
    // The container's input ends with that of its client; both clients get the rest.
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

/// A kubelet would show its log by the time that it lists the container.
async fn who_attaches_to_a_container_that_just_began_sees_all_of_it(kind: Kind) {
    let mut machine = Machine::of(kind, "fresh").await;
    machine.sandbox("s").await;
    for terminal in [false, true] {
        let mut number = 0;
        let mut session = loop {
            number += 1;
            let id = format!("c-{terminal}-{number}");
            let mut container = machine.shell(&id, "echo one; echo two >&2; printf thr; read line; echo ee");
            container.stdin = Stdin::Once;
            let mut process = container.spec.process().clone().unwrap();
            process.set_terminal(Some(terminal));
            container.spec.set_process(Some(process));
            let begun = Instant::now();
            machine.run("s", container).await;
            eventually("it begins", || machine.output(&id).contains("two")).await;
            let session = machine.runtime.attach("s", &id, ALL).await.unwrap();
            // On a busy machine it may have begun too long ago.
            if begun.elapsed() < FRESH || number == 20 {
                break session;
            }
            machine.runtime.signal("s", &id, 9).await.unwrap();
            machine.exit().await;
        };
        let seen = until(session.stdout.as_mut().unwrap(), "thr").await;
        let all = if terminal { "one\r\ntwo\r\nthr" } else { "one\nthr" };
        assert_eq!(seen, all);
        session.stdin.as_mut().unwrap().write_all(b"\n").await.unwrap();
        let (out, err, _) = end(session).await;
        let rest = if terminal {
            ("\r\nee\r\n", "")
        } else {
            ("ee\n", "two\n")
        };
        assert_eq!((out.as_str(), err.as_str()), rest);
        machine.exit().await;
    }
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
        // The client's input ends, and with it the session; the container's input stays open.
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
    let refused = attached(&machine, "closed", 20_000).await.unwrap_err().to_string();
    assert!(refused.contains("closed is exited"), "{refused}");
    machine.finish().await;
}

/// A container loses its client when the agent dies: its single input (`stdinOnce`) ends then, as
/// if the client had left.
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
            // Clients that left may be counted for a moment still.
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
            match attached(&machine, "c", 50).await {
                Ok(session) => sessions.push(session),
                // Some of the earlier clients may not have left yet.
                Err(_) if sessions.is_empty() => {}
                Err(refused) => break refused.to_string(),
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), filling)
        .await
        .expect("there is no bound");
    assert!(refused.contains("too many at the same time"), "{refused}");
    // One client writes and none reads: the pending bytes are bounded, and only the container
    // blocks.
    let stdin = sessions[0].stdin.as_mut().unwrap();
    let flood = async { while stdin.write_all(&[b'x'; 4096]).await.is_ok() {} };
    drop(tokio::time::timeout(Duration::from_millis(500), flood).await);
    drop(sessions);
    let joining = async {
        loop {
            if let Ok(session) = attached(&machine, "c", 1000).await {
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
    // The client's input ends, and with it the session; the container goes on.
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
    who_attaches_to_a_container_that_just_began_sees_all_of_it,
    clients_share_a_containers_streams_with_the_log,
    an_open_input_outlives_its_clients_and_what_is_not_open_takes_nothing,
    a_single_input_ends_with_the_agent_of_its_client,
    attack_17_clients_that_attach_and_vanish_or_do_not_read_leave_nothing,
    a_container_can_have_a_terminal,
);
