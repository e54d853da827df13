//! The Markdown of the studio, in node: lists and tables of replies are drawn as such.

use std::path::Path;

use crate::browser::in_node;

/// The elements of each text; `None` without node.
fn outlines(texts: &[&str]) -> Option<Vec<String>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Its modules have no other sign that they are some.
    let page = tempfile::tempdir().unwrap();
    std::fs::write(page.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    std::fs::create_dir(page.path().join("vendor")).unwrap();
    for name in ["text.js", "html.js", "json.js", "vendor/preact.js"] {
        std::fs::copy(here.join("page").join(name), page.path().join(name)).unwrap();
    }
    in_node("text.mjs", page.path(), texts)
}

#[test]
fn lists_and_tables_are_drawn_as_such() {
    let cases = [
        ("- a\n- b\n1. one\n2. two", "<ul><li>a</li><li>b</li></ul><ol 1><li>one</li><li>two</li></ol>"),
        (
            "1. one\n   - inner\n   - more\n2. two",
            "<ol 1><li>one<ul><li>inner</li><li>more</li></ul></li><li>two</li></ol>",
        ),
        ("3. three\n\n4. four", "<ol 3><li>three</li><li>four</li></ol>"),
        ("- a\n  continues\n\n  more\n- b", "<ul><li>a\ncontinues<p>more</p></li><li>b</li></ul>"),
        ("1. a\n- b\n2. c", "<ol 1><li>a</li></ol><ul><li>b</li></ul><ol 2><li>c</li></ol>"),
        ("> 1. a\n> 2. b", "<blockquote><ol 1><li>a</li><li>b</li></ol></blockquote>"),
        (
            "| a | b |\n|---|:-:|\n| 1 \\| 2 | **x** |\n\nafter",
            "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1 | 2</td><td><strong>x</strong></td></tr>\
             </tbody></table></div><p>after</p>",
        ),
        ("a | b\nno table", "<p>a | b\nno table</p>"),
        ("- x\n\n```\n- code\n```", "<ul><li>x</li></ul><pre><code>- code</code></pre>"),
    ];
    let Some(found) = outlines(&cases.map(|(text, _)| text)) else { return };
    for ((text, expected), found) in cases.iter().zip(found) {
        assert_eq!(found, *expected, "{text}");
    }
}
