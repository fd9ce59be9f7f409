//! Parsers of untrusted bytes, fed with a corpus (`fuzz/corpus/TARGET/`) and with random mutations
//! of it: none may panic, take long or take much memory. `fuzz/run TARGET` mutates by the
//! compiler's coverage instead.
//!
//! The chance has a fixed seed. `SKIFF_FUZZ_SECONDS=600` looks longer than the second that each target gets otherwise,
//! `SKIFF_FUZZ_SEED=7` elsewhere. An input that is not survived is left in a file; once it is, it belongs into the corpus.

#![allow(clippy::panic, reason = "a test fails by panicking")]

#[path = "../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "the file is a library, too")]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use api::protobuf;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::time::Instant;

use targets::SLOWEST;

/// Longest input. What is longer differs only in length.
const LONGEST: usize = 16 << 10;
/// Memory limit of a fuzz target.
const MEMORY_KIB: u64 = 256 << 10;

/// Tokens of the parsed formats.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "-1",
    "1e999",
    "0.1",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "&a",
    "*a",
    "<<: *a",
    "---\n",
    "!!binary ",
    "|\n ",
    "? ",
    "- ",
    "\t",
    "..",
    "/",
    "%2f",
    "%",
    "?",
    "&",
    "=",
    "in (",
    "notin (",
    "!",
    ",",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "delete",
    "replace",
    "op",
    "path",
    "from",
    "value",
    "~1",
    "~0",
    "/-",
    "/0",
    "metadata",
    "spec",
    "containers",
    "name",
    "kind",
    "apiVersion",
    "sha256:",
    "@",
    "1Ki",
    "1e3",
    "m",
    "E",
    "0x",
    "2026-01-01T00:00:00Z",
    "stdout F ",
    "stderr P ",
    "\n",
    "\r\n",
    "\0",
    "\u{feff}",
    "é",
    "𝄞",
];

macro_rules! targets {
    ($($name:ident: $read:ident;)*) => {
        $(#[test]
        fn $name() -> anyhow::Result<()> {
            fuzz(stringify!($read), targets::$read)
        })*

        const TARGETS: &[&str] = &[$(stringify!($read)),*];
    };
}

targets! {
    attack_24_json_objects: json_objects;
    attack_24_yaml_objects: yaml_objects;
    attack_24_protobuf_objects: protobuf_objects;
    attack_24_patches: patches;
    attack_23_requests: requests;
    selectors: selectors;
    tokens: tokens;
    upgrades: upgrades;
    attack_06_manifests: manifests;
    attack_05_layers: layers;
    attack_14_log_lines: log_lines;
    spdy: spdy;
    websocket: websocket;
    attack_42_plugins: plugins;
}

/// The targets are those of cargo-fuzz.
#[test]
fn cargo_fuzz_runs_the_same_targets() -> anyhow::Result<()> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml"))?;
    for target in TARGETS {
        let program = std::fs::read_to_string(root.join(format!("fuzz_targets/{target}.rs"))).context(*target)?;
        assert!(program.contains(&format!("fuzz::{target}(bytes)")), "{program}");
        assert!(
            manifest.contains(&format!("\nname = \"{target}\"\n")),
            "{target} is not in Cargo.toml"
        );
    }
    let programs = std::fs::read_dir(root.join("fuzz_targets"))?.count();
    assert_eq!(
        (programs, manifest.matches("[[bin]]").count()),
        (TARGETS.len(), TARGETS.len())
    );
    Ok(())
}

/// Replays the corpus, then mutations of it.
fn fuzz(target: &str, read: fn(&[u8])) -> anyhow::Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("SKIFF_FUZZ_SECONDS").unwrap_or(1));
    let seed = number("SKIFF_FUZZ_SEED").unwrap_or(36);
    let corpus = corpus(target)?;
    anyhow::ensure!(!corpus.is_empty(), "{target} has no corpus");
    // Only failing inputs are of interest, and they are reported below.
    std::panic::set_hook(Box::new(|_info| {}));
    let before = memory_kib()?;
    for input in &corpus {
        feed(target, read, input)?;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let start = Instant::now();
    let mut inputs = 0_usize;
    while start.elapsed() < time {
        let input = mutated(&corpus, &mut random);
        feed(target, read, &input).with_context(|| format!("input {inputs} of seed {seed}"))?;
        inputs += 1;
    }
    let grown = memory_kib()?.saturating_sub(before);
    anyhow::ensure!(grown < MEMORY_KIB, "{target} came to need {grown} KiB");
    tests::logging();
    tracing::info!(target, inputs, grown_kib = grown, "survived");
    Ok(())
}

/// Hands an input over and leaves it in a file when it is not survived.
fn feed(target: &str, read: fn(&[u8]), input: &[u8]) -> anyhow::Result<()> {
    let read = || {
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| read(input)));
        (ended, start.elapsed())
    };
    let (mut ended, mut took) = read();
    // Other programs may hold up one reading; an input that is slow is slow again.
    for _ in 0..2 {
        if ended.is_ok() && took >= SLOWEST {
            (ended, took) = read();
        }
    }
    if ended.is_ok() && took < SLOWEST {
        return Ok(());
    }
    let file = std::env::temp_dir().join(format!("{target}-{}", std::process::id()));
    std::fs::write(&file, input)?;
    let told = ended.err().map(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other
            .downcast::<&str>()
            .map_or_else(|_other| "a panic".to_owned(), |text| (*text).to_owned()),
    });
    anyhow::bail!(
        "{target}, input in {}: {told:?} after {took:?}: {}",
        file.display(),
        input.escape_ascii()
    )
}

/// The target's files; readers of objects get the fixtures of all kinds as well.
fn corpus(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let mut inputs = Vec::new();
    let folder = root.join("../fuzz/corpus").join(target);
    if folder.is_dir() {
        inputs.extend(files(&folder)?);
    }
    if target.ends_with("_objects") {
        let fixtures = files(&root.join("../controlplane/api/tests/kinds/fixtures"))?;
        let fixtures = fixtures.iter().flat_map(|file| documents(file));
        for yaml in fixtures {
            let value = api::yaml::to_json(&yaml)
                .map_err(|error| anyhow::anyhow!("a fixture: {error}"))?
                .value;
            let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
            inputs.push(if target.contains("yaml") {
                yaml
            } else if target.contains("json") {
                value.to_string().into_bytes()
            } else {
                protobuf::encode(text("apiVersion"), text("kind"), value.to_string().as_bytes())?
            });
        }
    }
    Ok(inputs)
}

/// The documents of a file of fixtures.
fn documents(file: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(file);
    let parts = text.split("\n---\n").filter(|part| !part.trim().is_empty());
    parts.map(|part| part.as_bytes().to_vec()).collect()
}

fn files(folder: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        paths.push(entry?.path());
    }
    paths.sort();
    paths.iter().map(|path| Ok(std::fs::read(path)?)).collect()
}

/// Returns an input of the corpus after random mutations.
fn mutated(corpus: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut bytes = corpus.choose(random).cloned().unwrap_or_default();
    for _ in 0..random.random_range(1..=6) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(0..=32)).min(bytes.len());
        let piece = bytes.get(at..end).unwrap_or_default().to_vec();
        match random.random_range(0..9) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.truncate(at),
            2 => flip(&mut bytes, at, random),
            3 => drop(bytes.splice(at..at, [random.random::<u8>()])),
            4 => {
                let word = WORDS.choose(random).unwrap_or(&"");
                drop(bytes.splice(at..at, word.bytes()));
            }
            5 => {
                let word = WORDS.choose(random).unwrap_or(&"");
                drop(bytes.splice(at..end, word.bytes()));
            }
            // A repeated token, to build deep structures.
            6 => {
                let times = 1_usize << random.random_range(0..10);
                drop(bytes.splice(at..at, piece.repeat(times)));
            }
            7 => {
                let other = corpus.choose(random).cloned().unwrap_or_default();
                let from = random.random_range(0..=other.len());
                drop(bytes.splice(at.., other.into_iter().skip(from)));
            }
            _ => drop(bytes.splice(at..end, std::iter::repeat_n(random.random::<u8>(), end - at))),
        }
        bytes.truncate(LONGEST);
    }
    bytes
}

fn flip(bytes: &mut [u8], at: usize, random: &mut StdRng) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.random_range(0..8);
    }
}

/// The most memory that this process has had.
fn memory_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("a peak")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
