//! Rules for the whole tree: dependencies between crates and files, no forgotten or oversized file,
//! a fixture for every kind, valid units, and a README whose commands are really run.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

#[path = "tidy/circles.rs"]
mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Dependencies of each crate of the workspace on others of it. An edge that is missing here is a
/// mistake, or a change of the design.
const EDGES: &[(&str, &[&str])] = &[
    ("common", &[]),
    ("controlplane-api", &[]),
    ("controlplane-cel", &["controlplane-api"]),
    ("controlplane-plan", &["controlplane-api"]),
    ("controlplane-schema", &["controlplane-api", "controlplane-cel"]),
    ("controlplane-store", &[]),
    ("controlplane-etcd", &["controlplane-store"]),
    (
        "controlplane-server",
        &[
            "common-tls",
            "controlplane-api",
            "controlplane-cel",
            "controlplane-schema",
            "controlplane-store",
        ],
    ),
    ("controlplane-controllers", &["controlplane-api", "controlplane-plan"]),
    (
        "controlplane",
        &[
            "common",
            "controlplane-api",
            "controlplane-controllers",
            "controlplane-etcd",
            "controlplane-server",
            "controlplane-store",
        ],
    ),
    ("agent-plan", &["controlplane-api"]),
    ("agent-containerd", &[]),
    ("agent-csi", &[]),
    ("agent-dns", &["agent-plan", "common"]),
    ("agent-failpoint", &[]),
    ("agent-trees", &[]),
    ("agent-image", &["agent-containerd", "common-proxy", "common-tls"]),
    ("agent-network", &["agent-failpoint", "agent-plan", "controlplane-api"]),
    ("agent-runtime", &["agent-containerd", "agent-failpoint", "agent-trees"]),
    ("agent-volume", &["agent-plan", "agent-trees"]),
    (
        "agent",
        &[
            "agent-csi",
            "agent-dns",
            "agent-failpoint",
            "agent-image",
            "agent-network",
            "agent-plan",
            "agent-runtime",
            "agent-trees",
            "agent-volume",
            "common",
            "common-proxy",
            "common-tls",
            "controlplane-api",
        ],
    ),
    ("common-proxy", &[]),
    ("common-tls", &[]),
    ("ctl", &["common-proxy"]),
    (
        "tests",
        &[
            "agent",
            "agent-containerd",
            "agent-csi",
            "agent-failpoint",
            "agent-image",
            "agent-network",
            "agent-plan",
            "agent-runtime",
            "controlplane-api",
            "controlplane-controllers",
            "controlplane-server",
            "controlplane-store",
        ],
    ),
];

/// Crates that a crate without side effects must not depend on.
const EFFECTS: &[&str] = &[
    "tokio",
    "kube",
    "rusqlite",
    "rtnetlink",
    "tonic",
    "hyper",
    "axum",
    "nix",
    "rand",
    "time",
    "reqwest",
    "libcontainer",
];

const PURE: &[&str] = &[
    "controlplane-api",
    "controlplane-cel",
    "controlplane-plan",
    "controlplane-schema",
    "agent-plan",
];

/// Maximum number of lines in a file of Rust, TypeScript or Svelte; more needs a reason in
/// [`LONG_FILES`].
const MOST_LINES: usize = 500;

/// Files that may be longer, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Maximum number of modules beside each other in a folder of a crate; more needs a reason in
/// [`WIDE_FOLDERS`].
const MOST_MODULES: usize = 12;

/// Folders that may have more modules, each with its reason.
const WIDE_FOLDERS: &[(&str, &str)] = &[("controlplane/api/src/kinds", "one kind each")];

fn root() -> PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the tests are"))
        .parent()
        .expect("the workspace's folder")
        .to_path_buf()
}

fn tracked(ending: &str) -> Vec<String> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    assert!(
        listing.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listing.stderr)
    );
    String::from_utf8(listing.stdout)
        .expect("file names are UTF-8")
        .lines()
        .filter(|name| name.ends_with(ending) && root().join(name).is_file())
        .map(str::to_owned)
        .collect()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns every crate of the workspace with its dependencies of the given kinds.
fn dependencies(kinds: &[Option<&str>]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
    metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|package| {
            let used = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .filter(|dependency| kinds.contains(&dependency["kind"].as_str()))
                .map(|dependency| text(&dependency["name"]))
                .collect();
            (text(&package["name"]), used)
        })
        .collect()
}

#[test]
fn crates_use_what_their_row_says() {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let members: BTreeSet<String> = dependencies(&[]).into_keys().collect();
    let mut wrong = Vec::new();
    for (member, used) in dependencies(&[None, Some("dev"), Some("build")]) {
        let Some(row) = allowed.get(member.as_str()) else {
            wrong.push(format!("{member} has no row"));
            continue;
        };
        let ours = used.iter().filter(|name| members.contains(*name));
        let ours: BTreeSet<&str> = ours.map(String::as_str).collect();
        let row: BTreeSet<&str> = row.iter().copied().collect();
        let other = ours.symmetric_difference(&row);
        wrong.extend(other.map(|name| format!("{member} -> {name}")));
    }
    assert!(
        wrong.is_empty(),
        "edges in one of table and manifests alone: {wrong:#?}"
    );
}

#[test]
fn pure_crates_reach_no_effects() {
    let used = dependencies(&[None]);
    let wrong: Vec<String> = PURE
        .iter()
        .flat_map(|member| used[*member].iter().map(move |name| (member, name)))
        .filter(|(_, name)| EFFECTS.contains(&name.as_str()))
        .map(|(member, name)| format!("{member} -> {name}"))
        .collect();
    assert!(wrong.is_empty(), "crates that only decide reach the world: {wrong:#?}");
}

/// They are a workspace of their own, whose builds refuse a lock that is not up to date.
#[test]
fn the_fuzz_targets_lock_has_what_our_crates_use() {
    let lock = read("fuzz/Cargo.lock");
    let quoted = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
    let used = dependencies(&[None, Some("build")]);
    let mut missing = Vec::new();
    for package in lock.split("[[package]]") {
        let name = package.lines().find(|line| line.starts_with("name = ")).map(quoted);
        let Some((name, used)) = name.and_then(|name| used.get_key_value(&name)) else {
            continue;
        };
        let listed = package.lines().filter(|line| line.starts_with(" \""));
        // `"nix 0.31.3"` where there are several.
        let listed = listed.map(|line| quoted(line).split(' ').next().unwrap_or_default().to_owned());
        let listed: BTreeSet<String> = listed.collect();
        missing.extend(used.difference(&listed).map(|other| format!("{name} -> {other}")));
    }
    assert!(
        missing.is_empty(),
        "cargo +nightly update --workspace in fuzz/: {missing:#?}"
    );
}

/// Fails for names whose number is over `most` without a reason, and for reasons without such a name.
fn explained(mut numbers: BTreeMap<String, usize>, most: usize, reasons: &[(&str, &str)]) {
    numbers.retain(|_, number| *number > most);
    let reasons: BTreeMap<&str, &str> = reasons.iter().copied().collect();
    let unexplained: Vec<_> = numbers
        .iter()
        .filter(|(name, _)| !reasons.contains_key(name.as_str()))
        .collect();
    assert!(unexplained.is_empty(), "over {most} without a reason: {unexplained:#?}");
    let stale: Vec<_> = reasons.keys().filter(|name| !numbers.contains_key(**name)).collect();
    assert!(
        stale.is_empty(),
        "reasons for what is not over {most} or gone: {stale:#?}"
    );
}

#[test]
fn files_are_short() {
    let lines = [".rs", ".ts", ".svelte", ".mjs"]
        .into_iter()
        .flat_map(tracked)
        .map(|name| (name.clone(), read(&name).lines().count()))
        .collect();
    explained(lines, MOST_LINES, LONG_FILES);
}

#[test]
fn folders_are_narrow() {
    let mut modules: BTreeMap<String, usize> = BTreeMap::new();
    for name in tracked(".rs") {
        let path = Path::new(&name);
        let folder = path.parent().unwrap_or(path);
        let folder = if name.ends_with("/mod.rs") {
            folder.parent()
        } else {
            Some(folder)
        };
        if let Some(folder) = folder.and_then(Path::to_str)
            && !is_root(&name)
            && !name.ends_with("/tests.rs")
            && path.iter().any(|part| part == "src")
        {
            *modules.entry(folder.to_owned()).or_default() += 1;
        }
    }
    explained(modules, MOST_MODULES, WIDE_FOLDERS);
}

/// Every module file is named by a `mod` line (or a `#[path]`) of a file beside or above it.
#[test]
fn no_rust_file_is_forgotten() {
    let files = tracked(".rs");
    let sources: Vec<(String, String)> = files.iter().map(|name| (name.clone(), read(name))).collect();
    let forgotten: Vec<&String> = files
        .iter()
        .filter(|name| !is_root(name))
        .filter(|name| {
            let path = Path::new(name);
            let stem = path.file_stem().expect("a file name").to_string_lossy().into_owned();
            let (folder, module) = match (stem.as_str(), path.parent()) {
                ("mod", Some(folder)) => (folder.parent().unwrap_or(folder), file_name(folder)),
                (_, folder) => (folder.unwrap_or(Path::new("")), stem),
            };
            !sources.iter().any(|(other, text)| {
                let other = Path::new(other);
                let near = other.parent() == Some(folder) || other.with_extension("") == folder;
                near && declares(text, &module)
            })
        })
        .collect();
    assert!(forgotten.is_empty(), "files that no module line names: {forgotten:#?}");
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn declares(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        line.strip_suffix(';')
            .or_else(|| line.strip_suffix('{'))
            .is_some_and(|line| {
                let line = line.trim_end();
                line.split_whitespace().last() == Some(module) && line.split_whitespace().any(|word| word == "mod")
            })
            || line.contains(&format!("{module}.rs\""))
    })
}

/// A file that cargo finds by itself: the root of a crate, of a binary, of a test, of a benchmark or a build script.
fn is_root(name: &str) -> bool {
    let path = Path::new(name);
    let parent = path.parent().map(file_name).unwrap_or_default();
    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    let beside_manifest = |folder: &Path| folder.join("Cargo.toml").is_file();
    let two_up = path
        .parent()
        .and_then(Path::parent)
        .map(|folder| root().join(folder))
        .unwrap_or_default();
    stem == "build"
        || (matches!(stem.as_str(), "lib" | "main") && beside_manifest(&two_up))
        || (matches!(
            parent.as_str(),
            "tests" | "bin" | "examples" | "benches" | "fuzz_targets"
        ))
        || stem == "main"
}

#[test]
fn every_kind_has_a_fixture() {
    let names: BTreeSet<String> = tracked(".yaml").into_iter().chain(tracked(".json")).collect();
    let missing: Vec<&str> = api::KINDS
        .iter()
        .map(|registration| registration.kind)
        .filter(|kind| {
            let wanted = format!("/fixtures/{}", kind.to_lowercase());
            !names.iter().any(|name| {
                name.starts_with("controlplane/api/")
                    && name.rsplit_once('.').is_some_and(|(stem, _)| stem.ends_with(&wanted))
            })
        })
        .collect();
    assert!(missing.is_empty(), "kinds without a fixture: {missing:?}");
}

/// A pod's processes are children of the agent and inherit what its unit makes filters of system calls of.
#[test]
fn the_agents_unit_filters_no_system_calls() {
    let filters = [
        "SystemCall",
        "Restrict",
        "Protect",
        "Private",
        "LockPersonality",
        "MemoryDeny",
    ];
    let unit = read("systemd/skiff-agent.service");
    let found: Vec<&str> = unit
        .lines()
        .filter(|line| filters.iter().any(|key| line.starts_with(key)))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// `systemd-analyze verify` exits 0 on keys that it does not know, so any output is a failure.
#[test]
fn systemd_units_are_valid() {
    let units = tracked(".service");
    assert!(!units.is_empty(), "there are units");
    let home = tempfile::tempdir().expect("a folder");
    for unit in &units {
        // The programs are not installed where the tests run: point the units at one that is.
        let text: String = read(unit)
            .lines()
            .map(|line| match line.split_once('=') {
                Some((key, _)) if key.starts_with("Exec") => format!("{key}=/bin/true\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let path = home.path().join(file_name(Path::new(unit)));
        std::fs::write(&path, text).expect("write the unit");
    }
    for unit in &units {
        let path = home.path().join(file_name(Path::new(unit)));
        let check = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&path)
            .env("SYSTEMD_UNIT_PATH", format!("{}:", home.path().display()))
            .output()
            .expect("systemd-analyze runs");
        let said = String::from_utf8_lossy(&check.stderr).into_owned() + &String::from_utf8_lossy(&check.stdout);
        let about_us: Vec<&str> = said.lines().filter(|line| line.contains("skiff")).collect();
        assert!(check.status.success() && about_us.is_empty(), "{unit}: {said}");
    }
}

/// The agent needs its capabilities; the control plane needs a port and a directory.
#[test]
fn the_control_planes_unit_is_confined() {
    let check = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=15", "--no-pager"])
        .arg(root().join("systemd/skiff-controlplane.service"))
        .output()
        .expect("systemd-analyze runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

#[test]
fn the_readme_names_the_commands_that_ci_runs() {
    let (readme, ci, makefile) = (read("README.md"), read(".ci/run"), read("Makefile"));
    for command in ["make demo", "make test"] {
        assert!(readme.contains(command), "README.md names `{command}`");
    }
    for target in ["demo", "down", "test"] {
        let rule = format!("{target}:");
        assert!(
            makefile.lines().any(|line| line.starts_with(&rule)),
            "the Makefile has a rule `{rule}`"
        );
    }
    assert!(ci.contains("make test"), ".ci/run calls the README's test command");
}

/// Folders of a build may be shared by checkouts: what was built in one is not built again in another, whose files it would
/// not find.
#[test]
fn no_program_knows_where_it_was_built() {
    let baked = concat!("env!(\"CARGO_MANIFEST", "_DIR\")");
    let wrong: Vec<String> = tracked(".rs")
        .into_iter()
        .filter(|name| read(name).contains(baked))
        .collect();
    assert!(wrong.is_empty(), "these ask at the time of the build: {wrong:?}");
}
