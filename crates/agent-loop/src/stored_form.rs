//! Shared parts of stored forms: the number of their format, and the counts that are left out.

/// The format of what does not say its number.
pub(crate) const fn first_format() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(crate) const fn is_first_format(format: &u32) -> bool {
    *format == first_format()
}

/// Refuses what a newer version has written.
pub(crate) fn check_format<E: serde::de::Error>(what: &str, found: u32, newest: u32) -> Result<(), E> {
    match found <= newest {
        true => Ok(()),
        false => Err(E::custom(format_args!(
            "unsupported format {found} of {what}: written by a newer stepfold; update"
        ))),
    }
}

/// The count that is not stored.
pub(crate) fn once<N: From<u8>>() -> N {
    N::from(1)
}

/// Whether a count is the one that is not stored.
pub(crate) fn is_once<N: From<u8> + PartialEq>(count: &N) -> bool {
    *count == once()
}
