use serde_json::json;

use super::*;

const NAME: &str = "private:1";

fn key(secret: &str, password: &str) -> Key {
    let credentials = Credentials {
        username: "me".to_owned(),
        password: password.to_owned(),
    };
    Key::new("team", secret, secret, &credentials)
}

/// Image with these names, from a registry if it has digests.
fn image(id: &str, names: &[&str], digests: &[&str]) -> Arc<Image> {
    let configuration = json!({
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []},
    });
    let all = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Arc::new(Image {
        id: id.to_owned(),
        names: all(names),
        digests: all(digests),
        size: 0,
        config: serde_json::from_value(configuration).unwrap(),
        layers: Vec::new(),
        snapshot: None,
        pinned: false,
    })
}

fn pulled(id: &str) -> Arc<Image> {
    let digest = format!("docker.io/library/private@{}", Digest::of(id.as_bytes()));
    image(id, &["docker.io/library/private:1"], &[&digest])
}

#[tokio::test]
async fn an_image_opens_to_who_could_pull_it() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    let (a, p) = (pulled("sha256:a"), pulled("sha256:p"));
    let learn = async |pull_records: &ImagePullRecords, id: &str, key: Option<&Key>| {
        pull_records.learn((id, NAME), key, None, |_| true).await.unwrap();
    };
    assert!(pull_records.are_everybodys(&a, NAME), "nobody pulled it");
    learn(&pull_records, "sha256:p", None).await;
    learn(&pull_records, "sha256:p", Some(&key("one", "x"))).await;
    assert!(pull_records.are_everybodys(&p, NAME), "it needs no key");
    learn(&pull_records, "sha256:a", Some(&key("one", "x"))).await;

    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    assert!(!pull_records.are_everybodys(&a, NAME));
    assert!(!pull_records.admit(&a, "docker.io/library/private:2", &[]));
    assert!(pull_records.are_everybodys(&a, "elsewhere.example/private:1"));
    assert!(!pull_records.are_everybodys(&a, Digest::of(b"a").as_str()), "by an id");
    assert!(!pull_records.admit(&a, NAME, &[key("two", "y")]));
    assert!(
        pull_records.admit(&a, NAME, &[key("two", "y"), key("one", "y")]),
        "the same secret"
    );
    assert!(pull_records.admit(&a, NAME, &[key("two", "x")]), "the same contents");
    learn(&pull_records, "sha256:a", Some(&key("two", "y"))).await;
    assert!(pull_records.admit(&a, NAME, &[key("three", "y")]));
    learn(&pull_records, "sha256:a", None).await;
    assert!(ImagePullRecords::open(path.clone(), &[]).are_everybodys(&a, NAME));

    let only = |id: &str| id != "sha256:a";
    let one = key("one", "x");
    let learned = pull_records.learn(("sha256:b", NAME), Some(&one), None, only);
    learned.await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("sha256:a") && text.contains("sha256:b"), "{text}");
    assert!(!text.contains("\"x\""), "no password: {text}");
}

#[tokio::test]
async fn what_is_being_pulled_with_keys_is_nobodys_yet() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let id = Digest::of(b"a");
    let names = [NAME, a.digests[0].as_str(), id.as_str()];
    let closed = |pull_records: &ImagePullRecords| names.iter().all(|name| !pull_records.are_everybodys(&a, name));

    let intent = pull_records.intend(NAME, None).await.unwrap();
    assert!(closed(&pull_records));
    let other = image("sha256:o", &["docker.io/library/private:2"], &[]);
    assert!(pull_records.are_everybodys(&other, "private:2"), "another name");
    pull_records.failed(intent).await.unwrap();
    assert!(pull_records.are_everybodys(&a, NAME), "it was there before");

    // The second pull continues.
    let (first, second) = (
        pull_records.intend(NAME, None).await.unwrap(),
        pull_records.intend(NAME, None).await.unwrap(),
    );
    pull_records.failed(first).await.unwrap();
    assert!(closed(&pull_records));
    let learned = pull_records.learn((&a.id, NAME), Some(&one), Some(second), |_| true);
    learned.await.unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("intents"));
    assert!(closed(&pull_records) && pull_records.admit(&a, NAME, &[one]));
}

#[tokio::test]
async fn what_came_by_a_pull_that_nobody_saw_the_end_of_stays_closed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let present = [Arc::clone(&a), image("sha256:o", &["docker.io/library/own:1"], &[])];
    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    drop(pull_records.intend(NAME, None).await.unwrap());
    // Its pod was removed; the pull of another one fails.
    let another = pull_records.intend(NAME, None).await.unwrap();
    pull_records.failed(another).await.unwrap();
    assert!(!pull_records.are_everybodys(&a, NAME));

    for times in 1..=2 {
        let pull_records = ImagePullRecords::open(path.clone(), &present);
        assert!(!pull_records.are_everybodys(&a, NAME), "after start {times}");
        assert!(!pull_records.are_everybodys(&a, &a.digests[0]), "by its digest");
        assert!(
            !pull_records.admit(&a, NAME, std::slice::from_ref(&one)),
            "it has to be pulled"
        );
        assert!(pull_records.are_everybodys(&present[1], "own:1"));
    }
    let pull_records = ImagePullRecords::open(path.clone(), &present);
    let learned = pull_records.learn((&a.id, NAME), Some(&one), None, |_| true);
    learned.await.unwrap();
    assert!(ImagePullRecords::open(path, &present).admit(&a, NAME, &[one]));
}

#[tokio::test]
async fn what_cannot_be_read_opens_nothing_that_was_pulled() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let imported = image("sha256:i", &["docker.io/library/own:1"], &[]);
    let present = [pulled("sha256:a"), Arc::clone(&imported)];
    fs::write(&path, "{\"sha256:a\": {\"docker.io/libr").unwrap();
    for times in 1..=2 {
        let pull_records = ImagePullRecords::open(path.clone(), &present);
        assert!(!pull_records.are_everybodys(&present[0], NAME), "after start {times}");
        assert!(pull_records.are_everybodys(&imported, "own:1"), "no registry has it");
    }
    let pull_records = ImagePullRecords::open(path.clone(), &present);
    pull_records
        .learn(("sha256:a", NAME), None, None, |_| true)
        .await
        .unwrap();
    assert!(ImagePullRecords::open(path, &present).are_everybodys(&present[0], NAME));
}

#[tokio::test]
async fn what_had_the_name_before_a_broken_off_pull_stays_open() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let (old, new) = (pulled("sha256:old"), pulled("sha256:new"));
    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    let intent = pull_records.intend(NAME, Some(&old.id)).await.unwrap();
    assert!(pull_records.are_everybodys(&old, NAME), "it is not what comes");
    assert!(!pull_records.are_everybodys(&new, NAME));
    drop(intent);
    // The image of the failed pull has the name now, for the next one.
    let again = pull_records.intend(NAME, Some(&new.id)).await.unwrap();
    pull_records.failed(again).await.unwrap();
    for pull_records in [
        pull_records,
        ImagePullRecords::open(path.clone(), &[old.clone(), new.clone()]),
    ] {
        assert!(pull_records.are_everybodys(&old, NAME));
        assert!(!pull_records.are_everybodys(&new, NAME));
    }
    assert!(
        ImagePullRecords::open(path, std::slice::from_ref(&old)).are_everybodys(&old, NAME),
        "twice"
    );
}

#[tokio::test]
async fn what_could_not_be_written_is_written_with_the_next_pull() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("gone");
    let path = directory.join("rights.json");
    let pull_records = ImagePullRecords::open(path.clone(), &[]);
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let learn = async || pull_records.learn((&a.id, NAME), Some(&one), None, |_| true).await;
    assert!(learn().await.is_err());
    fs::create_dir(&directory).unwrap();
    learn().await.unwrap();
    assert!(!ImagePullRecords::open(path, &[]).are_everybodys(&a, NAME));
}
