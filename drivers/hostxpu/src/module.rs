//! Kernel libraries: found by the host, loaded by the worker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::shared::Shared;
use crate::{Error, wire};

/// A kernel library, loaded in a context. It stays loaded as long as the context lives.
#[derive(Clone)]
pub struct Module {
    shared: Arc<Shared>,
    path: PathBuf,
    nr: u32,
}

/// A kernel of a library.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Arc<str>,
    pub(crate) nr: u32,
}

impl Module {
    pub(crate) fn load(shared: &Arc<Shared>, name: &Path) -> Result<Self, Error> {
        use std::os::unix::ffi::OsStrExt;
        let path = find(name)?;
        let answer = shared.ask(wire::LOAD, "load a library", path.as_os_str().as_bytes())?;
        match answer {
            Ok(nr) => Ok(Self { shared: shared.clone(), path, nr }),
            Err(message) => Err(Error::LibraryLoad { path, message }),
        }
    }

    /// The kernel that the library exports as `name`.
    ///
    /// # Errors
    /// [`Error::KernelNotFound`]; [`Error::ContextDead`].
    pub fn kernel(&self, name: &str) -> Result<Kernel, Error> {
        let mut body = self.nr.to_ne_bytes().to_vec();
        body.extend_from_slice(name.as_bytes());
        match self.shared.ask(wire::FIND, "find a kernel", &body)? {
            Ok(nr) => Ok(Kernel { shared: self.shared.clone(), name: name.into(), nr }),
            Err(message) => Err(Error::KernelNotFound {
                kernel: name.to_owned(),
                path: self.path.clone(),
                message,
            }),
        }
    }

    /// The file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The absolute path of a library: as given, or beside the executable, in the directories above
/// it and their `deps`, or in one of the directories of `GMM_KERNEL_PATH`.
fn find(name: &Path) -> Result<PathBuf, Error> {
    let mut tried = vec![name.to_owned()];
    if name.is_relative() {
        let listed = std::env::var_os("GMM_KERNEL_PATH");
        tried.extend(listed.iter().flat_map(std::env::split_paths).map(|dir| dir.join(name)));
        let executable = std::env::current_exe().ok();
        for dir in executable.iter().flat_map(|path| path.ancestors().skip(1)).take(3) {
            tried.extend([dir.join(name), dir.join("deps").join(name)]);
        }
    }
    match tried.iter().find_map(|path| path.canonicalize().ok().filter(|path| path.is_file())) {
        Some(path) => Ok(path),
        None => Err(Error::LibraryNotFound { name: name.display().to_string(), tried }),
    }
}
