//! `cargo xtask dist`: the command as an archive that people download, with its manual pages and completions.
//!
//! The binary is built with the profile `dist` of the workspace, and says itself what its manual pages are. The archive has
//! the same bytes whenever the same binary is packed: names in order, no times, no users.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::console::say;
use crate::process::Call;
use crate::workspace;

/// The largest binary, in bytes.
const MAX_BYTES: u64 = 25 * 1024 * 1024;

/// Files of the repository that are in each archive.
const FILES: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "docs/cli.md"];

/// The shells with completions, each with the name of its file.
const SHELLS: [(&str, &str); 3] =
    [("bash", "stepfold.bash"), ("fish", "stepfold.fish"), ("zsh", "_stepfold")];

/// Builds and packs the command, into `target/dist` of the repository, wherever cargo builds.
///
/// # Errors
/// When a program fails, a file cannot be written, or the binary is larger than it may be.
pub fn run() -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    let packages = metadata.workspace_packages();
    let command = packages.iter().find(|package| package.name == "stepfold-cli");
    let version = command.map_or_else(String::new, |package| package.version.to_string());
    let plan = DistPlan::new(root, metadata.target_directory.as_std_path(), &version);

    step(&build(), root)?;
    if plan.built != plan.binary() {
        std::fs::create_dir_all(&plan.folder).map_err(Error::write(&plan.folder))?;
        copy(&plan.built, &plan.binary())?;
    }
    let bytes = std::fs::metadata(plan.binary()).map_err(Error::read(plan.binary()))?.len();
    say(format_args!("   {bytes} bytes"));
    if bytes > MAX_BYTES {
        return Err(Error::LargeBinary { bytes, limit: MAX_BYTES });
    }
    let packed = plan.packed();
    if packed.exists() {
        std::fs::remove_dir_all(&packed).map_err(Error::write(&packed))?;
    }
    for folder in [packed.join("man"), packed.join("completions")] {
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    }
    copy(&plan.binary(), &packed.join("stepfold"))?;
    for file in FILES {
        let name = Path::new(file).file_name().unwrap_or_default();
        copy(&root.join(file), &packed.join(name))?;
    }
    step(&plan.manual(), root)?;
    for (shell, name) in SHELLS {
        let text = plan.completions(shell).run_and_read_silently(root)?;
        let path = packed.join("completions").join(name);
        std::fs::write(&path, text).map_err(Error::write(&path))?;
    }
    step(&plan.archive(), root)?;
    let sums = plan.sums().run_and_read(&plan.folder)?;
    let path = plan.folder.join("SHA256SUMS");
    std::fs::write(&path, sums).map_err(Error::write(&path))?;
    say(format_args!("packed: {}", plan.folder.join(plan.archive_name()).display()));
    Ok(())
}

fn step(call: &Call, root: &Path) -> Result<(), Error> {
    say(format_args!("   {call}"));
    Ok(call.run(root)?)
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::copy(from, to).map_err(Error::write(to))?;
    Ok(())
}

fn build() -> Call {
    Call::cargo(["build", "--locked", "--profile", "dist", "--package", "stepfold-cli"])
}

/// The calls and the places of one archive.
struct DistPlan {
    /// The binary where cargo puts it.
    built: PathBuf,
    /// The folder of what is packed. The `Dockerfile` takes the binary from there.
    folder: PathBuf,
    /// The archive without its extension.
    name: String,
}

impl DistPlan {
    fn new(root: &Path, target: &Path, version: &str) -> Self {
        let name = format!("stepfold-{version}-{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        DistPlan { built: binary_in(&target.join("dist")), folder: root.join("target/dist"), name }
    }

    fn binary(&self) -> PathBuf {
        binary_in(&self.folder)
    }

    /// The folder that becomes the archive.
    fn packed(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    fn archive_name(&self) -> String {
        format!("{}.tar.gz", self.name)
    }

    fn manual(&self) -> Call {
        let man = self.packed().join("man");
        Call::program(&self.binary().to_string_lossy(), ["man".to_owned(), man.display().to_string()])
    }

    fn completions(&self, shell: &str) -> Call {
        Call::program(&self.binary().to_string_lossy(), ["completions", shell])
    }

    fn archive(&self) -> Call {
        let folder = self.folder.display().to_string();
        let archive = self.folder.join(self.archive_name()).display().to_string();
        // Or it would differ by who packs, when, and under which umask; gzip writes its own time as well.
        let same = [
            "--sort=name",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u+rwX,go+rX,go-w",
            "--use-compress-program=gzip -n",
        ];
        let arguments = same.map(str::to_owned).into_iter();
        let named = ["--directory".to_owned(), folder, "-cf".to_owned(), archive, self.name.clone()];
        Call::program("tar", arguments.chain(named))
    }

    fn sums(&self) -> Call {
        Call::program("sha256sum", [self.archive_name()])
    }
}

fn binary_in(folder: &Path) -> PathBuf {
    folder.join(format!("stepfold{}", std::env::consts::EXE_SUFFIX))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// The calls, in order.
    #[test]
    fn the_command_is_built_asked_and_packed() {
        let name = "stepfold-1.2.3-x86_64-linux".to_owned();
        let plan = DistPlan { name, ..DistPlan::new(Path::new(""), Path::new("target"), "1.2.3") };
        let calls = [build(), plan.manual(), plan.completions("zsh"), plan.archive(), plan.sums()];
        let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
        expect![[r#"
            cargo build --locked --profile dist --package stepfold-cli
            target/dist/stepfold man target/dist/stepfold-1.2.3-x86_64-linux/man
            target/dist/stepfold completions zsh
            tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w --use-compress-program=gzip -n --directory target/dist -cf target/dist/stepfold-1.2.3-x86_64-linux.tar.gz stepfold-1.2.3-x86_64-linux
            sha256sum stepfold-1.2.3-x86_64-linux.tar.gz"#]]
        .assert_eq(&calls.join("\n"));
    }

    #[test]
    fn all_that_is_packed_is_there() {
        let root = workspace::metadata().unwrap().workspace_root;
        for file in FILES {
            assert!(root.join(file).exists(), "{file}");
        }
        // The image is made of the archive's binary, wherever cargo has built that.
        let plan = DistPlan::new(Path::new(""), Path::new("/elsewhere"), "1.2.3");
        let copied = format!("COPY {} ", plan.binary().display());
        let image = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
        assert!(image.contains(&copied), "{image}");
        assert!(image.contains("FROM debian:") && image.contains("USER stepfold"), "{image}");
    }
}
