//! Key rings.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepfold_session_scopes::{
    AppId, DataKey, KeyFile, KeyOwner, KeyRing, MemoryKeyRing, RandomBytes, UserId, WrappingKey,
};

/// Random bytes of a test: others at each call.
pub(crate) fn drawn() -> impl RandomBytes {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    |bytes: &mut [u8]| {
        let draw = blake3::hash(&DRAWN.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        let draw = draw.as_bytes().iter().cycle().copied();
        bytes.iter_mut().zip(draw).for_each(|(byte, draw)| *byte = draw);
        Ok(())
    }
}

pub(crate) fn memory_ring() -> Arc<MemoryKeyRing> {
    Arc::new(MemoryKeyRing::new("memory", drawn()))
}

pub(crate) fn owner(app: &str, user: &str) -> KeyOwner {
    KeyOwner::new(AppId::new(app).unwrap(), UserId::new(user).unwrap())
}

pub(crate) fn wrapping(text: &str) -> WrappingKey {
    WrappingKey::new(&text.repeat(32)).unwrap()
}

/// The ring of a file that several processes of a test use, whose wrapping key may be one of two.
pub(crate) fn key_file(path: &str) -> KeyFile {
    KeyFile::open(path, ["one", "two"].map(wrapping).into(), from_system).unwrap()
}

/// Random bytes that differ between processes.
fn from_system(bytes: &mut [u8]) -> io::Result<()> {
    fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// Wraps the keys of a ring by another wrapping key, until it is killed.
pub(crate) async fn rotate_for_ever(path: &str) {
    let rings = [["one", "two"], ["two", "one"]];
    let rings = rings.map(|keys| KeyFile::open(path, keys.map(wrapping).into(), from_system).unwrap());
    for round in 0.. {
        let count = rings[round % 2].rewrap().await.unwrap();
        println!("rotated {count}");
    }
}

fn open(path: &Path, keys: &[&str]) -> Result<KeyFile, String> {
    let keys = keys.iter().map(|text| wrapping(text)).collect();
    KeyFile::open(path, keys, drawn()).map_err(|error| error.to_string())
}

/// The laws of a ring, through several of its users at once.
async fn check_ring(rings: [&dyn KeyRing; 2]) {
    let (ada, other) = (owner("a", "ada"), owner("b", "ada"));
    assert_eq!(rings[0].get(&ada).await.unwrap(), None);
    let key = rings[0].make(&ada).await.unwrap();
    let of_other = rings[1].make(&other).await.unwrap();
    assert_ne!(key, of_other);
    for ring in rings {
        assert_eq!(ring.get(&ada).await.unwrap(), Some(key.clone()));
        assert_eq!(ring.make(&ada).await.unwrap(), key);
    }
    assert!(rings[1].destroy(&ada).await.unwrap());
    for ring in rings {
        assert_eq!(ring.get(&ada).await.unwrap(), None);
        assert!(!ring.destroy(&ada).await.unwrap());
        assert_eq!(ring.get(&other).await.unwrap(), Some(of_other.clone()));
    }
    assert_ne!(rings[0].make(&ada).await.unwrap(), key, "a user who comes back has another key");
}

#[tokio::test]
async fn a_ring_keeps_its_laws() {
    let memory = memory_ring();
    check_ring([&memory, &memory]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let (one, other) = (open(&path, &["k"]).unwrap(), open(&path, &["k"]).unwrap());
    assert_eq!(one.name(), other.name());
    check_ring([&one, &other]).await;
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the ring and its lock: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rings_of_a_file_make_one_key_for_a_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let rings: Vec<Arc<KeyFile>> = (0..4).map(|_| Arc::new(open(&path, &["k"]).unwrap())).collect();
    let made = rings.iter().flat_map(|ring| (0..25).map(move |user| (Arc::clone(ring), user)));
    let made = made.map(|(ring, user)| {
        tokio::spawn(
            async move { (user, ring.make(&owner("a", &user.to_string())).await.unwrap().to_bytes()) },
        )
    });
    let mut keys = std::collections::BTreeSet::new();
    for made in made.collect::<Vec<_>>() {
        keys.insert(made.await.unwrap());
    }
    assert_eq!(keys.len(), 25);
}

#[tokio::test]
async fn a_file_has_no_key_in_plain_text_and_others_cannot_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let key = open(&path, &["k"]).unwrap().make(&owner("a", "ada")).await.unwrap();
    let text = fs::read(&path).unwrap();
    assert!(!text.windows(8).any(|bytes| bytes == &key.to_bytes()[8..16]));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = open(&path, &["k"]).unwrap_err();
        assert!(error.contains("others can read it; set its mode to 600"), "{error}");
        let secret = folder.path().join("wrapping.key");
        fs::write(&secret, "k".repeat(32)).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o604)).unwrap();
        let error = WrappingKey::read(&secret).unwrap_err().to_string();
        assert!(error.contains("others can read it"), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_or_foreign_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let ring = open(&path, &["k"]).unwrap();
    ring.make(&owner("a", "ada")).await.unwrap();
    let error = open(&path, &["other"]).unwrap_err();
    assert!(error.contains("has wrapped its keys"), "{error}");
    // The key of one user in the place of another.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("ada", "bob")).unwrap();
    let error = ring.get(&owner("a", "bob")).await.unwrap_err().to_string();
    assert!(error.contains("the key of a/bob is damaged; restore the file"), "{error}");
    fs::write(&path, "{").unwrap();
    assert!(ring.get(&owner("a", "ada")).await.is_err());
    fs::remove_file(&path).unwrap();
    let error = ring.make(&owner("a", "ada")).await.unwrap_err().to_string();
    assert!(error.contains("the file is gone; restore it"), "{error}");
    open(&path, &["k"]).unwrap();
    let error = ring.get(&owner("a", "ada")).await.unwrap_err().to_string();
    assert!(error.contains("it was replaced by the ring"), "{error}");
}

#[tokio::test]
async fn a_rotation_keeps_all_data_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let old = open(&path, &["old"]).unwrap();
    let mut keys: Vec<DataKey> = Vec::new();
    for user in 0..20 {
        keys.push(old.make(&owner("a", &user.to_string())).await.unwrap());
    }
    let both = open(&path, &["new", "old"]).unwrap();
    let reader = open(&path, &["old", "new"]).unwrap();
    assert_eq!(both.rewrap().await.unwrap(), 20);
    assert!(open(&path, &["old"]).is_err());
    let new = open(&path, &["new"]).unwrap();
    for (user, key) in keys.iter().enumerate() {
        for ring in [&new, &both, &reader] {
            assert_eq!(ring.get(&owner("a", &user.to_string())).await.unwrap().as_ref(), Some(key));
        }
    }
    // A process that knows both keys adds one that the new key wraps.
    reader.make(&owner("a", "late")).await.unwrap();
    assert!(new.get(&owner("a", "late")).await.unwrap().is_some());
    let text = fs::read(&path).unwrap();
    assert_eq!(both.rewrap().await.unwrap(), 21);
    assert_eq!(fs::read(&path).unwrap(), text, "nothing to do");
}

/// The files of a folder, with their bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    });
    let mut read: Vec<_> = read.collect();
    read.sort();
    read
}

/// The names of the files that have a user's key, in plain text as the ring has it.
pub(crate) fn files_with(folder: &Path, user: &str) -> Vec<String> {
    let has = |(_, bytes): &(String, Vec<u8>)| bytes.windows(user.len()).any(|part| part == user.as_bytes());
    files(folder).into_iter().filter(has).map(|(name, _)| name).collect()
}

/// A law: whenever a writer of the ring was killed, the next change leaves one file, and an erasure no copy of the key.
#[tokio::test]
async fn a_killed_writer_leaves_no_copy_of_a_key_that_is_destroyed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ring.json");
    let ring = open(&path, &["old"]).unwrap();
    let (ada, bob) = (owner("a", "ada lovelace"), owner("a", "bob"));
    ring.make(&ada).await.unwrap();
    let of_bob = ring.make(&bob).await.unwrap();
    let before = fs::read(&path).unwrap();
    open(&path, &["new", "old"]).unwrap().rewrap().await.unwrap();
    let after = fs::read(&path).unwrap();
    // Killed after each byte, before the file was renamed and after it; by this version and by an earlier one.
    let moments = (0..=after.len()).step_by(3).map(|written| (&before, &after[..written]));
    for (number, (old, written)) in moments.chain([(&after, &before[..])]).enumerate() {
        for name in ["ring.json", "ring.json.new", "ring.json.4711.new", "ring.json.backup.new"] {
            let _ = fs::remove_file(folder.path().join(name));
        }
        private(&path, old);
        let is_earlier = number % 2 == 0;
        let left = folder.path().join(if is_earlier { "ring.json.4711.new" } else { "ring.json.new" });
        private(&left, written);
        let both = open(&path, &["new", "old"]).unwrap();
        assert!(both.destroy(&ada).await.unwrap());
        assert_eq!(files_with(folder.path(), "ada lovelace"), Vec::<String>::new());
        assert_eq!(both.get(&bob).await.unwrap(), Some(of_bob.clone()));
        // A user without a key is erased, and finds what is left too.
        private(&left, written);
        private(&folder.path().join("ring.json.backup.new"), b"not of the ring");
        assert!(!both.destroy(&ada).await.unwrap());
        let names: Vec<String> = files(folder.path()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["ring.json", "ring.json.backup.new", "ring.json.lock"]);
    }
}

fn private(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}
