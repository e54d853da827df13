//! The studio of the examples in a browser. `cargo xtask interop` installs what drives it, and says where it is.

use std::path::Path;

use expect_test::expect_file;

use crate::chromium::{in_chromium, seen_in_chromium};

/// A stranger looks for the call that wrote a value, sees why a call failed, forks before it, resumes what was killed, and
/// approves what waits.
#[test]
fn the_studio_of_the_examples() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/tests/interop/studio_example.cjs");
    let Some(mut page) = in_chromium(&script) else { return };
    let folder = tempfile::tempdir().unwrap();
    let seen = seen_in_chromium(page.current_dir(folder.path()).arg(env!("CARGO_BIN_EXE_studio")));
    expect_file!["../../../crates/cli/tests/interop/studio_example.json"].assert_eq(&format!("{seen:#}\n"));
}
