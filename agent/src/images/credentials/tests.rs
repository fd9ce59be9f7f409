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
    let rights = Rights::open(path.clone(), &[]);
    let (a, p) = (pulled("sha256:a"), pulled("sha256:p"));
    let learn = async |rights: &Rights, id: &str, key: Option<&Key>| {
        rights.learn((id, NAME), key, None, |_| true).await.unwrap();
    };
    assert!(rights.are_everybodys(&a, NAME), "nobody pulled it");
    learn(&rights, "sha256:p", None).await;
    learn(&rights, "sha256:p", Some(&key("one", "x"))).await;
    assert!(rights.are_everybodys(&p, NAME), "it needs no key");
    learn(&rights, "sha256:a", Some(&key("one", "x"))).await;

    let rights = Rights::open(path.clone(), &[]);
    assert!(!rights.are_everybodys(&a, NAME));
    assert!(!rights.admit(&a, "docker.io/library/private:2", &[]));
    assert!(rights.are_everybodys(&a, "elsewhere.example/private:1"));
    assert!(!rights.are_everybodys(&a, Digest::of(b"a").as_str()), "by an id");
    assert!(!rights.admit(&a, NAME, &[key("two", "y")]));
    assert!(
        rights.admit(&a, NAME, &[key("two", "y"), key("one", "y")]),
        "the same secret"
    );
    assert!(rights.admit(&a, NAME, &[key("two", "x")]), "the same contents");
    learn(&rights, "sha256:a", Some(&key("two", "y"))).await;
    assert!(rights.admit(&a, NAME, &[key("three", "y")]));
    learn(&rights, "sha256:a", None).await;
    assert!(Rights::open(path.clone(), &[]).are_everybodys(&a, NAME));

    let only = |id: &str| id != "sha256:a";
    let one = key("one", "x");
    let learned = rights.learn(("sha256:b", NAME), Some(&one), None, only);
    learned.await.unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("sha256:a") && text.contains("sha256:b"), "{text}");
    assert!(!text.contains("\"x\""), "no password: {text}");
}

#[tokio::test]
async fn what_is_being_pulled_with_keys_is_nobodys_yet() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let rights = Rights::open(path.clone(), &[]);
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let id = Digest::of(b"a");
    let names = [NAME, a.digests[0].as_str(), id.as_str()];
    let closed = |rights: &Rights| names.iter().all(|name| !rights.are_everybodys(&a, name));

    let intent = rights.intend(NAME, None).await.unwrap();
    assert!(closed(&rights));
    let other = image("sha256:o", &["docker.io/library/private:2"], &[]);
    assert!(rights.are_everybodys(&other, "private:2"), "another name");
    rights.failed(intent).await.unwrap();
    assert!(rights.are_everybodys(&a, NAME), "it was there before");

    // The second pull continues.
    let (first, second) = (
        rights.intend(NAME, None).await.unwrap(),
        rights.intend(NAME, None).await.unwrap(),
    );
    rights.failed(first).await.unwrap();
    assert!(closed(&rights));
    let learned = rights.learn((&a.id, NAME), Some(&one), Some(second), |_| true);
    learned.await.unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("intents"));
    assert!(closed(&rights) && rights.admit(&a, NAME, &[one]));
}

#[tokio::test]
async fn what_came_by_a_pull_that_nobody_saw_the_end_of_stays_closed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let present = [Arc::clone(&a), image("sha256:o", &["docker.io/library/own:1"], &[])];
    let rights = Rights::open(path.clone(), &[]);
    drop(rights.intend(NAME, None).await.unwrap());
    // Its pod was removed; the pull of another one fails.
    let another = rights.intend(NAME, None).await.unwrap();
    rights.failed(another).await.unwrap();
    assert!(!rights.are_everybodys(&a, NAME));

    for times in 1..=2 {
        let rights = Rights::open(path.clone(), &present);
        assert!(!rights.are_everybodys(&a, NAME), "after start {times}");
        assert!(!rights.are_everybodys(&a, &a.digests[0]), "by its digest");
        assert!(
            !rights.admit(&a, NAME, std::slice::from_ref(&one)),
            "it has to be pulled"
        );
        assert!(rights.are_everybodys(&present[1], "own:1"));
    }
    let rights = Rights::open(path.clone(), &present);
    let learned = rights.learn((&a.id, NAME), Some(&one), None, |_| true);
    learned.await.unwrap();
    assert!(Rights::open(path, &present).admit(&a, NAME, &[one]));
}

#[tokio::test]
async fn what_cannot_be_read_opens_nothing_that_was_pulled() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let imported = image("sha256:i", &["docker.io/library/own:1"], &[]);
    let present = [pulled("sha256:a"), Arc::clone(&imported)];
    fs::write(&path, "{\"sha256:a\": {\"docker.io/libr").unwrap();
    for times in 1..=2 {
        let rights = Rights::open(path.clone(), &present);
        assert!(!rights.are_everybodys(&present[0], NAME), "after start {times}");
        assert!(rights.are_everybodys(&imported, "own:1"), "no registry has it");
    }
    let rights = Rights::open(path.clone(), &present);
    rights.learn(("sha256:a", NAME), None, None, |_| true).await.unwrap();
    assert!(Rights::open(path, &present).are_everybodys(&present[0], NAME));
}

#[tokio::test]
async fn what_had_the_name_before_a_broken_off_pull_stays_open() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("rights.json");
    let (old, new) = (pulled("sha256:old"), pulled("sha256:new"));
    let rights = Rights::open(path.clone(), &[]);
    let intent = rights.intend(NAME, Some(&old.id)).await.unwrap();
    assert!(rights.are_everybodys(&old, NAME), "it is not what comes");
    assert!(!rights.are_everybodys(&new, NAME));
    drop(intent);
    // The image of the failed pull has the name now, for the next one.
    let again = rights.intend(NAME, Some(&new.id)).await.unwrap();
    rights.failed(again).await.unwrap();
    for rights in [rights, Rights::open(path.clone(), &[old.clone(), new.clone()])] {
        assert!(rights.are_everybodys(&old, NAME));
        assert!(!rights.are_everybodys(&new, NAME));
    }
    assert!(
        Rights::open(path, std::slice::from_ref(&old)).are_everybodys(&old, NAME),
        "twice"
    );
}

#[tokio::test]
async fn what_could_not_be_written_is_written_with_the_next_pull() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("gone");
    let path = directory.join("rights.json");
    let rights = Rights::open(path.clone(), &[]);
    let (a, one) = (pulled("sha256:a"), key("one", "x"));
    let learn = async || rights.learn((&a.id, NAME), Some(&one), None, |_| true).await;
    assert!(learn().await.is_err());
    fs::create_dir(&directory).unwrap();
    learn().await.unwrap();
    assert!(!Rights::open(path, &[]).are_everybodys(&a, NAME));
}
