//! Stores on a real etcd: all show what each writes, through the loss of members and of space.
#![allow(missing_docs, reason = "tests")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    Link, Members, Way, certificates, chain, create, data, delete, eventually, key, lease, options, pods, update,
};
use controlplane_etcd::Identity;
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};
use store::{CommitError, EventKind, Key, ListAt, ListError, Options, Store, Watch};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_finds_and_follows_what_was_written() {
    let members = Members::start(1, &[]);
    let small = Options {
        ring_events: 4,
        ..options()
    };
    let first = members.open(small.clone()).await;
    let made = first.commit(create(&key("a"), "1")).await.unwrap();
    assert_eq!(made.revision, 1, "revisions are the ledger's own");
    let changed = first.commit(update(&made, "2")).await.unwrap();
    first.commit(create(&lease("l"), "0")).await.unwrap();
    for beat in 1..20 {
        let entry = first.get(&lease("l")).unwrap();
        first.commit(update(&entry, &beat.to_string())).await.unwrap();
    }
    first.commit(delete(&key("a"))).await.unwrap();
    first.commit(create(&key("b"), "1")).await.unwrap();

    let second = members.open(small).await;
    assert_eq!(second.revision(), first.revision());
    assert_eq!(second.present(&pods()).len(), 1);
    assert_eq!(data(&second.get(&lease("l")).unwrap()), "19");
    // Older than the ring, so it is read from etcd.
    let old = second
        .list(&pods(), ListAt::Exactly(changed.revision), None, None)
        .await
        .unwrap();
    assert_eq!(old.entries.iter().map(data).collect::<Vec<_>>(), ["2"]);
    let mut watch = second.watch(&pods(), 0).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let event = watch.next().await.unwrap();
        let kind = match &event.kind {
            EventKind::Put { prev: None } => '+',
            EventKind::Put { .. } => '~',
            EventKind::Delete { .. } => '-',
        };
        seen.push(format!("{kind}{}", event.entry.key.name()));
    }
    assert_eq!(seen, ["+a", "~a", "-a", "+b"]);

    let written = second.commit(create(&key("c"), "x")).await.unwrap();
    first.refresh(LIMIT).await.unwrap();
    assert_eq!(first.get(&key("c")).map(|entry| entry.revision), Some(written.revision));
    let conflict = first.commit(create(&key("c"), "y")).await;
    assert!(matches!(conflict, Err(CommitError::Exists)), "{conflict:?}");
    first.close().await.unwrap();
    second.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_process_compacts_is_expired_for_all() {
    let members = Members::start(1, &[]);
    let short = Options {
        retention: Duration::from_millis(1),
        ring_events: 2,
        ..options()
    };
    let first = members.open(short).await;
    let second = members
        .open(Options {
            ring_events: 2,
            ..options()
        })
        .await;
    let mut entry = first.commit(create(&key("a"), "0")).await.unwrap();
    for round in 1..100 {
        entry = first.commit(update(&entry, &round.to_string())).await.unwrap();
    }
    second.refresh(LIMIT).await.unwrap();
    let mut behind = second.watch(&pods(), 50).unwrap();
    eventually("the floor rises", async || {
        first.maintain().await;
        (first.floor() > 0)
            .then_some(())
            .ok_or_else(|| format!("floor {}", first.floor()))
    })
    .await;
    first.commit(update(&entry, "last")).await.unwrap();
    eventually("the watch behind the floor ends", async || {
        // The sweep goes on after the maintenance that starts it.
        first.maintain().await;
        match second.list(&pods(), ListAt::Exactly(60), None, None).await {
            Err(ListError::Expired { .. }) => Ok(()),
            other => Err(format!("{:?}", other.map(|list| list.revision))),
        }
    })
    .await;
    let ended = behind.next().await;
    assert!(ended.is_err(), "{ended:?}");
    let third = members.open(options()).await;
    assert_eq!(third.present(&pods()).iter().map(data).collect::<Vec<_>>(), ["last"]);
    assert!(third.floor() > 0);
}

/// Increments counters in its own objects, and one in a shared object, until told to stop; returns
/// the acknowledged writes.
async fn write(store: Store, writer: usize, stop: Arc<AtomicBool>) -> (BTreeMap<String, u64>, u64) {
    let mut acknowledged = BTreeMap::new();
    let mut shared = 0;
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let name = format!("w{writer}-{round}");
        match store.commit(create(&key(&name), "1")).await {
            Ok(entry) => drop(acknowledged.insert(name, entry.revision)),
            Err(CommitError::Unknown(_) | CommitError::Failed(_)) => {}
            Err(other) => panic!("{name}: {other}"),
        }
        if store.refresh(Duration::from_secs(10)).await.is_err() {
            continue;
        }
        let common = store.get(&key("common")).unwrap();
        let next = data(&common).parse::<u64>().unwrap() + 1;
        if store.commit(update(&common, &next.to_string())).await.is_ok() {
            shared += 1;
        }
    }
    (acknowledged, shared)
}

/// Revision, key and previous revision of each change until the last.
async fn watch(mut watch: Watch) -> Vec<(u64, Key, Option<u64>)> {
    let mut seen = Vec::new();
    loop {
        let event = watch.next().await.unwrap();
        let previous = event.prev().map(|prev| prev.revision);
        seen.push((event.revision, event.entry.key.clone(), previous));
        if event.entry.key == key("end") {
            return seen;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_members_are_killed() {
    let mut members = Members::start(3, &[]);
    let stores = [members.open(options()).await, members.open(options()).await];
    stores[0].commit(create(&key("common"), "0")).await.unwrap();
    let mut watchers = JoinSet::new();
    for store in &stores {
        watchers.spawn(watch(store.watch(&pods(), 0).unwrap()));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        writers.spawn(write(stores[writer % 2].clone(), writer, Arc::clone(&stop)));
    }
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        members.kill(round % 3);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        members.restart(round % 3);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    let written = writers.join_all().await;
    eventually("the end is written", async || {
        match stores[1].commit(create(&key("end"), "")).await {
            Ok(_) | Err(CommitError::Exists) => Ok(()),
            Err(failure) => Err(failure.to_string()),
        }
    })
    .await;
    let seen = watchers.join_all().await;
    assert_eq!(seen[0], seen[1], "both see the same");
    let mut versions = BTreeMap::new();
    let mut before = 0;
    for (revision, key, previous) in &seen[0] {
        assert!(*revision > before, "{revision} after {before}");
        assert_eq!(versions.insert(key, *revision), *previous, "{key}");
        before = *revision;
    }
    let shown: BTreeSet<(&str, u64)> = versions.iter().map(|(key, revision)| (key.name(), *revision)).collect();
    let mut acknowledged = 0;
    for (names, _) in &written {
        acknowledged += names.len();
        for (name, revision) in names {
            assert!(
                shown.contains(&(name.as_str(), *revision)),
                "{name} at {revision} is lost"
            );
        }
    }
    let counted: u64 = written.iter().map(|(_, shared)| shared).sum();
    let common = data(&stores[0].get(&key("common")).unwrap()).parse::<u64>().unwrap();
    println!(
        "{acknowledged} objects and {counted} counts were acknowledged, {common} counted, {} changes",
        seen[0].len()
    );
    assert!(common >= counted, "{counted} were acknowledged, {common} are there");
    assert!(
        written.iter().all(|(names, _)| names.len() > 10),
        "every writer gets on"
    );
    let fresh = members.open(options()).await;
    assert_eq!(fresh.present(&pods()).len(), versions.len());
}

/// Has etcd refuse what needs room from now on.
async fn forbid_writes(client: &mut Client) {
    let status = client.status().await.unwrap();
    let mut own = AlarmOptions::new();
    own.with_member(status.header().unwrap().member_id());
    client
        .alarm(AlarmAction::Activate, AlarmType::Nospace, Some(own))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_was_lost_counts_although_its_repetition_is_refused() {
    let members = Members::start(1, &[]);
    let link = Link::to(members.member(0)).await;
    let beside = members.client().await;
    let store = link.open().await;
    store.commit(create(&key("a"), "1")).await.unwrap();
    link.way.send_replace(Way::Mute);
    let lose = async {
        eventually("the write arrives", async || {
            let head = beside.clone().get("/skiff/head", None).await.unwrap();
            let head = head.kvs()[0].value_str().unwrap();
            (head == "2").then_some(()).ok_or_else(|| head.to_owned())
        })
        .await;
        forbid_writes(&mut beside.clone()).await;
        link.way.send_replace(Way::Cut);
    };
    let (written, ()) = tokio::join!(store.commit(create(&key("b"), "1")), lose);
    assert_eq!(
        written.as_ref().map(|entry| entry.revision).ok(),
        Some(2),
        "{written:?}"
    );
    assert_eq!(data(&store.get(&key("b")).unwrap()), "1");
    let full = store.commit(create(&key("c"), "1")).await;
    assert!(matches!(full, Err(CommitError::Full(_))), "{full:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_may_be_on_its_way_is_unknown_when_its_repetition_is_refused() {
    let members = Members::start(1, &[]);
    let link = Link::to(members.member(0)).await;
    let mut beside = members.client().await;
    let store = link.open().await;
    store.commit(create(&key("a"), "1")).await.unwrap();
    forbid_writes(&mut beside).await;
    link.way.send_replace(Way::Dead);
    let unknown = store.commit(create(&key("b"), "1")).await;
    assert!(matches!(unknown, Err(CommitError::Unknown(_))), "{unknown:?}");
    let full = store.commit(create(&key("b"), "1")).await;
    assert!(
        matches!(full, Err(CommitError::Full(_))),
        "nothing is on its way: {full:?}"
    );
}

/// Writes until there is no room any more; how many objects were made.
async fn fill(store: &Store) -> usize {
    let large = "x".repeat(900 << 10);
    let mut made = 0;
    let full = loop {
        match store.commit(create(&key(&format!("p{made}")), &large)).await {
            Ok(_) => made += 1,
            Err(failure) => break failure,
        }
        assert!(made < 150, "the quota is never reached");
    };
    assert!(matches!(full, CommitError::Full(_)), "{full}");
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_for_want_of_room_is_not_there() {
    for _ in 0..4 {
        let members = Members::start(1, &["--quota-backend-bytes=100663296"]);
        let store = members.open(options()).await;
        // Room that goes between etcd's two looks at it: it has then done what it refuses.
        let mut others = JoinSet::new();
        for number in 0..4 {
            let mut beside = members.client().await;
            others.spawn(async move {
                let noise = "x".repeat(200 << 10);
                while beside
                    .put(format!("/noise/{number}"), noise.as_str(), None)
                    .await
                    .is_ok()
                {}
            });
        }
        let made = fill(&store).await;
        others.join_all().await;
        let fresh = members.open(options()).await;
        assert_eq!(fresh.present(&pods()).len(), made);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_that_one_process_has_given_to_deletions_is_for_those_of_all() {
    let members = Members::start(1, &["--quota-backend-bytes=100663296"]);
    let brief = Options {
        retention: Duration::from_millis(1),
        ..options()
    };
    let (first, second) = (members.open(brief.clone()).await, members.open(brief).await);
    let made = fill(&first).await;
    let small = second.commit(create(&key("small"), "1")).await;
    assert!(matches!(small, Err(CommitError::Full(_))), "{small:?}");
    for number in 0..made {
        second.commit(delete(&key(&format!("p{number}")))).await.unwrap();
    }
    for (store, name) in [(&first, "one"), (&second, "other")] {
        let small = store.commit(create(&key(name), "1")).await;
        assert!(matches!(small, Err(CommitError::Full(_))), "{name}: {small:?}");
    }
    let beside = members.client().await;
    eventually("both take writes again", async || {
        // What goes on in every cluster: writes, and a compaction every few minutes.
        let mut beside = beside.clone();
        // Without space the former are refused.
        drop(beside.put("/beat", "", None).await);
        let head = beside.get("/beat", None).await.map_err(|error| error.to_string())?;
        drop(beside.compact(head.header().unwrap().revision(), None).await);
        for (store, name) in [(&first, "one"), (&second, "other")] {
            store.maintain().await;
            match store.commit(create(&key(name), "1")).await {
                Ok(_) | Err(CommitError::Exists) => {}
                Err(failure) => return Err(format!("{name}: {failure}")),
            }
        }
        Ok(())
    })
    .await;
    let again = fill(&second).await;
    let small = first.commit(create(&key("small"), "1")).await;
    assert!(matches!(small, Err(CommitError::Full(_))), "after {again}: {small:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_find_room_when_etcd_has_none() {
    let members = Members::start(1, &["--quota-backend-bytes=100663296"]);
    let store = members.open(options()).await;
    let made = fill(&store).await;
    assert!(!store.is_writable());
    for number in 0..made {
        store.commit(delete(&key(&format!("p{number}")))).await.unwrap();
    }
    let small = store.commit(create(&key("small"), "1")).await;
    assert!(
        matches!(small, Err(CommitError::Full(_))),
        "the room is for deletions: {small:?}"
    );
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_clients_show_certificates() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path());
    let file = |name: &str| directory.path().join(name);
    let flags = [
        format!("--cert-file={}", file("server.crt").display()),
        format!("--key-file={}", file("server.key").display()),
        format!("--trusted-ca-file={}", file("ca.crt").display()),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut members = Members::with_scheme("https", 1, &flags);
    let identity = Identity {
        authority: Some(file("ca.crt")),
        certificate: Some((file("client.crt"), file("client.key"))),
    };
    let store = members.open_as(&identity, options()).await.unwrap();
    store.commit(create(&key("a"), "1")).await.unwrap();
    let stranger = Identity {
        certificate: None,
        ..identity
    };
    let refused = members.open_as(&stranger, options()).await.unwrap_err();
    assert!(refused.contains("no member of etcd answers"), "{refused}");

    // All are replaced, the authority too. Members read that when they begin.
    certificates(directory.path());
    members.kill(0);
    members.restart(0);
    eventually("the new certificate is shown", async || {
        match store.commit(create(&key("b"), "1")).await {
            Ok(_) | Err(CommitError::Exists) => Ok(()),
            Err(failure) => Err(chain(&failure)),
        }
    })
    .await;
    store.refresh(LIMIT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_etcd_is_not_taken_for_what_a_cluster_had() {
    let members = Members::start(1, &[]);
    let existed = Options {
        existed: true,
        ..options()
    };
    let refused = members
        .open_as(&Identity::default(), existed.clone())
        .await
        .unwrap_err();
    assert!(
        refused.contains("does not hold what this cluster had there"),
        "{refused}"
    );
    let accepting = Options {
        accept_loss: true,
        ..existed
    };
    let store = members.open(accepting).await;
    assert!(store.watch(&pods(), 5).is_err(), "what clients have seen is gone");
    assert!(store.commit(create(&key("a"), "1")).await.unwrap().revision > 1 << 40);
}
