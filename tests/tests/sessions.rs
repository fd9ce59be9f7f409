//! Sessions of `skiff` in pods and diagnosis of deleted ones, on one real node.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::machine::{Machine, eventually};
use tests::{images, process};

/// Returns the command `skiff ARGUMENTS…` for this cluster.
fn skiff(machine: &Machine, words: &[&str]) -> anyhow::Result<Command> {
    let mut command = machine.namespace().command(process::programs()?.join("skiff"));
    command.arg("--state-dir").arg(machine.state()).args(words);
    Ok(command)
}

fn run(machine: &Machine, words: &[&str]) -> anyhow::Result<Output> {
    Ok(skiff(machine, words)?.stdin(Stdio::null()).output()?)
}

/// A command that goes on until this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn lines(running: &mut Running) -> anyhow::Result<impl Iterator<Item = std::io::Result<String>>> {
    let stdout = running.0.stdout.take().context("its output")?;
    Ok(BufReader::new(stdout).lines())
}

#[test]
fn people_reach_into_pods_and_learn_of_those_that_are_gone() -> anyhow::Result<()> {
    tests::logging();
    let home = tempfile::tempdir()?;
    let machine = Machine::start("sessions")?;
    let image = images::busybox(&machine)?;
    let manifest = include_str!("sessions.yaml").replace("IMAGE", &image);
    let file = home.path().join("sessions.yaml");
    std::fs::write(&file, manifest)?;
    machine.kubectl(["apply", "-f", &file.display().to_string()])?;
    machine.kubectl(["wait", "--for=condition=Ready", "pod/box", "--timeout=60s"])?;
    assert_exec(&machine)?;
    assert_attach(&machine)?;
    assert_forward(&machine)?;
    assert_copy(&machine, home.path())?;
    assert_why(&machine)?;
    let pulled = run(
        &machine,
        &["image", "pull", "skiff.invalid/absent:1", "--creds", "me:secret"],
    )?;
    let said = process::both(&pulled);
    assert!(
        !pulled.status.success() && said.contains("failed to resolve reference"),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
    machine.finish()
}

fn assert_exec(machine: &Machine) -> anyhow::Result<()> {
    let script = "echo out; echo err >&2; exit 7";
    let output = run(machine, &["exec", "box", "-c", "main", "--", "sh", "-c", script])?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(7), b"out\n".as_slice()),
        "{stderr}"
    );
    assert!(
        stderr.contains("err\n") && stderr.contains("command terminated with exit code 7"),
        "{stderr}"
    );

    // Standard input comes through whole, and its end as well.
    let mut child = skiff(machine, &["exec", "-i", "pod/box", "--", "sha256sum"])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("its input")?;
    stdin.write_all(&vec![b'x'; 1 << 20])?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let sum = "8f990ba0b577b51cf009ea049368c16bbda1b21e1b93be07a824758bb253c39b";
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with(sum),
        "{}",
        process::both(&output)
    );

    let output = run(machine, &["exec", "nobody", "--", "true"])?;
    let said = process::both(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("\"nobody\" not found"),
        "{said}"
    );
    let output = run(machine, &["exec", "box", "--", "/no/such/program"])?;
    assert!(!output.status.success(), "{}", process::both(&output));
    Ok(())
}

fn assert_attach(machine: &Machine) -> anyhow::Result<()> {
    let child = skiff(machine, &["attach", "box"])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut running = Running(child);
    let ticks = lines(&mut running)?.take(2).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(ticks, ["tick", "tick"]);
    Ok(())
}

fn assert_forward(machine: &Machine) -> anyhow::Result<()> {
    let child = skiff(machine, &["port-forward", "pod/box", ":8080"])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut running = Running(child);
    let first = lines(&mut running)?.next().context("a line")??;
    let address = first.split(' ').nth(2).context("an address")?.to_owned();
    assert!(
        first.starts_with("Forwarding from 127.0.0.1:") && first.ends_with(" -> 8080"),
        "{first}"
    );
    for _ in 0..3 {
        eventually("an answer through the forwarded port", || {
            let answer = machine.fetch(&format!("http://{address}/word"));
            match answer {
                Ok(answer) if answer == "hello\n" => Ok(()),
                Ok(answer) => Err(answer),
                Err(error) => Err(format!("{error:#}")),
            }
        })?;
    }
    Ok(())
}

fn assert_copy(machine: &Machine, home: &Path) -> anyhow::Result<()> {
    let tree = home.join("tree");
    std::fs::create_dir_all(tree.join("deep/er"))?;
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(tree.join("large"), &large)?;
    std::fs::write(tree.join("deep/er/small"), "small")?;
    std::os::unix::fs::symlink("/etc/passwd", tree.join("link"))?;
    let source = tree.display().to_string();
    let back = home.join("back");
    let target = back.display().to_string();
    for words in [["cp", &source, "box:/tmp"], ["cp", "default/box:/tmp/tree", &target]] {
        let output = run(machine, &words)?;
        assert!(output.status.success(), "{}", process::both(&output));
    }
    let mut copied = Vec::new();
    std::fs::File::open(back.join("large"))?.read_to_end(&mut copied)?;
    assert!(copied == large, "{} bytes", copied.len());
    assert_eq!(std::fs::read_to_string(back.join("deep/er/small"))?, "small");
    assert!(
        std::fs::symlink_metadata(back.join("link")).is_err(),
        "a link of a container is not followed"
    );
    let output = run(machine, &["cp", "box:/no/such/file", &target])?;
    let said = process::both(&output);
    assert!(!output.status.success() && said.contains("No such file"), "{said}");
    Ok(())
}

/// The same for an end that no agent observed, of a program that should have run on.
fn assert_unwatched(machine: &Machine) -> anyhow::Result<()> {
    let pod = |path: &str| machine.kubectl(["get", "pod", "quits", "-o", &format!("jsonpath={{{path}}}")]);
    machine.kubectl(["wait", "--for=condition=Ready", "pod/quits", "--timeout=60s"])?;
    let first = process::container_of(&pod(".metadata.uid")?)?;
    machine.kill("skiff-agent")?;
    kill(Pid::from_raw(first), Signal::SIGTERM)?;
    let process = Path::new("/proc").join(first.to_string());
    eventually("its process is gone", || {
        (!process.exists())
            .then_some(())
            .ok_or_else(|| process.display().to_string())
    })?;
    machine.skiff(["up"])?;
    eventually("it was started again", || {
        match pod(".status.containerStatuses[0].restartCount") {
            Ok(count) if count == "1" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    machine.kubectl(["delete", "pod", "quits"])?;
    is_told(
        machine,
        "pod/quits",
        &[
            "Container main was to run on, but ended.",
            "exit code 0: it finished without a failure.",
            "    | has quit",
        ],
    )
}

/// Waits until `skiff why` tells this of a pod that is gone: the node writes it down beside its work.
fn is_told(machine: &Machine, pod: &str, wanted: &[&str]) -> anyhow::Result<()> {
    eventually(&format!("why {pod} ended"), || {
        let output = run(machine, &["why", pod]).map_err(|error| format!("{error:#}"))?;
        let said = process::both(&output);
        let told = output.status.code() == Some(1) && wanted.iter().all(|wanted| said.contains(wanted));
        told.then_some(()).ok_or(said)
    })
}

/// The cause of a pod's end is known after its deletion.
fn assert_why(machine: &Machine) -> anyhow::Result<()> {
    machine.kubectl([
        "wait",
        "--for=jsonpath={.status.phase}=Failed",
        "pod/gone",
        "--timeout=60s",
    ])?;
    machine.kubectl(["delete", "pod", "gone"])?;
    is_told(
        machine,
        "pod/gone",
        &[
            "Pod default/gone is gone",
            "exit code 3: the program says that it failed.",
            "    | out of ideas",
            "what it printed should tell the cause",
            "MiB of memory at most",
        ],
    )?;
    assert_unwatched(machine)?;
    let output = run(machine, &["why", "pod/never"])?;
    let said = process::both(&output);
    assert!(
        !output.status.success() && said.contains("\"never\" not found"),
        "{said}"
    );
    Ok(())
}
