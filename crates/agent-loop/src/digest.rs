//! Digests that identify runs and agents, which detect changes and are not a protection; and digests of
//! requests, which a model that chooses the arguments must not be able to forge.

use std::io;

use data_encoding::HEXLOWER;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::Xxh3;

/// A digest of what a value serialises to.
pub(crate) fn of<T: Serialize + ?Sized>(value: &T) -> String {
    let mut hasher = HashWriter(Xxh3::new());
    // Writing to a hasher cannot fail; a value that has no JSON has the digest of what it has.
    let _ = serde_json::to_writer(&mut hasher, value);
    hex(&hasher.0)
}

/// The bytes of a digest that an id shows.
const SHOWN_BYTES: usize = 8;

/// A digest of several texts in this order, which no other texts have.
pub(crate) fn of_parts(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    HEXLOWER.encode(&hasher.finalize()[..SHOWN_BYTES])
}

/// The whole SHA-256 of a text.
pub(crate) fn sha256(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

/// A digest of a text.
pub(crate) fn of_text(text: &str) -> String {
    let mut hasher = Xxh3::new();
    hasher.update(text.as_bytes());
    hex(&hasher)
}

fn hex(hasher: &Xxh3) -> String {
    HEXLOWER.encode(&hasher.digest128().to_be_bytes())
}

struct HashWriter(Xxh3);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
