//! Applies a fix, and says what was there before and what is there now.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;

/// A change that root may make to the running system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Action {
    /// The file, relative to the root folder.
    pub(super) path: &'static str,
    pub(super) change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Write this to it.
    Write(String),
    /// Give it this mode.
    Mode(u32),
}

/// What came of an action.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    /// What was changed.
    pub(super) what: String,
    /// What was there before; null if that can't be read.
    pub(super) before: Option<String>,
    /// What is there now.
    pub(super) after: Option<String>,
    /// Why it did not work.
    pub(super) error: Option<String>,
}

/// Makes the change below `root`. The outcome is what the file says afterwards, not what was
/// asked for.
pub(super) fn apply(action: &Action, root: &Path) -> Outcome {
    let path = root.join(action.path);
    let before = state(&path, &action.change).ok();
    let result = match &action.change {
        Change::Write(value) => fs::write(&path, value),
        Change::Mode(mode) => fs::set_permissions(&path, fs::Permissions::from_mode(*mode)),
    };
    let after = state(&path, &action.change).ok();
    let taken = match &action.change {
        Change::Write(value) => after.as_ref().is_some_and(|text| says(text, value)),
        Change::Mode(mode) => after.as_deref() == Some(format!("{mode:o}").as_str()),
    };
    let error = match result {
        Err(error) => Some(error.to_string()),
        Ok(()) if !taken => Some("the kernel did not take it".to_owned()),
        Ok(()) => None,
    };
    Outcome { what: format!("/{}", action.path), before, after, error }
}

fn state(path: &Path, change: &Change) -> io::Result<String> {
    match change {
        Change::Write(_) => Ok(fs::read_to_string(path)?.trim().to_owned()),
        Change::Mode(_) => Ok(format!("{:o}", fs::metadata(path)?.permissions().mode() & 0o7777)),
    }
}

/// Does a setting say `value`, alone or in brackets among others?
fn says(text: &str, value: &str) -> bool {
    text == value || text.contains(&format!("[{value}]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder with one file named `setting`, gone when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(test: &str) -> Self {
            let root = std::env::temp_dir().join(format!("gmm-fix-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir(&root).unwrap();
            fs::write(root.join("setting"), "65530\n").unwrap();
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn write(path: &'static str) -> Action {
        Action { path, change: Change::Write("1048576".into()) }
    }

    #[test]
    fn a_value_is_written_and_told() {
        let root = Root::new("value");
        let outcome = apply(&write("setting"), &root.0);
        assert_eq!(outcome.before.as_deref(), Some("65530"));
        assert_eq!(outcome.after.as_deref(), Some("1048576"));
        assert_eq!(outcome.error, None);
        assert_eq!(outcome.what, "/setting");
    }

    #[test]
    fn a_mode_is_set_and_told() {
        let root = Root::new("mode");
        fs::set_permissions(root.0.join("setting"), fs::Permissions::from_mode(0o600)).unwrap();
        let action = Action { path: "setting", change: Change::Mode(0o666) };
        let outcome = apply(&action, &root.0);
        assert_eq!(outcome.before.as_deref(), Some("600"));
        assert_eq!(outcome.after.as_deref(), Some("666"));
        assert_eq!(outcome.error, None);
        assert_eq!(fs::read_to_string(root.0.join("setting")).unwrap(), "65530\n");
    }

    #[test]
    fn a_failure_is_told_and_nothing_else_happens() {
        let root = Root::new("failure");
        let outcome = apply(&write("missing/setting"), &root.0);
        assert!(outcome.error.is_some());
        assert_eq!((outcome.before, outcome.after), (None, None));
        assert_eq!(fs::read_dir(&root.0).unwrap().count(), 1);
    }

    #[test]
    fn the_chosen_one_of_several_is_recognised() {
        assert!(says("always [madvise] never", "madvise"));
        assert!(!says("always madvise [never]", "madvise"));
    }
}
