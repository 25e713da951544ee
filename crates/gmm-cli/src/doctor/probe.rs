//! The facts that only trying can tell.

use std::fs::File;
use std::path::Path;

use super::facts::{Access, Backing, Uffd};

/// How a userfaultfd is to be had, judged by what may be opened.
pub(super) fn userfaultfd(root: &Path, unprivileged: Option<u64>) -> Result<Uffd, String> {
    let device = File::options().read(true).write(true).open(root.join("dev/userfaultfd"));
    let access = match (device, unprivileged) {
        (Ok(_), _) => Access::Device,
        (Err(_), Some(1)) => Access::SystemCall,
        (Err(_), Some(_)) => Access::UserModeOnly,
        (Err(error), None) => return Err(error.to_string()),
    };
    Ok(Uffd { access, can_move: true, can_poison: true })
}

/// How the host XPU's frames will be backed.
pub(super) fn frame_backing(free_hugetlb: Option<u64>) -> Result<Backing, String> {
    Ok(if free_hugetlb.unwrap_or(0) > 0 { Backing::HugeTlb } else { Backing::HugeShmem })
}
