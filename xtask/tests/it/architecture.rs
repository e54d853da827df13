//! `ARCHITECTURE.md` and the rules of `cargo xtask layers` are one table.

use std::path::Path;

use xtask::layers::rules;

#[test]
fn the_table_in_architecture_is_the_table_that_is_enforced() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let text = std::fs::read_to_string(path).unwrap();
    let table = rules::table();
    assert!(text.contains(&table), "ARCHITECTURE.md does not hold this table:\n\n{table}");
}
