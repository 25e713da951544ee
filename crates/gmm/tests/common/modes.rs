//! The two kinds of XPU that the tests are run with: one whose cores fault and go on, and (with
//! `GMM_TEST_FAULTS=held`) what user space gets from most vendors today, where a launch names what
//! it uses and holds it, and what can be read can be written. The results are the same; a launch
//! that uses more than the XPU has is made in pieces, as a program for such an XPU does it.

use gmm::hostxpu::KernelArgs;
use gmm::{Error, HostXpu, Launch, PageRange, VirtAddr, Xpu};

use super::{Turn, kernel, turn};

/// Whether launches hold what they use, since faults are not replayed.
pub fn launches_hold() -> bool {
    std::env::var_os("GMM_TEST_FAULTS").is_some_and(|mode| mode == "held")
}

/// As [`turn`], for a test of what only is where XPUs fault and map read-only: which faults there
/// are, what they cost, how they fail. None elsewhere.
pub fn turn_with_faults() -> Option<Turn> {
    let can = !launches_hold();
    if !can {
        eprintln!("SKIPPED: it is about faults, of which this kind of XPU has none");
    }
    can.then(turn)
}

/// A host XPU of so many frames, with two cores.
pub fn xpu_of(frames: u64) -> HostXpu {
    let can = !launches_hold();
    let xpu = HostXpu::with_memory(frames * gmm::PAGE_SIZE).cores(2);
    xpu.config(|config| config.replayable_faults(can).read_only_mappings(can))
}

/// Starts a sample kernel. Those here keep to memory that the tests own, or are wild on purpose.
/// If it is too much to hold at a time, it is done page by page, and the last piece is given.
pub fn start(xpu: &Xpu, name: &str, grid: u64, args: impl KernelArgs) -> Launch {
    let (stream, words) = (xpu.stream().unwrap(), args.words());
    // SAFETY: the tests pass the kernel's own arguments, and order their accesses.
    match unsafe { stream.launch(&kernel(xpu, name), grid, args) } {
        Err(Error::Xpu(gmm::hostxpu::Error::Manager(gmm_core::Error::HoldTooLarge { .. })))
            if launches_hold() => {}
        launch => return launch.unwrap(),
    }
    let mut last: Option<Launch> = None;
    for piece in (0..).map_while(|nr| piece(name, &words, nr)) {
        if let Some(last) = last {
            last.wait().unwrap();
        }
        let range = PageRange::covering(VirtAddr(piece.start), piece.len_bytes).unwrap();
        let part = kernel(xpu, piece.kernel);
        // SAFETY: as above.
        last = Some(unsafe { stream.launch_using(&part, grid, piece.args, &[range]).unwrap() });
    }
    last.expect("it has pages")
}

/// A part of a launch that uses no more than a page of a buffer, which may lie across two.
struct Piece {
    kernel: &'static str,
    args: [u64; 6],
    start: u64,
    len_bytes: u64,
}

fn piece(name: &str, words: &[u64], nr: u64) -> Option<Piece> {
    const PAGE: u64 = super::PAGE as u64;
    let base = words[0];
    let of_buffer = |len_bytes: u64, kernel, args: &dyn Fn(u64, u64) -> [u64; 6]| {
        let left = len_bytes.checked_sub(nr * PAGE).filter(|&left| left > 0)?;
        let (start, len_bytes) = (base + nr * PAGE, left.min(PAGE));
        Some(Piece { kernel, args: args(start, len_bytes), start, len_bytes })
    };
    match name {
        "square" => of_buffer(words[1] * 4, "square", &|start, len| [start, len / 4, 0, 0, 0, 0]),
        "touch" => of_buffer(words[1], "touch_part", &|_, _| {
            [base, words[1], words[2], nr * PAGE / 4096, PAGE / 4096, 0]
        }),
        "count_pages" if nr < words[1] => {
            let start = base + nr * words[2];
            let args = [start, 1, words[2], words[3], words[4], words[5]];
            Some(Piece { kernel: "count_pages", args, start, len_bytes: PAGE - start % PAGE })
        }
        "count_pages" => None,
        other => panic!("{other} uses more than the XPU can hold, and can't be done in pieces"),
    }
}
