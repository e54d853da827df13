//! The page: hand-written modules, embedded, each with its type and its tag. Comments of modules, types of expressions
//! among them, and their indentation are not served.

use std::sync::LazyLock;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// The content security policy of the page: it runs its own modules and sends requests to its own server, and nothing
/// else. No text becomes markup.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

const HTML: &str = "text/html; charset=utf-8";

const CSS: &str = "text/css; charset=utf-8";

const SCRIPT: &str = "text/javascript; charset=utf-8";

const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the page.
struct StudioFile {
    path: &'static str,
    kind: &'static str,
    source: &'static str,
}

/// A file as it is served.
struct ServedFile {
    bytes: Bytes,
    tag: HeaderValue,
}

macro_rules! files {
    ($($path:literal $kind:ident $file:literal;)*) => {
        [$(StudioFile { path: $path, kind: $kind, source: include_str!(concat!("../../../page/", $file)) }),*]
    };
}

/// All files: what is not here is not served.
static FILES: [StudioFile; 25] = files! {
    "/" HTML "index.html";
    "/studio/style.css" CSS "style.css";
    "/studio/app.js" SCRIPT "app.js";
    "/studio/act.js" SCRIPT "act.js";
    "/studio/api.js" SCRIPT "api.js";
    "/studio/compare.js" SCRIPT "compare.js";
    "/studio/conversation.js" SCRIPT "conversation.js";
    "/studio/experiments.js" SCRIPT "experiments.js";
    "/studio/graph.js" SCRIPT "graph.js";
    "/studio/html.js" SCRIPT "html.js";
    "/studio/inspector.js" SCRIPT "inspector.js";
    "/studio/json.js" SCRIPT "json.js";
    "/studio/live.js" SCRIPT "live.js";
    "/studio/requests.js" SCRIPT "requests.js";
    "/studio/router.js" SCRIPT "router.js";
    "/studio/rows.js" SCRIPT "rows.js";
    "/studio/scrubber.js" SCRIPT "scrubber.js";
    "/studio/sessions.js" SCRIPT "sessions.js";
    "/studio/spend.js" SCRIPT "spend.js";
    "/studio/store.js" SCRIPT "store.js";
    "/studio/text.js" SCRIPT "text.js";
    "/studio/timeline.js" SCRIPT "timeline.js";
    "/studio/usage.js" SCRIPT "usage.js";
    "/studio/vendor/preact.js" SCRIPT "vendor/preact.js";
    "/studio/vendor/LICENSES" TEXT "vendor/LICENSES";
};

/// The contents of the files, in the same order.
static SERVED: LazyLock<Vec<ServedFile>> = LazyLock::new(|| {
    let served = |file: &StudioFile| {
        let bytes = match file.kind {
            SCRIPT => Bytes::from(compact(file.source)),
            CSS => Bytes::from(compact_style(file.source)),
            _ => Bytes::from_static(file.source.as_bytes()),
        };
        ServedFile { tag: tag(&bytes), bytes }
    };
    FILES.iter().map(served).collect()
});

/// A module without indentation, and without the comments that have lines of their own. Its lines keep their numbers. No
/// string of a module spans lines, but for templates of `htm`, which counts no space at the begin of a line.
fn compact(source: &str) -> String {
    let mut is_inside = false;
    let code = source.split('\n').map(|line| {
        let text = line.trim();
        let is_block = is_inside || text.starts_with("/**");
        is_inside = is_block && !text.contains("*/");
        let is_comment = text.starts_with("//") || (is_block && (is_inside || text.ends_with("*/")));
        // NOTE: Lines keep their numbers, for the tools of a browser. A minifier would be a build step, and hide the code
        // (docs/decisions/studio.md).
        if is_comment { String::new() } else { without_types(line.trim_start()) }
    });
    code.collect::<Vec<_>>().join("\n")
}

/// A style sheet in one line, without comments and the spaces between its signs. Each line of its source ends with a sign, and no
/// text in quotes has one.
fn compact_style(source: &str) -> String {
    let signs = [
        (" { ", "{"),
        (" {", "{"),
        ("; }", "}"),
        (" }", "}"),
        (": ", ":"),
        ("; ", ";"),
        (", ", ","),
        (" > ", ">"),
    ];
    let style = source.split('\n').map(|line| match line.trim() {
        comment if comment.starts_with("/*") => String::new(),
        line => signs.iter().fold(line.to_owned(), |line, (spaced, sign)| line.replace(spaced, sign)),
    });
    style.collect()
}

/// A line without the types of its expressions: no text of a module looks like one.
fn without_types(line: &str) -> String {
    let (mut code, mut rest) = (String::new(), line);
    while let Some((before, typed)) = rest.split_once("/** @type {") {
        let after = typed.split_once("*/").map_or("", |(_, after)| after);
        code.push_str(before);
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    code + rest
}

/// The paths of the files.
pub(in crate::http) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.path)
}

/// The file at a path of [`paths`]; without its content if the browser has it.
pub(in crate::http) fn answer(path: &str, asked: &HeaderMap) -> Response {
    let place = FILES.iter().position(|file| file.path == path).unwrap_or(0);
    let (file, ServedFile { bytes, tag }) = (&FILES[place], &SERVED[place]);
    let is_known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.kind)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Browsers keep files, and ask each time whether they are the same.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, tag.clone()),
    ];
    match is_known {
        true => (StatusCode::NOT_MODIFIED, headers).into_response(),
        false => (headers, Body::from(bytes.clone())).into_response(),
    }
}

/// The tag of a content: its length, and a hash (FNV-1a) that tells versions of a file apart.
fn tag(bytes: &[u8]) -> HeaderValue {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let text = format!("\"{:x}-{hash:016x}\"", bytes.len());
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("\"-\""))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = SERVED.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes <= 200 * 1024, "{bytes}");
    }

    #[test]
    fn comments_and_indentation_are_left_out_and_lines_keep_their_numbers() {
        let source = "// A head.\n/** @type {any} */ (one).two();\n/**\n * Sums. @param {number} a\n */\nconst sum = (a) => a; // here\n  /** @param {any} b */\n  sum(1);\n";
        let code = "\n(one).two();\n\n\n\nconst sum = (a) => a; // here\n\nsum(1);\n";
        assert_eq!(compact(source), code);
        let style = "/* Rows. */\n.row { margin: 0 2px; }\n@media (max-width: 9px) {\n  a, b::before { content: \"\"; }\n}\n";
        assert_eq!(
            compact_style(style),
            ".row{margin:0 2px}@media (max-width:9px){a,b::before{content:\"\"}}"
        );
        for (file, served) in FILES.iter().zip(&*SERVED) {
            if file.kind == CSS {
                continue;
            }
            let served = std::str::from_utf8(&served.bytes).unwrap();
            assert_eq!(served.lines().count(), file.source.lines().count(), "{}", file.path);
            let lines = served.lines().zip(file.source.lines());
            let kept = lines.map(|(line, all)| {
                let all = if file.kind == SCRIPT { without_types(all.trim_start()) } else { all.to_owned() };
                (line, all)
            });
            assert!(
                kept.clone().all(|(line, all)| line == all || line.is_empty())
                    && (file.kind != SCRIPT || !served.contains("\n/**\n")),
                "{}",
                file.path
            );
        }
    }

    /// A module that is imported and not in the table would be missing in browsers only.
    #[test]
    fn what_modules_import_is_served() {
        for file in FILES.iter().filter(|file| file.kind == SCRIPT) {
            let folder = file.path.rsplit_once('/').unwrap().0;
            for part in file.source.split(" from \"./").skip(1) {
                let imported = format!("{folder}/{}", part.split('"').next().unwrap());
                assert!(paths().any(|path| path == imported), "{imported} of {}", file.path);
            }
        }
    }

    /// JavaScript's own reader and writer change numbers.
    #[test]
    fn values_are_read_and_written_by_one_module() {
        let own = FILES.iter().filter(|file| file.kind == SCRIPT && !file.path.contains("vendor"));
        for file in own.filter(|file| file.path != "/studio/json.js") {
            // A key in quotes has no number.
            let source = file.source.replace("JSON.stringify(key)", "").replace("JSON.stringify(name)", "");
            assert!(!source.contains("JSON.parse") && !source.contains("JSON.stringify"), "{}", file.path);
            assert!(!source.contains(".json()"), "{}", file.path);
        }
    }

    /// The ranges of the characters for which this holds, as a class of JavaScript has them.
    fn class(is_in: impl Fn(char) -> bool) -> String {
        let mut found = String::new();
        let mut all = (0..=0x10_FFFF).peekable();
        let is_in = |number: &u32| char::from_u32(*number).is_some_and(&is_in);
        while let Some(first) = all.find(is_in) {
            let mut last = first;
            while let Some(next) = all.next_if(is_in) {
                last = next;
            }
            let _ = write!(found, "\\u{{{first:x}}}");
            if first != last {
                let _ = write!(found, "-\\u{{{last:x}}}");
            }
        }
        found
    }

    /// The page escapes what the command escapes.
    #[test]
    fn what_is_invisible_is_the_same_in_the_page() {
        let source = include_str!("../../../page/html.js");
        let hides = |character: char| {
            let text = character.to_string();
            stepfold_state_core::escape_invisible(&text) != text
        };
        for (name, class) in [("ALL", class(stepfold_state_core::is_invisible)), ("HIDING", class(hides))] {
            let line = format!("const {name} = /[{class}]/gu;\n");
            assert!(source.contains(&line), "html.js needs:\n{line}");
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_sent_none() {
        let first = answer("/studio/app.js", &HeaderMap::new());
        assert_eq!(
            (first.status(), &first.headers()[header::CONTENT_TYPE]),
            (StatusCode::OK, &HeaderValue::from_static(SCRIPT))
        );
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone())]);
        assert_eq!(answer("/studio/app.js", &known).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer("/studio/style.css", &known).status(), StatusCode::OK);
    }
}
