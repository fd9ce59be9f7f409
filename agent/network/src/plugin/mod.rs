//! The built-in network as a CNI plugin, for those whose containers others make: `skiff-bridge`, versions 0.3.0 to 1.1.0 of the
//! protocol.
//!
//! ```text
//! {"type": "skiff-bridge", "bridge": "pods0", "subnet": "10.22.0.0/24", "capabilities": {"portMappings": true, "ipRanges": true}}
//! ```
//!
//! `subnet` may also be one range of each family: `"10.22.0.0/24,fd00:22::/64"`.
//!
//! The plugin is called for each step and keeps nothing but the records in its folder. It makes the bridge when it is missing, gives
//! addresses by itself and leads ports of the node, so it needs neither an IPAM plugin nor `portmap`. An address whose namespace is
//! gone is free again.

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

/// The plugin's name: that of its file, and so the `type` in a configuration.
pub const NAME: &str = "skiff-bridge";
/// What the standard input may hold.
const INPUT_LIMIT: u64 = 4 << 20;
/// The versions of the protocol that this speaks.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Does what a CNI runtime asks for, when this program was called by the plugin's name or with that as its first word.
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
    // Who asked may have gone away.
    drop(std::io::stdout().write_all(text.as_bytes()));
    code
}

/// The answer to one call; nothing where the protocol has none.
fn answer(environment: &Environment, input: &str) -> Result<Option<Value>, Refusal> {
    if environment.command == "VERSION" {
        let asked: Value = serde_json::from_str(input).unwrap_or_default();
        let version = asked.get("cniVersion").and_then(Value::as_str).unwrap_or("1.1.0");
        return Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS})));
    }
    let asked = Asked::parse(input)?;
    // One at a time: the records are one process's.
    let _turn = lock(&asked.state)?;
    let bridge = Bridge::open(Config {
        state_dir: asked.state.clone(),
        bridge: asked.bridge.clone(),
        direct: asked.direct.clone(),
        routes: None,
        slots: 0,
        // Its caller may give pods other addresses as well.
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
        // It could be opened. That all addresses are given is told with ADD: a node that is not ready loses the pods that it has.
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
    Ok(answer::result(asked, &attachment, &bridge.link(&attachment.sandbox_id)))
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

/// Detaches what the runtime does not know any more.
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
