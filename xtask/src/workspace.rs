//! Where the workspace and its build output lie, as cargo itself says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, Show};

/// The workspace and what `cargo metadata` says of it.
pub(crate) struct Workspace {
    /// The folder of the workspace manifest.
    pub(crate) root: PathBuf,
    /// The build output: `target`, or what `CARGO_TARGET_DIR` says.
    pub(crate) target: PathBuf,
    /// The whole answer of `cargo metadata --no-deps`.
    pub(crate) metadata: Value,
}

impl Workspace {
    /// Asks cargo. Needs no network.
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
        let mut command = Command::new("cargo");
        command.args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"]);
        command.arg(manifest);
        let done = process::run(&mut command, Show::Errors, Duration::from_secs(120))?;
        if !done.success() {
            bail!("cargo metadata: {}", done.how());
        }
        let metadata: Value = serde_json::from_str(&done.stdout).context("cargo metadata")?;
        let folder = |key: &str| {
            let path = metadata[key].as_str();
            path.map(PathBuf::from).with_context(|| format!("cargo metadata names no {key}"))
        };
        Ok(Self { root: folder("workspace_root")?, target: folder("target_directory")?, metadata })
    }

    /// The folder of a package of the workspace.
    pub(crate) fn folder_of(&self, package: &str) -> Result<PathBuf> {
        let packages = self.metadata["packages"].as_array().into_iter().flatten();
        let manifest = packages
            .filter(|candidate| candidate["name"] == package)
            .find_map(|found| found["manifest_path"].as_str())
            .with_context(|| format!("the workspace has no package {package}"))?;
        Ok(Path::new(manifest).parent().unwrap_or(&self.root).to_owned())
    }

    /// A `cargo` command that runs in the workspace.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(args);
        command
    }

    /// A command that runs in the workspace. The library path that `cargo run` sets for us is left
    /// out: it would make another toolchain load this one's libraries.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env_remove("LD_LIBRARY_PATH");
        command
    }

    /// The command `gmm` as a release build leaves it.
    pub(crate) fn gmm(&self) -> PathBuf {
        self.target.join("release/gmm")
    }

    /// Builds the command and the sample kernels in release mode, for the demo and the doctor.
    pub(crate) fn build_release(&self) -> Result<()> {
        let args = ["build", "--release", "--package", "gmm-cli", "--package", "gmm-kernels"];
        let limit = Duration::from_secs(45 * 60);
        let done = process::run(&mut self.cargo(&args), Show::All, limit)?;
        if !done.success() {
            bail!("cargo {}: {}", args.join(" "), done.how());
        }
        Ok(())
    }
}
