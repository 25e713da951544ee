//! The sample kernels as a shared library, which tests and programs load at run time.
//!
//! No test depends on that library by its manifest, and cargo leaves it in two places, of which one
//! command may write only one: a test could load what an older source was compiled to, and prove
//! nothing. So it is built before each step that loads it, and then both places are looked at.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};

use super::{Context, steps};

const PACKAGE: &str = "gmm-kernels";
const LIBRARY: &str = "libgmm_kernels.so";

/// Builds the library without or with optimisation, and fails if a stale one is left anywhere
/// that it is loaded from.
pub(super) fn build(context: &Context, release: bool) -> Result<()> {
    let (flags, folder): (&[&str], _) =
        if release { (&["--release"], "release") } else { (&[], "debug") };
    steps::succeed(context, &[&["build", "--package", PACKAGE], flags].concat())?;
    let built = context.workspace.target.join(folder);
    let sources = context.workspace.folder_of(PACKAGE)?;
    check(&[built.join(LIBRARY), built.join("deps").join(LIBRARY)], &sources)
}

/// Each of the libraries that exists, the first must, is newer than all sources and equals the first.
fn check(libraries: &[PathBuf], sources: &Path) -> Result<()> {
    let (changed, source) = newest(sources)?.context("the kernels have no source")?;
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let first = read(&libraries[0])?;
    for library in libraries {
        let Ok(about) = fs::metadata(library) else { continue };
        ensure!(
            about.modified()? >= changed,
            "{} is stale: {} is newer",
            library.display(),
            source.display()
        );
        ensure!(
            read(library)? == first,
            "{} and {} are of different builds",
            libraries[0].display(),
            library.display()
        );
    }
    Ok(())
}

/// The file below `folder` that was changed last, and when.
fn newest(folder: &Path) -> Result<Option<(SystemTime, PathBuf)>> {
    let mut newest = None;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let found = if entry.file_type()?.is_dir() {
            self::newest(&entry.path())?
        } else {
            Some((entry.metadata()?.modified()?, entry.path()))
        };
        newest = newest.max(found);
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    /// Two libraries and a source tree in a folder that is gone when dropped.
    struct Built(PathBuf);

    impl Built {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("xtask-{test}-{}", std::process::id()));
            fs::create_dir_all(folder.join("source/src")).unwrap();
            let built = Self(folder);
            built.write("source/src/lib.rs", "source", 1);
            built.write("a.so", "code", 2);
            built.write("b.so", "code", 2);
            built
        }

        fn write(&self, file: &str, text: &str, second: u64) {
            fs::write(self.0.join(file), text).unwrap();
            let file = File::options().write(true).open(self.0.join(file)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
        }

        fn check(&self) -> Result<()> {
            check(&[self.0.join("a.so"), self.0.join("b.so")], &self.0.join("source"))
        }
    }

    impl Drop for Built {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_built_last_passes() {
        let built = Built::new("fresh");
        built.check().unwrap();
        fs::remove_file(built.0.join("b.so")).unwrap();
        built.check().unwrap();
    }

    #[test]
    fn a_source_newer_than_one_of_the_libraries_is_named() {
        let built = Built::new("stale");
        built.write("a.so", "code", 4);
        built.write("source/src/lib.rs", "source", 3);
        let error = built.check().unwrap_err().to_string();
        assert!(error.contains("b.so is stale") && error.contains("lib.rs"), "{error}");
    }

    #[test]
    fn libraries_of_two_builds_are_noticed() {
        let built = Built::new("two");
        built.write("b.so", "other", 2);
        assert!(built.check().unwrap_err().to_string().contains("different builds"));
    }

    #[test]
    fn a_library_that_was_not_built_is_named() {
        let built = Built::new("none");
        fs::remove_file(built.0.join("a.so")).unwrap();
        assert!(format!("{:#}", built.check().unwrap_err()).contains("a.so"));
    }
}
