//! exec, attach, cp, debug, logs, port-forward and proxies, as stock clients use them against a real cluster.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use tests::machine::{Machine, eventually};
use tests::{images, process};

#[path = "streams/debug.rs"]
mod debug;
#[path = "streams/logs.rs"]
mod logs;

/// A stock kubectl.
struct Client<'a> {
    machine: &'a Machine,
    kubectl: &'a Path,
}

impl Client<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.machine.kubectl_command(self.kubectl);
        command.args(words);
        command
    }

    fn begin(&self, words: &[&str], input: &str) -> anyhow::Result<(Child, ChildStdin)> {
        let mut command = self.command(words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().context("stdin")?;
        stdin.write_all(input.as_bytes())?;
        Ok((child, stdin))
    }

    /// Standard output, standard error and the exit code.
    fn says(&self, words: &[&str], input: &str) -> anyhow::Result<(String, String, Option<i32>)> {
        let (child, stdin) = self.begin(words, input)?;
        drop(stdin);
        Ok(parts(&child.wait_with_output()?))
    }

    /// Like above, with an interactive client: the input does not end before the other side does.
    fn answers(&self, words: &[&str], input: &str) -> anyhow::Result<(String, String, Option<i32>)> {
        let (child, stdin) = self.begin(words, input)?;
        let output = child.wait_with_output()?;
        drop(stdin);
        Ok(parts(&output))
    }

    fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        process::run(&mut self.command(words))
    }
}

fn parts(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn stock_clients_talk_to_containers() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("streams")?;
    let nginx = images::nginx(&machine)?;
    let busybox = images::busybox(&machine)?;
    machine.kubectl(["run", "web", &format!("--image={nginx}"), "--port=80"])?;
    let two = format!(
        r#"{{"spec": {{"containers": [
            {{"name": "box", "image": "{busybox}", "command": ["sleep", "100000"]}},
            {{"name": "side", "image": "{busybox}", "command": ["sleep", "100000"]}}]}}}}"#
    );
    let host = r#"{"spec": {"hostNetwork": true}}"#;
    machine.kubectl([
        "run",
        "host",
        &format!("--image={nginx}"),
        &format!("--overrides={host}"),
    ])?;
    let image = format!("--image={busybox}");
    machine.kubectl(["run", "two", &image, &format!("--overrides={two}")])?;
    machine.kubectl(["create", "deployment", "many", &format!("--image={nginx}"), "--port=80"])?;
    machine.kubectl(["expose", "deployment", "many", "--port=8000", "--target-port=80"])?;
    logs::begin(&machine, &busybox)?;
    machine.kubectl([
        "wait",
        "--for=condition=Ready",
        "pod/web",
        "pod/two",
        "pod/host",
        "--timeout=60s",
    ])?;
    machine.kubectl(["rollout", "status", "deployment/many", "--timeout=60s"])?;
    let clients = process::kubectls()?;
    for (number, kubectl) in clients.iter().enumerate() {
        let client = Client {
            machine: &machine,
            kubectl,
        };
        let session = || -> anyhow::Result<()> {
            execute(&client)?;
            terminal(&client)?;
            copy(&client)?;
            interact(&client, &busybox, number)?;
            logs::tell(&client)?;
            debug::look_around(&client, &busybox, number)?;
            forward(&client)
        };
        session().with_context(|| kubectl.display().to_string())?;
    }
    let newest = clients.last().context("a kubectl")?;
    proxy(&Client {
        machine: &machine,
        kubectl: newest,
    })?;
    attack_17_clients_that_vanish(&machine, newest)?;
    successors(&machine, &image)?;
    machine.finish()
}

/// While a pod that was deleted by force still ends, its name means its successor.
fn successors(machine: &Machine, image: &str) -> anyhow::Result<()> {
    for round in 0..8 {
        let name = format!("--env=ROUND={round}");
        let run = ["run", "heir", image, &name, "--command", "--", "sleep", "100000"];
        machine.kubectl(run)?;
        machine.kubectl(["wait", "--for=condition=Ready", "pod/heir", "--timeout=60s"])?;
        let told = machine.kubectl(["exec", "heir", "--", "sh", "-c", "echo $ROUND"])?;
        ensure!(told.trim() == round.to_string(), "round {round}: {told}");
        machine.kubectl(["delete", "pod", "heir", "--force", "--grace-period=0"])?;
    }
    Ok(())
}

fn execute(client: &Client<'_>) -> anyhow::Result<()> {
    let script = "echo out; echo err >&2; exit 3";
    let (out, err, code) = client.says(&["exec", "two", "-c", "box", "--", "sh", "-c", script], "")?;
    ensure!(
        out == "out\n" && err.contains("err\n") && code == Some(3),
        "{out} {err} {code:?}"
    );
    ensure!(err.contains("command terminated with exit code 3"), "{err}");
    let text = "0123456789abcdef\n".repeat(20_000);
    let (out, err, code) = client.says(&["exec", "-i", "two", "-c", "side", "--", "cat"], &text)?;
    ensure!(out == text && code == Some(0), "{} bytes came back: {err}", out.len());
    let (_, err, _) = client.says(&["exec", "two", "-c", "box", "--", "absent"], "")?;
    ensure!(
        err.contains("exec: \"absent\": executable file not found in $PATH"),
        "{err}"
    );
    let (_, err, _) = client.says(&["exec", "two", "-c", "none", "--", "true"], "")?;
    ensure!(err.contains("container none is not valid for pod two"), "{err}");
    let (_, err, _) = client.says(&["exec", "nobody", "--", "true"], "")?;
    ensure!(err.contains("pods \"nobody\" not found"), "{err}");
    // Without a name the first container is kubectl's choice; what a server is left to choose it refuses.
    let path = "/api/v1/namespaces/default/pods/two/exec?command=true&stdout=true";
    let (_, err, _) = client.says(&["get", "--raw", path], "")?;
    ensure!(
        err.contains("a container name must be specified for pod two, choose one of: [box side]"),
        "{err}"
    );
    let (_, err, _) = client.says(&["get", "--raw", &format!("{path}&container=box")], "")?;
    ensure!(err.contains("Upgrade request required"), "{err}");
    Ok(())
}

/// With its own terminal, made by `script`.
fn terminal(client: &Client<'_>) -> anyhow::Result<()> {
    let command = client.command(&[
        "exec",
        "-it",
        "two",
        "-c",
        "box",
        "--",
        "sh",
        "-c",
        "tty; stty size; exit 6",
    ]);
    let words: Vec<String> = [command.get_program()]
        .into_iter()
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")))
        .collect();
    let line = format!("stty rows 33 cols 77; {}", words.join(" "));
    let output = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()?;
    let said = process::both(&output);
    ensure!(said.contains("/dev/pts/") && output.status.code() == Some(6), "{said}");
    Ok(())
}

fn copy(client: &Client<'_>) -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let path = |name: &str| home.path().join(name).display().to_string();
    let mut big = vec![0_u8; 100 << 20];
    for (index, byte) in big.iter_mut().enumerate() {
        // No two blocks of it are alike.
        *byte = index.wrapping_mul(2_654_435_761).to_be_bytes()[2];
    }
    std::fs::create_dir_all(home.path().join("there/below"))?;
    std::fs::write(home.path().join("there/big"), &big)?;
    std::fs::write(home.path().join("there/below/small"), "small")?;
    std::os::unix::fs::symlink("big", home.path().join("there/link"))?;
    client.run(&["exec", "two", "-c", "box", "--", "rm", "-rf", "/tmp/there"])?;
    client.run(&["cp", "-c", "box", &path("there"), "two:/tmp/there"])?;
    let link = client.run(&["exec", "two", "-c", "box", "--", "readlink", "/tmp/there/link"])?;
    ensure!(link == "big\n", "{link:?}");
    client.run(&["cp", "-c", "box", "two:/tmp/there", &path("back")])?;
    ensure!(
        std::fs::read(home.path().join("back/big"))? == big,
        "the file changed on its way"
    );
    ensure!(std::fs::read_to_string(home.path().join("back/below/small"))? == "small");
    Ok(())
}

/// `kubectl run -i --rm`: attach, input, its end, and the exit code.
fn interact(client: &Client<'_>, busybox: &str, number: usize) -> anyhow::Result<()> {
    let (name, image) = (format!("visitor-{number}"), format!("--image={busybox}"));
    let script = "echo ready; while read line; do echo got $line; done; exit 7";
    let words = [
        "run",
        "-i",
        "--rm",
        "--restart=Never",
        &name,
        &image,
        "--",
        "sh",
        "-c",
        script,
    ];
    let (out, err, code) = client.says(&words, "one\ntwo\n")?;
    ensure!(
        out.contains("got one\ngot two\n") && code == Some(7),
        "{out} {err} {code:?}"
    );
    Ok(())
}

/// A kubectl that forwards a port until it is dropped.
struct Forwarder {
    child: Child,
    port: u16,
    /// The process ends once its output has no reader.
    _stdout: BufReader<ChildStdout>,
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn forwarder(client: &Client<'_>, words: &[&str]) -> anyhow::Result<Forwarder> {
    let mut command = client.command(&["port-forward"]);
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut stdout = BufReader::new(child.stdout.take().context("stdout")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    let port = line.split(" -> ").next().and_then(|text| text.rsplit(':').next());
    let port = port.and_then(|port| port.parse().ok());
    let forwarder = Forwarder {
        child,
        port: port.unwrap_or(0),
        _stdout: stdout,
    };
    ensure!(forwarder.port > 0, "{words:?} said {line:?}");
    Ok(forwarder)
}

fn forward(client: &Client<'_>) -> anyhow::Result<()> {
    for words in [
        ["pod/web", ":80"],
        ["deployment/many", ":80"],
        ["service/many", ":8000"],
    ] {
        let forwarder = forwarder(client, &words)?;
        let address = format!("http://127.0.0.1:{}/", forwarder.port);
        let fetches: Vec<_> = (0..20)
            .map(|_| {
                let mut command = client.machine.namespace().command("curl");
                command
                    .args(["-sS", "--fail", "--max-time", "20", &address])
                    .stdout(Stdio::piped());
                command.spawn()
            })
            .collect::<Result<_, _>>()?;
        for fetch in fetches {
            let output = fetch.wait_with_output()?;
            ensure!(
                process::both(&output).contains("Welcome to nginx"),
                "{words:?}: {}",
                process::both(&output)
            );
        }
    }
    Ok(())
}

fn proxy(client: &Client<'_>) -> anyhow::Result<()> {
    let base = "/api/v1/namespaces/default";
    for path in [
        "pods/web/proxy/",
        "pods/web:80/proxy/index.html",
        "pods/http:web:80/proxy/?any=query",
        "services/many:8000/proxy/",
        "services/many/proxy/",
    ] {
        let said = client.run(&["get", "--raw", &format!("{base}/{path}")])?;
        ensure!(said.contains("Welcome to nginx"), "{path}: {said}");
    }
    let node = client.run(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    ensure!(client.run(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/healthz")])? == "ok");
    let refused = |path: &str, because: &str| -> anyhow::Result<()> {
        let (_, err, _) = client.says(&["get", "--raw", path], "")?;
        ensure!(err.contains(because), "{path}: {err}");
        Ok(())
    };
    refused(
        &format!("{base}/pods/web:81/proxy/"),
        "error trying to reach service: dial tcp 10.",
    )?;
    refused(
        &format!("{base}/services/many:9/proxy/"),
        "no service port 9 found for service \"many\"",
    )?;
    refused(
        &format!("{base}/pods/ftp:web:80/proxy/"),
        "invalid pod request \"ftp:web:80\"",
    )?;
    refused(
        &format!("{base}/pods/web:http/proxy/"),
        "error trying to reach service: dial tcp: lookup tcp/http: unknown port",
    )?;
    // attack_27: of a node what listens at its own address; what does on its loopback is out of reach.
    let said = client.run(&["get", "--raw", &format!("/api/v1/nodes/{node}:80/proxy/")])?;
    ensure!(said.contains("Welcome to nginx"), "{said}");
    refused(
        &format!("/api/v1/nodes/{node}:1/proxy/"),
        ":1: connect: connection refused",
    )
}

/// Killed clients leave no process, descriptor or connection behind.
fn attack_17_clients_that_vanish(machine: &Machine, kubectl: &Path) -> anyhow::Result<()> {
    let client = Client { machine, kubectl };
    let agent = machine.daemon("skiff-agent")?;
    let server = machine.daemon("skiff-controlplane")?;
    let open = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let before = (open(agent), open(server));
    for words in [
        &["exec", "two", "-c", "box", "--", "sleep", "4321"][..],
        &["exec", "-i", "two", "-c", "box", "--", "sh", "-c", "sleep 4321"],
        &["attach", "two", "-c", "box"],
    ] {
        let mut children: Vec<Child> = (0..5)
            .map(|_| {
                client
                    .command(words)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
            })
            .collect::<Result<_, _>>()?;
        eventually("the clients are connected", || {
            let now = open(agent);
            if now >= before.0 + 5 {
                Ok(())
            } else {
                Err(format!("{now} descriptors"))
            }
        })?;
        for child in &mut children {
            child.kill()?;
            child.wait()?;
        }
        // Counted before a client of our own asks, whose descriptors may outlive it for a moment.
        eventually("everything of theirs is closed", || {
            let now = (open(agent), open(server));
            // A watch or two may have started.
            let closed = now.0 <= before.0 + 2 && now.1 <= before.1 + 4;
            closed.then_some(()).ok_or_else(|| format!("{before:?} {now:?}"))
        })?;
        eventually("their programs are gone", || {
            let programs = client.run(&["exec", "two", "-c", "box", "--", "ps"]);
            let programs = programs.map_err(|error| error.to_string())?;
            let gone = !programs.contains("4321");
            gone.then_some(()).ok_or(programs)
        })?;
    }
    Ok(())
}
