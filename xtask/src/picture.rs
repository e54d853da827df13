//! `cargo xtask picture`: the pictures of the README, a recording of its first program as SVG, for dark and light pages.
//!
//! The program plays its written conversation with counted times, stops in the middle of an answer, and a second process
//! continues: the same code gives the same pictures. `--check` compares them with those that are checked in.

use std::fs;
use std::path::Path;

use anstyle::{Color, RgbColor};
use anstyle_svg::Term;

use crate::Error;
use crate::cli::PictureOptions;
use crate::console::say;
use crate::process::Call;
use crate::workspace;

/// The folder of the recording's sessions.
const FOLDER: &str = "target/picture";

/// The question before which the picture ends.
const END: &str = "❯ Australia had 13 before.";

/// The pictures, each with its background, its text, and the colors of its terminal.
const THEMES: [(&str, Theme); 2] = [
    (
        "docs/terminal-dark.svg",
        Theme {
            background: [0x0d, 0x11, 0x17],
            text: [0xe6, 0xed, 0xf3],
            red: [0xff, 0x7b, 0x72],
            green: [0x56, 0xd3, 0x64],
            blue: [0x79, 0xc0, 0xff],
            magenta: [0xd2, 0xa8, 0xff],
            cyan: [0x56, 0xd4, 0xdd],
        },
    ),
    (
        "docs/terminal-light.svg",
        Theme {
            background: [0xff, 0xff, 0xff],
            text: [0x1f, 0x23, 0x28],
            red: [0xcf, 0x22, 0x2e],
            green: [0x11, 0x63, 0x29],
            blue: [0x09, 0x69, 0xda],
            magenta: [0x82, 0x50, 0xdf],
            cyan: [0x1b, 0x7c, 0x83],
        },
    ),
];

#[derive(Clone, Copy, Debug)]
struct Theme {
    background: [u8; 3],
    text: [u8; 3],
    red: [u8; 3],
    green: [u8; 3],
    blue: [u8; 3],
    magenta: [u8; 3],
    cyan: [u8; 3],
}

/// Makes the pictures, or checks them.
///
/// # Errors
/// The program failed, a file cannot be written, or with `--check` a picture is not up to date.
pub fn run(options: &PictureOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    if options.studio {
        return studio(root, metadata.target_directory.as_std_path());
    }
    let shown = recording(root, options.columns)?;
    let mut outdated = 0;
    for (file, theme) in THEMES {
        let svg = theme.svg(&shown);
        let path = root.join(file);
        if options.check {
            let is_same = fs::read_to_string(&path).is_ok_and(|there| there == svg);
            outdated += usize::from(!is_same);
            say(format_args!(
                "{file}: {}",
                if is_same { "up to date" } else { "differs; run `cargo xtask picture`" }
            ));
        } else {
            fs::write(&path, svg).map_err(Error::write(&path))?;
            say(format_args!("{file} is written"));
        }
    }
    match outdated {
        0 => Ok(()),
        count => Err(Error::Problems { check: "picture", count }),
    }
}

/// Takes the pictures of the studio, of the sessions of the examples.
fn studio(root: &Path, target: &Path) -> Result<(), Error> {
    let build = ["build", "-p", "stepfold-examples", "--bin", "studio", "--features", "server"];
    Call::cargo(build).run(root)?;
    let script = "crates/cli/tests/interop/studio_pictures.cjs";
    let program = target.join("debug/studio");
    let playwright = target.join("interop/playwright/node_modules/playwright-core");
    let call = Call::program("node", [script, "/usr/bin/chromium", &program.to_string_lossy(), "docs"]);
    call.env("STEPFOLD_INTEROP_PLAYWRIGHT", playwright.to_string_lossy()).run(root)?;
    Ok(())
}

/// The output of two processes, one after the other, with their escape sequences.
fn recording(root: &Path, columns: usize) -> Result<String, Error> {
    let folder = root.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Error::write(&folder))?;
    }
    let mut shown = String::new();
    for is_first in [true, false] {
        let columns = columns.to_string();
        let arguments = [
            "analyst",
            "--replay",
            "--folder",
            FOLDER,
            "--color",
            "always",
            "--delay",
            "0",
            "--picture",
            &columns,
        ];
        let printed = Call::cargo(arguments).run_and_read(root)?;
        shown += "\x1b[2m$\x1b[0m cargo analyst\n";
        shown += &printed;
        shown += if is_first { "^C\n" } else { "" };
    }
    Ok(until_end(&shown).to_owned())
}

/// The part before the last question of the picture, with its styles ended.
fn until_end(shown: &str) -> &str {
    let plain_end = END.split_once(' ').map_or(END, |(_, question)| question);
    let end = shown.find(plain_end).map(|at| shown[..at].rfind('\n').unwrap_or(at));
    shown[..end.unwrap_or(shown.len())].trim_end()
}

impl Theme {
    fn svg(self, ansi: &str) -> String {
        let color = |[red, green, blue]: [u8; 3]| RgbColor(red, green, blue);
        let mut palette = anstyle_svg::VGA;
        for (index, value) in
            [(1, self.red), (2, self.green), (4, self.blue), (5, self.magenta), (6, self.cyan)]
        {
            palette.0[index] = color(value);
        }
        Term::new()
            .palette(palette)
            .fg_color(Color::Rgb(color(self.text)))
            .bg_color(Color::Rgb(color(self.background)))
            .render_svg(ansi)
            // Not every reader of SVG makes a part of a text transparent.
            .replace("opacity: 0.4", "fill-opacity: 0.65")
    }
}

#[cfg(test)]
mod tests {
    use super::until_end;

    #[test]
    fn the_picture_ends_before_the_question() {
        let shown = "first\n\n\x1b[36m❯ \x1b[0m\x1b[1mAustralia had 13 before. Which\x1b[0m\nmore";
        assert_eq!(until_end(shown), "first");
    }
}
