//! The store survives restarts, and damage of every file it has.

use std::fs;

use super::*;

const MIB: u64 = 1 << 20;

fn open(root: &Path) -> Store {
    Store::open(root, MIB, 4).unwrap()
}

fn put(store: &Store, tenant: &Tenant, content: &[u8]) -> Digest {
    let digest = Digest::of(content);
    store
        .put(tenant, ObjectKind::Trace, digest, "kernel", content)
        .unwrap();
    digest
}

#[test]
fn objects_survive_a_restart_and_stay_with_their_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (Tenant::default(), Tenant::parse("b").unwrap());
    let digest = {
        let store = open(folder.path());
        let digest = put(&store, &a, b"content");
        assert!(
            !store
                .put(&a, ObjectKind::Trace, digest, "kernel", b"content")
                .unwrap()
        );
        digest
    };
    let store = open(folder.path());
    assert_eq!(
        store.get(&a, ObjectKind::Trace, digest).unwrap().unwrap(),
        b"content"
    );
    assert_eq!(store.get(&b, ObjectKind::Trace, digest).unwrap(), None);
    assert_eq!(store.get(&a, ObjectKind::Machine, digest).unwrap(), None);
    assert!(!store.delete(&b, ObjectKind::Trace, digest).unwrap());
    assert!(store.delete(&a, ObjectKind::Trace, digest).unwrap());
    assert_eq!(store.get(&a, ObjectKind::Trace, digest).unwrap(), None);
    assert_eq!(
        usage(&store.database.begin_write().unwrap(), &a).unwrap(),
        0
    );
}

#[test]
fn lists_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let tenant = Tenant::default();
    let mut digests: Vec<Digest> = (0..10_u8).map(|i| put(&store, &tenant, &[i])).collect();
    digests.sort_unstable();
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.list(&tenant, ObjectKind::Trace, after, 3).unwrap();
        if page.is_empty() {
            break;
        }
        seen.extend(page.iter().map(|e| e.digest));
        after = seen.last().copied();
    }
    assert_eq!(seen, digests);
}

#[test]
fn damage_is_reported_and_an_upload_repairs_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let tenant = Tenant::default();
    let digest = put(&store, &tenant, b"some content");
    let path = store.path(&tenant, ObjectKind::Trace, digest);
    let whole = fs::read(&path).unwrap();
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x40;
        fs::write(&path, &bytes).unwrap();
        let error = store.get(&tenant, ObjectKind::Trace, digest).unwrap_err();
        assert!(
            matches!(error, StoreError::Damaged { .. }),
            "{position}: {error}"
        );
        fs::write(&path, &whole[..position]).unwrap();
        assert!(
            store.get(&tenant, ObjectKind::Trace, digest).is_err(),
            "{position}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(store.get(&tenant, ObjectKind::Trace, digest).is_err());
    assert!(!store.contains(&tenant, ObjectKind::Trace, digest).unwrap());
    assert!(store.damage() > 0);
    put(&store, &tenant, b"some content");
    assert_eq!(
        store
            .get(&tenant, ObjectKind::Trace, digest)
            .unwrap()
            .unwrap(),
        b"some content"
    );
}

#[test]
fn a_damaged_index_is_rebuilt_from_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let tenant = Tenant::default();
    let digest = put(&open(folder.path()), &tenant, b"content");
    let index = folder.path().join("index.redb");
    let whole = fs::read(&index).unwrap();
    for garbage in [
        vec![],
        b"garbage".to_vec(),
        vec![0x5a; whole.len()],
        whole[..whole.len() / 2].to_vec(),
    ] {
        fs::write(&index, &garbage).unwrap();
        let store = open(folder.path());
        let content = store.get(&tenant, ObjectKind::Trace, digest).unwrap();
        assert_eq!(
            content.as_deref(),
            Some(b"content".as_slice()),
            "{} bytes",
            garbage.len()
        );
    }
    fs::remove_file(&index).unwrap();
    assert!(
        open(folder.path())
            .contains(&tenant, ObjectKind::Trace, digest)
            .unwrap()
    );
}

#[test]
fn a_second_process_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path());
    assert!(matches!(
        Store::open(folder.path(), MIB, 4),
        Err(StoreError::InUse { .. })
    ));
}

#[test]
fn a_tenant_has_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let tenant = Tenant::default();
    let large = vec![7; MIB as usize - 10];
    let digest = put(&store, &tenant, &large);
    let error = store
        .put(&tenant, ObjectKind::Trace, Digest::of(b"x"), "", &[1; 11])
        .unwrap_err();
    assert!(matches!(error, StoreError::Quota { .. }));
    put(&store, &Tenant::parse("b").unwrap(), &large);
    store.delete(&tenant, ObjectKind::Trace, digest).unwrap();
    put(&store, &tenant, &[1; 11]);
}

#[test]
fn results_are_bounded_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let tenant = Tenant::default();
    {
        let store = open(folder.path());
        for i in 0..6_u8 {
            store.put_result(&tenant, ResultKey([i; 32]), vec![i]);
            store.flush();
        }
    }
    let store = open(folder.path());
    let kept: Vec<u8> = (0..6_u8)
        .filter(|i| store.result(&tenant, &ResultKey([*i; 32])).unwrap() == Some(vec![*i]))
        .collect();
    assert_eq!(kept, [2, 3, 4, 5]);
    assert_eq!(
        store
            .result(&Tenant::parse("b").unwrap(), &ResultKey([5; 32]))
            .unwrap(),
        None
    );
}
