//! The built-in network as a CNI plugin for other container runtimes: `skiff-bridge`, versions
//! 0.3.0 to 1.1.0 of the specification.
//!
//! ```text
//! {"type": "skiff-bridge", "bridge": "pods0", "subnet": "10.22.0.0/24", "capabilities": {"portMappings": true, "ipRanges": true}}
//! ```
//!
//! `subnet` may also be one range of each family: `"10.22.0.0/24,fd00:22::/64"`.
//!
//! The plugin is called for each operation and keeps no state except for the records in its
//! directory. It creates a missing bridge, allocates addresses by itself and maps host ports, so it
//! needs neither an IPAM plugin nor `portmap`. An address whose namespace is gone is free again.

mod answer;
mod asked;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use crate::bridge::{Bridge, Config, Place};
use crate::{AttachSpec, Attachment};
use answer::{Code, Refusal};
use asked::{Asked, Environment};

/// Name of the plugin's program file, and the `type` in a configuration.
pub const NAME: &str = "skiff-bridge";
/// Maximum size of the standard input.
const INPUT_LIMIT: u64 = 4 << 20;
/// Supported versions of the specification.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Handles a call of a CNI runtime, if this program was called by the plugin's name or with that as
/// its first argument.
pub fn helper(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let program = words.next()?;
    let named = Path::new(&program).file_name().is_some_and(|name| name == NAME);
    (named || words.next().is_some_and(|word| word == NAME)).then(main)
}

fn main() -> ExitCode {
    let mut input = String::new();
    let read = std::io::stdin().take(INPUT_LIMIT).read_to_string(&mut input);
    let answered = match read {
        Ok(_) => answer(&Environment::of_process(), &input),
        Err(error) => Err(Refusal::new(Code::Input, "read the standard input", &error)),
    };
    let (text, code) = match answered {
        Ok(Some(answer)) => (answer.to_string(), ExitCode::SUCCESS),
        Ok(None) => (String::new(), ExitCode::SUCCESS),
        Err(refusal) => (refusal.to_json(&input).to_string(), ExitCode::FAILURE),
    };
    // The caller may have exited.
    drop(std::io::stdout().write_all(text.as_bytes()));
    code
}

/// Answer to one call; `None` if the specification has none.
fn answer(environment: &Environment, input: &str) -> Result<Option<Value>, Refusal> {
    if environment.command == "VERSION" {
        let asked: Value = serde_json::from_str(input).unwrap_or_default();
        let version = asked.get("cniVersion").and_then(Value::as_str).unwrap_or("1.1.0");
        return Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS})));
    }
    let asked = Asked::parse(input)?;
    // Serialized by a lock: the records belong to one process at a time.
    let _turn = lock(&asked.state)?;
    let bridge = Bridge::open(Config {
        state_dir: asked.state.clone(),
        bridge: asked.bridge.clone(),
        direct: asked.direct.clone(),
        routes: None,
        slots: 0,
        // The caller may give pods other addresses as well.
        guarded: false,
    })?;
    match environment.command.as_str() {
        "ADD" => add(&bridge, environment, &asked).map(Some),
        "DEL" => bridge
            .detach_now(&environment.key()?)
            .map(|()| None)
            .map_err(Refusal::from),
        "CHECK" => check(&bridge, environment, &asked).map(|()| None),
        "GC" => collect(&bridge, &asked).map(|()| None),
        // The network could be opened. Exhausted ranges are reported at ADD only: a node that is
        // not ready would lose its running pods.
        "STATUS" => Ok(None),
        other => Err(Refusal::plain(
            Code::Environment,
            format!("CNI_COMMAND {other:?} is none of ADD, DEL, CHECK, GC, STATUS and VERSION"),
        )),
    }
}

fn lock(state: &Path) -> Result<Flock<File>, Refusal> {
    let failed = |error: &dyn std::error::Error| Refusal::new(Code::Io, "open the plugin's folder", error);
    std::fs::create_dir_all(state).map_err(|error| failed(&error))?;
    let file = File::create(state.join("lock")).map_err(|error| failed(&error))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| failed(&error))
}

fn add(bridge: &Bridge, environment: &Environment, asked: &Asked) -> Result<Value, Refusal> {
    let (key, netns, interface) = (environment.key()?, environment.netns()?, environment.interface()?);
    bridge.start_now(asked.ranges()?)?;
    let spec = AttachSpec {
        sandbox_id: key,
        ports: asked.ports.clone(),
        ..AttachSpec::default()
    };
    let place = Place { netns, interface };
    let attachment = bridge.join_now(&spec, &place)?;
    let link = bridge.link(&attachment.sandbox_id);
    Ok(answer::result(&asked.version, &asked.bridge, &attachment, &link))
}

fn known(bridge: &Bridge, environment: &Environment) -> Result<Attachment, Refusal> {
    let key = environment.key()?;
    let missing = || Refusal::plain(Code::Unknown, "the container is not attached".to_owned());
    let found = bridge.known().into_iter().find(|known| known.sandbox_id == key);
    found.ok_or_else(missing)
}

fn check(bridge: &Bridge, environment: &Environment, asked: &Asked) -> Result<(), Refusal> {
    let attachment = known(bridge, environment)?;
    let differs = |what: &str| Err(Refusal::plain(Code::Differs, format!("{what} is not as it was made")));
    let said = asked.previous_addresses();
    let held: Vec<String> = attachment.addresses.iter().map(ToString::to_string).collect();
    if !said.is_empty() && said != held {
        return differs("the address");
    }
    if attachment.netns != environment.netns()? || attachment.interface != environment.interface()? {
        return differs("the interface");
    }
    if !bridge.is_connected(&attachment.sandbox_id)? {
        return differs("the connection to the bridge");
    }
    Ok(())
}

/// Detaches containers that the runtime does not list any more (GC).
fn collect(bridge: &Bridge, asked: &Asked) -> Result<(), Refusal> {
    let valid = asked.valid.as_deref().unwrap_or_default();
    let valid = valid.iter().map(Environment::key).collect::<Result<Vec<_>, _>>()?;
    let mut failures = Vec::new();
    for attachment in bridge.known() {
        if !valid.contains(&attachment.sandbox_id)
            && let Err(error) = bridge.detach_now(&attachment.sandbox_id)
        {
            failures.push(Refusal::from(error).text());
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(Refusal::plain(Code::Io, failures.join("; ")))
}
