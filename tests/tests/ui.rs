//! The page at `/ui/` in a real browser, and that what is served is made of its sources.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use tests::machine::{Machine, Namespace};
use tests::server::Server;
use tests::{images, process};

/// Path at which `.ci/prerequisites --tools` installs the packages that build the page and drive
/// the browser.
fn packages() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("SKIFF_CACHE").unwrap_or_else(|| "/var/cache/skiff".into());
    let found = Path::new(&cache).join("ui/node_modules");
    let missing = || format!("there is no {}: please run .ci/prerequisites --tools", found.display());
    anyhow::ensure!(found.exists(), missing());
    Ok(found)
}

fn tests_folder() -> PathBuf {
    PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the tests are"))
}

fn unpacked(file: &Path) -> anyhow::Result<Vec<u8>> {
    let output = Command::new("gzip").arg("-dc").arg(file).output()?;
    anyhow::ensure!(output.status.success(), "{}", process::both(&output));
    Ok(output.stdout)
}

/// The compressed bytes may differ: another zlib packs otherwise.
#[test]
fn the_page_is_made_of_its_sources() -> anyhow::Result<()> {
    let sources = tests_folder().join("../controlplane/ui");
    let home = tempfile::tempdir()?;
    let copied = home.path().join("ui");
    std::fs::create_dir(&copied)?;
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .args(["src", "build.mjs", "package.json", "tsconfig.json"].map(|name| sources.join(name)));
    process::run(copy.arg(&copied))?;
    std::os::unix::fs::symlink(packages()?, copied.join("node_modules"))?;
    let made = home.path().join("dist");
    process::run(Command::new("node").arg(copied.join("build.mjs")).arg(&made))?;
    let names = |folder: &Path| -> anyhow::Result<Vec<_>> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut names = entries
            .map(|entry| Ok(entry?.file_name()))
            .collect::<anyhow::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let kept = sources.join("dist");
    assert_eq!(names(&made)?, names(&kept)?);
    for name in names(&made)? {
        let same = unpacked(&made.join(&name))? == unpacked(&kept.join(&name))?;
        assert!(
            same,
            "{} is not what `npm run build` makes in controlplane/ui",
            name.display()
        );
    }
    Ok(())
}

/// Runs a script of `clients` that drives the browser; returns what it printed. Its pictures are in
/// `tmp/screenshots` of the target folder.
fn drive(timeout: &mut Command, script: &str, words: &[&OsStr]) -> anyhow::Result<String> {
    let home = tempfile::tempdir()?;
    timeout
        .args(["--kill-after=10", "900", "node"])
        .arg(tests_folder().join("clients").join(script));
    timeout.arg(packages()?.join("playwright-core"));
    timeout.arg(process::programs()?.join("skiff"));
    timeout.arg(process::kubectls()?.pop().context("a kubectl")?);
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    let timeout = timeout.env("SKIFF_SCREENSHOTS", pictures);
    process::run(timeout.args(words).env("HOME", home.path()))
}

#[test]
fn a_browser_shows_the_cluster_and_stands_attacks() -> anyhow::Result<()> {
    tests::logging();
    let machine = Machine::start("ui")?;
    let image = images::nginx(&machine)?;
    let mut timeout = machine.namespace().command("timeout");
    drive(&mut timeout, "ui.mjs", &[machine.state().as_os_str(), image.as_ref()])?;
    machine.finish()
}

#[tokio::test(flavor = "current_thread")]
async fn a_browser_follows_thousands_of_pods_and_is_quiet_when_they_are() -> anyhow::Result<()> {
    tests::logging();
    let namespace = Namespace::new("many")?;
    namespace.enter()?;
    let server = Server::start(Some(namespace), "127.0.0.1:6443")?;
    server.ready().await?;
    let mut timeout = Command::new("timeout");
    let figures = drive(&mut timeout, "ui_many.mjs", &[server.state().as_os_str()])?;
    println!("{figures}");
    server.finish()
}
