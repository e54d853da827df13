//! Digests by which runs and agents are told apart. They find changes; they keep nobody out.

use std::io;

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

/// A digest of what a value serialises to.
pub(crate) fn of<T: Serialize + ?Sized>(value: &T) -> String {
    let mut hasher = Hasher(Xxh3::new());
    // Writing to a hasher cannot fail; a value that has no JSON has the digest of what it has.
    let _ = serde_json::to_writer(&mut hasher, value);
    format!("{:032x}", hasher.0.digest128())
}

struct Hasher(Xxh3);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
