//! Archives and directories as written by other tools. Needs root: layers have owners, devices and
//! trusted attributes.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::path::Path;
use std::process::Command;

use agent_image::{Config, Digest, Images, chain};
use serde_json::{Value, json};
use support::{busybox, nothing_staged, store};

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn skopeo(target: &str) {
    let source = format!("oci-archive:{}", busybox().display());
    run("skopeo", &["copy", "--quiet", "--insecure-policy", &source, target]);
}

async fn refused(images: &Images, path: &Path, name: Option<&str>) -> String {
    chain(&images.import_as(path, name).await.unwrap_err())
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn blob(layout: &Path, digest: &Value) -> std::path::PathBuf {
    layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"))
}

#[tokio::test]
async fn a_directory_with_a_tag_alone_needs_a_name() {
    let (home, images) = store(Config::default());
    let layout = home.path().join("layout");
    skopeo(&format!("oci:{}:latest", layout.display()));
    let told = refused(&images, &layout, None).await;
    assert_eq!(
        told,
        "the archive does not name its image in full, only as latest: say its name by --name"
    );
    let image = images
        .import_as(&layout, Some("example.org/dir:1"))
        .await
        .unwrap()
        .images
        .remove(0);
    assert_eq!(image.names, ["example.org/dir:1"]);
    assert!(image.layers[0].join("bin/busybox").is_file());
    let told = refused(&images, &layout, Some("Upper")).await;
    assert!(told.starts_with("image name \"Upper\": "), "{told}");
    nothing_staged(home.path());
}

#[tokio::test]
async fn a_docker_archive_without_tags_needs_a_name_and_a_name_is_for_one_image() {
    let (home, images) = store(Config::default());
    let archive = home.path().join("saved.tar");
    skopeo(&format!("docker-archive:{}", archive.display()));
    let told = refused(&images, &archive, None).await;
    assert_eq!(
        told,
        "the archive does not name its image in full: say its name by --name"
    );
    let stream = std::fs::read(&archive).unwrap();
    let imported = images
        .import_stream(stream.as_slice(), Some("example.org/saved"))
        .await
        .unwrap();
    assert_eq!(imported.images[0].names, ["example.org/saved:latest"]);
    // The same content as a directory.
    let directory = home.path().join("saved");
    std::fs::create_dir(&directory).unwrap();
    run(
        "tar",
        &[
            "-xf",
            &archive.display().to_string(),
            "-C",
            &directory.display().to_string(),
        ],
    );
    let manifest = directory.join("manifest.json");
    run("chmod", &["u+w", &manifest.display().to_string()]);
    let image = read(&manifest)[0].clone();
    std::fs::write(&manifest, json!([image, image]).to_string()).unwrap();
    let told = refused(&images, &directory, Some("example.org/saved:2")).await;
    assert_eq!(told, "a name is for one image, and the archive has 2");
}

#[tokio::test]
async fn images_without_a_name_beside_one_with_a_name_are_told() {
    let (home, images) = store(Config::default());
    let layout = home.path().join("layout");
    skopeo(&format!("oci:{}:example.org/named:1", layout.display()));
    let mut index = read(&layout.join("index.json"));
    let named = index["manifests"][0].clone();
    // Both a tag and a digest of other images, and the named image once more.
    let mut others = [named.clone(), named.clone(), named.clone()];
    others[0]["annotations"] = json!({"org.opencontainers.image.ref.name": "latest"});
    others[0]["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    others[1]["annotations"] = json!({});
    others[1]["digest"] = json!(format!("sha256:{}", "1".repeat(64)));
    others[2]["annotations"] = json!({});
    index["manifests"].as_array_mut().unwrap().extend(others);
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let imported = images.import_as(&layout, None).await.unwrap();
    assert_eq!(imported.images[0].names, ["example.org/named:1"]);
    assert_eq!(imported.left_out, ["latest", &format!("sha256:{}", "1".repeat(64))]);
    // As docker saves it.
    let archive = home.path().join("saved.tar");
    skopeo(&format!("docker-archive:{}:example.org/saved:1", archive.display()));
    let directory = home.path().join("saved");
    std::fs::create_dir(&directory).unwrap();
    let words = [archive.display().to_string(), directory.display().to_string()];
    run("tar", &["-xf", &words[0], "-C", &words[1]]);
    let manifest = directory.join("manifest.json");
    run("chmod", &["u+w", &manifest.display().to_string()]);
    let named = read(&manifest)[0].clone();
    let mut other = named.clone();
    other["RepoTags"] = json!(null);
    other["Config"] = json!(format!("{}.json", "2".repeat(64)));
    std::fs::write(&manifest, json!([named, other]).to_string()).unwrap();
    let imported = images.import_as(&directory, None).await.unwrap();
    assert!(
        imported.images[0]
            .names
            .iter()
            .any(|name| name == "example.org/saved:1")
    );
    assert_eq!(imported.left_out, [format!("sha256:{}", "2".repeat(64))]);
}

/// As `ctr images export` writes all that `ctr images ls -q` lists.
#[tokio::test]
async fn an_image_is_known_by_its_digest_where_an_archive_names_it_so() {
    let (home, images) = store(Config::default());
    let layout = home.path().join("layout");
    skopeo(&format!("oci:{}:example.org/exported:1", layout.display()));
    let mut index = read(&layout.join("index.json"));
    let named = index["manifests"][0].clone();
    let own = format!("example.org/again@{}", named["digest"].as_str().unwrap());
    let id = format!("sha256:{}", "0".repeat(64));
    for name in [&own, &format!("example.org/again@{id}"), &id] {
        let mut more = named.clone();
        more["annotations"] = json!({"io.containerd.image.name": name});
        index["manifests"].as_array_mut().unwrap().push(more);
    }
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let imported = images.import_as(&layout, None).await.unwrap();
    assert_eq!(imported.left_out, Vec::<String>::new());
    let image = &imported.images[0];
    assert_eq!(image.names, ["example.org/exported:1"]);
    assert_eq!(image.digests, [own.clone(), own.replace("again", "exported")]);
    assert!(images.resolve(&own).unwrap().is_some());
}

#[tokio::test]
async fn layers_that_registries_need_not_keep_are_taken_from_the_archive() {
    let (home, images) = store(Config::default());
    let layout = home.path().join("layout");
    skopeo(&format!("oci:{}:example.org/foreign:1", layout.display()));
    let mut index = read(&layout.join("index.json"));
    let mut manifest = read(&blob(&layout, &index["manifests"][0]["digest"]));
    let layer = manifest["layers"][0]["mediaType"].as_str().unwrap();
    manifest["layers"][0]["mediaType"] = json!(layer.replace(".layer.", ".layer.nondistributable."));
    manifest["layers"][0]["urls"] = json!(["http://127.0.0.1:1/layer"]);
    let bytes = manifest.to_string();
    index["manifests"][0]["digest"] = json!(Digest::of(bytes.as_bytes()).as_str());
    index["manifests"][0]["size"] = json!(bytes.len());
    std::fs::write(blob(&layout, &index["manifests"][0]["digest"]), &bytes).unwrap();
    std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let image = images.import(&layout).await.unwrap().remove(0);
    assert_eq!(image.names, ["example.org/foreign:1"]);
    // A link does not lead to a file of the host.
    let (_home, images) = store(Config::default());
    let layer = blob(&layout, &manifest["layers"][0]["digest"]);
    let elsewhere = home.path().join("elsewhere");
    std::fs::rename(&layer, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &layer).unwrap();
    let told = refused(&images, &layout, None).await;
    assert!(told.ends_with("is missing in the archive"), "{told}");
}

#[tokio::test]
async fn compressions_that_are_not_undone_are_named() {
    let (home, images) = store(Config::default());
    let archive = home.path().join("archive");
    for (magic, name) in [(&b"\xfd7zXZ\0\0\x04"[..], "xz"), (b"BZh91AY&SY", "bzip2")] {
        std::fs::write(&archive, magic).unwrap();
        let told = refused(&images, &archive, None).await;
        assert!(
            told.starts_with(&format!("the archive is compressed by {name}, which")),
            "{told}"
        );
    }
}
