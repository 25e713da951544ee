//! Where the sockets lie: a folder that only its user can change. Those who offer a socket and
//! those who look for one find it the same way.
//!
//! Everything below the folder is named relative to an open descriptor of it (a socket, which the
//! kernel knows only by path, through `/proc/self/fd`), so that nobody can put another folder in
//! its place between a check and a use.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// A folder of sockets that belongs to one user.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) uid: u32,
}

/// Where a folder of a user may be: in a parent that has to exist.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    parent: PathBuf,
    name: String,
    /// Whether anyone may make files in the parent, as in `/tmp`.
    is_public: bool,
}

/// Which socket: of which process, and the how-manieth of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SocketName {
    pub(super) pid: u32,
    pub(super) instance: u32,
}

impl SocketName {
    /// `PID.sock`, or `PID.N.sock` for the others of a process.
    pub(super) fn file(self) -> String {
        match self.instance {
            0 => format!("{}.sock", self.pid),
            instance => format!("{}.{instance}.sock", self.pid),
        }
    }

    /// The name it has while it is not ready: a client that saw it would be refused, and could
    /// take it for one that a dead process has left.
    fn unready_file(self) -> String {
        format!(".{}", self.file())
    }

    fn parse(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(".sock")?;
        let (pid, instance) = stem.split_once('.').unwrap_or((stem, "0"));
        let name = Self { pid: pid.parse().ok()?, instance: instance.parse().ok()? };
        (name.file() == file && name.pid > 0).then_some(name)
    }
}

/// The places for a user, the best first.
fn places(uid: u32, runtime_folder: Option<OsString>) -> Vec<Place> {
    let given = runtime_folder.map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let mut parents: Vec<PathBuf> = given.into_iter().chain([usual]).collect();
    parents.dedup();
    let private = parents.into_iter();
    let private = private.map(|parent| Place { parent, name: "gmm".to_owned(), is_public: false });
    let public = Place { parent: "/tmp".into(), name: format!("gmm-{uid}"), is_public: true };
    private.chain([public]).collect()
}

impl Folder {
    /// This user's folder, made if it is not there.
    ///
    /// # Errors
    /// Why none of the places will do, in words.
    pub(super) fn for_offering() -> Result<Self, String> {
        let uid = rustix::process::geteuid().as_raw();
        let mut reasons = Vec::new();
        for place in places(uid, std::env::var_os("XDG_RUNTIME_DIR")) {
            match place.open(uid, true) {
                Ok(folder) => return Ok(folder),
                Err(error) => reasons.push(format!("{}: {error}", place.path().display())),
            }
        }
        Err(reasons.join("; "))
    }

    /// The folders of a user that are there. `runtime_folder` is what the user's programs have in
    /// `XDG_RUNTIME_DIR`.
    pub(super) fn of_user(uid: u32, runtime_folder: Option<OsString>) -> Vec<Self> {
        let places = places(uid, runtime_folder);
        places.into_iter().filter_map(|place| place.open(uid, false).ok()).collect()
    }

    /// The sockets in it.
    pub(super) fn sockets(&self) -> Vec<SocketName> {
        let Ok(entries) = Dir::read_from(&self.fd) else { return Vec::new() };
        let names = entries.filter_map(Result::ok);
        let mut names: Vec<_> =
            names.filter_map(|entry| SocketName::parse(entry.file_name().to_str().ok()?)).collect();
        names.sort_unstable();
        names
    }

    /// The address of a socket in it, for `connect`.
    pub(super) fn address(&self, name: SocketName) -> io::Result<SocketAddrUnix> {
        self.address_of(&name.file())
    }

    /// The address by which a socket is made, before [`Folder::publish`].
    pub(super) fn unready_address(&self, name: SocketName) -> io::Result<SocketAddrUnix> {
        // One that a process of this number left when it died half-way.
        let _ = fs::unlinkat(&self.fd, name.unready_file(), AtFlags::empty());
        self.address_of(&name.unready_file())
    }

    fn address_of(&self, file: &str) -> io::Result<SocketAddrUnix> {
        use std::os::fd::AsRawFd;
        Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{file}", self.fd.as_raw_fd()))?)
    }

    /// For its user only.
    pub(super) fn restrict(&self, name: SocketName) -> io::Result<()> {
        // The folder is the user's own, and so is the file just made in it: no link.
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(fs::chmodat(&self.fd, name.unready_file(), mode, AtFlags::empty())?)
    }

    /// A socket that listens gets its name.
    pub(super) fn publish(&self, name: SocketName) -> io::Result<()> {
        Ok(fs::renameat(&self.fd, name.unready_file(), &self.fd, name.file())?)
    }

    /// Removes a socket, ready or not.
    pub(super) fn remove(&self, name: SocketName) {
        let _ = fs::unlinkat(&self.fd, name.file(), AtFlags::empty());
        let _ = fs::unlinkat(&self.fd, name.unready_file(), AtFlags::empty());
    }

    /// Which file has a socket's name, to tell it from a successor.
    pub(super) fn identity(&self, name: SocketName) -> Option<(u64, u64)> {
        let stat = fs::statat(&self.fd, name.file(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }
}

impl Place {
    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    fn open(&self, uid: u32, make: bool) -> io::Result<Folder> {
        let parent = open_folder(CWD, &self.parent)?;
        let stat = fs::fstat(&parent)?;
        // Who can rename the folder away can put another in its place.
        let is_safe = match self.is_public {
            true => stat.st_uid == 0 && stat.st_mode & Mode::SVTX.bits() != 0,
            false => is_private(&stat, uid),
        };
        if !is_safe {
            return Err(io::Error::other(format!(
                "{} can be changed by others than user {uid}",
                self.parent.display()
            )));
        }
        if make {
            match fs::mkdirat(&parent, &self.name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let fd = open_folder(&parent, Path::new(&self.name))?;
        if !is_private(&fs::fstat(&fd)?, uid) {
            return Err(io::Error::other(format!("it can be changed by others than user {uid}")));
        }
        Ok(Folder { fd, path: self.path(), uid })
    }
}

/// Opens a folder, and no link to one.
fn open_folder(at: impl rustix::fd::AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fs::openat(at, path, flags, Mode::empty())?)
}

/// Whether nobody but `uid` (and root) can change what is in the folder.
fn is_private(stat: &Stat, uid: u32) -> bool {
    let others_write = (Mode::WGRP | Mode::WOTH).bits();
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
        && stat.st_uid == uid
        && stat.st_mode & others_write == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// An empty folder for a test.
    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gmm-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, 0o700);
        path
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn in_parent(parent: &Path) -> Place {
        Place { parent: parent.into(), name: "gmm".into(), is_public: false }
    }

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn names_go_there_and_back() {
        for (pid, instance, file) in [(12, 0, "12.sock"), (12, 3, "12.3.sock")] {
            let name = SocketName { pid, instance };
            assert_eq!(name.file(), file);
            assert_eq!(SocketName::parse(file), Some(name));
        }
        for file in
            ["12", ".sock", "0.sock", "+1.sock", "12.0.sock", ".12.sock", "1.2.3.sock", "012.sock"]
        {
            assert_eq!(SocketName::parse(file), None, "{file}");
        }
    }

    #[test]
    fn the_runtime_folder_comes_first_if_it_is_absolute() {
        let paths = |given: &str| {
            let places = places(7, Some(given.into()));
            places.iter().map(|p| p.path().display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths("/x"), ["/x/gmm", "/run/user/7/gmm", "/tmp/gmm-7"]);
        assert_eq!(paths("x"), ["/run/user/7/gmm", "/tmp/gmm-7"]);
        assert_eq!(paths("/run/user/7"), ["/run/user/7/gmm", "/tmp/gmm-7"]);
    }

    #[test]
    fn a_folder_is_made_for_its_user_only() {
        let parent = scratch("made");
        assert!(in_parent(&parent).open(me(), false).is_err(), "looking makes none");
        in_parent(&parent).open(me(), true).unwrap();
        let mode = std::fs::metadata(parent.join("gmm")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        in_parent(&parent).open(me(), false).unwrap();
        std::fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn links_and_folders_that_others_can_change_are_refused() {
        let parent = scratch("refused");
        let elsewhere = scratch("elsewhere");
        symlink(&elsewhere, parent.join("gmm")).unwrap();
        assert!(in_parent(&parent).open(me(), true).is_err(), "a link");
        std::fs::remove_file(parent.join("gmm")).unwrap();

        std::fs::write(parent.join("gmm"), "").unwrap();
        assert!(in_parent(&parent).open(me(), true).is_err(), "a file");
        std::fs::remove_file(parent.join("gmm")).unwrap();

        std::fs::create_dir(parent.join("gmm")).unwrap();
        for mode in [0o770, 0o702, 0o777] {
            set_mode(&parent.join("gmm"), mode);
            assert!(in_parent(&parent).open(me(), true).is_err(), "mode {mode:o}");
        }
        set_mode(&parent.join("gmm"), 0o700);
        in_parent(&parent).open(me(), true).unwrap();
        assert!(in_parent(&parent).open(me() + 1, false).is_err(), "another user's");

        set_mode(&parent, 0o770);
        assert!(in_parent(&parent).open(me(), true).is_err(), "the parent can be changed");
        let link = elsewhere.join("link");
        set_mode(&parent, 0o700);
        symlink(&parent, &link).unwrap();
        assert!(in_parent(&link).open(me(), true).is_err(), "the parent is a link");
        for path in [parent, elsewhere] {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}
