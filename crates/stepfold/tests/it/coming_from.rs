//! The other side of the pages for those who come from elsewhere: the Python in them is what runs here, in the libraries
//! themselves. `cargo xtask interop` installs these and says where they are.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::installed::installed;

/// The first block of Python in a page.
fn python_of(page: &str) -> &str {
    let (_, rest) = page.split_once("```python\n").expect("the page has a block of Python");
    rest.split_once("```").expect("the block has an end").0
}

/// Runs the Python of a page inside of a program that gives it a scripted model, and checks its result.
fn check(variable: &str, program: &str, page: &str) {
    let Some(python) = installed(variable) else { return };
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(program);
    let mut child = Command::new(python)
        .arg(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(python_of(page).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.trim_end().ends_with("the page runs"), "{said}\n{errors}");
}

#[test]
fn interop_langgraph() {
    check(
        "STEPFOLD_INTEROP_LANGGRAPH",
        "from_langgraph.py",
        include_str!("../../guide/coming_from_langgraph.md"),
    );
}

#[test]
fn interop_pydantic_ai() {
    check(
        "STEPFOLD_INTEROP_PYDANTIC_AI",
        "from_pydantic_ai.py",
        include_str!("../../guide/coming_from_pydantic_ai.md"),
    );
}
