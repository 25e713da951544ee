//! What faults on different pages, by different threads, have in common: the lines of memory that
//! both write, for which their processors wait for each other. Counted in debug builds by
//! [`gmm_core::sync`].
#![cfg(all(debug_assertions, not(shuttle)))]

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use gmm_core::driver::Access::{self, Read, Write};
use gmm_core::sync::traffic;
use gmm_core::{PageNr, Resolved};
use gmm_driver_tests::World;
use gmm_driver_tests::array::DeviceOptions;

/// The most read-modify-writes of such lines that a fault may do: three locks, taken and let go. A
/// frame is taken and made the page's, and the frame that the page had is freed.
const MOST: usize = 6;

/// The same for one whose data goes by way of a host frame, which is taken and freed, too.
const MOST_BY_HOST: usize = 10;

/// So many pages are one fault each; they are far enough apart to make no run.
const STEP: u64 = 3;

/// One test after another: two threads of one test have numbers that are next to each other then, and
/// so use different copies of what there are copies of.
fn turn() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Faults {
    _turn: MutexGuard<'static, ()>,
    world: World,
    pages: Vec<PageNr>,
}

impl Faults {
    /// Pages that the CPU has written, and an XPU with room for all of them, whose device has
    /// handed over all frames.
    fn new() -> Self {
        let turn = turn();
        let world = World::builder(64).xpu(DeviceOptions::xpu("a", 32), 1);
        let world = world.xpu(DeviceOptions::xpu("b", 32), 1).build();
        let range = world.mmap(8 * STEP);
        let pages: Vec<_> = (0..8).map(|n| range.start.plus(n * STEP)).collect();
        let faults = Self { _turn: turn, world, pages };
        // There and back: everything is as after some time of work.
        for who in [0, 1, 2, 0] {
            faults.all(who, Write);
        }
        faults
    }

    fn fault(&self, who: usize, page: PageNr, access: Access) -> traffic::Lines {
        let processor = &self.world.processors[who].processor;
        let fault = || self.world.space.fault(processor, page.start(), access);
        let (resolved, lines) = traffic::record(fault);
        assert!(resolved.is_ok(), "{resolved:?}");
        lines
    }

    /// Faults on all pages, two threads in turn.
    fn all(&self, who: usize, access: Access) -> Vec<traffic::Lines> {
        let (to_other, pages) = mpsc::channel();
        let (done, lines) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                pages.iter().for_each(|page| done.send(self.fault(who, page, access)).unwrap());
            });
            let fault = |(nr, &page)| match nr % 2 {
                0 => self.fault(who, page, access),
                _ => {
                    to_other.send(page).unwrap();
                    lines.recv().unwrap()
                }
            };
            let all = self.pages.iter().enumerate().map(fault).collect();
            drop(to_other);
            all
        })
    }

    /// Faults on all pages; the most read-modify-writes that one did of lines that the one before it
    /// did, too.
    #[track_caller]
    fn assert_few(&self, what: &str, who: usize, access: Access, at_most: usize) {
        let faults = self.all(who, access);
        let shared = faults.windows(2).map(|pair| {
            let others: HashSet<_> = pair[0].iter().collect();
            pair[1].iter().filter(|line| others.contains(line)).count()
        });
        let most = shared.max().expect("several pages");
        println!("{what}: {most} read-modify-writes of shared lines, {} of all", faults[1].len());
        assert!(
            most <= at_most,
            "{what}: {most} read-modify-writes of shared lines: {:?}",
            faults[1]
        );
    }
}

#[test]
fn faults_on_different_pages_write_few_lines_in_common() {
    let faults = Faults::new();
    faults.assert_few("to an XPU, to write", 1, Write, MOST);
    faults.assert_few("usable already", 1, Write, 0);
    faults.assert_few("from an XPU to another", 2, Write, MOST_BY_HOST);
    faults.assert_few("to the CPU", 0, Write, MOST);
    faults.assert_few("to an XPU, to read", 1, Read, MOST);
    faults.assert_few("to write what is shared", 1, Write, MOST);
}

#[test]
fn a_first_touch_writes_few_lines_that_others_write() {
    let mut faults = Faults::new();
    let range = faults.world.mmap(8 * STEP);
    faults.pages = (0..8).map(|n| range.start.plus(n * STEP)).collect();
    faults.assert_few("zero-filled on an XPU", 1, Write, MOST);
}

#[test]
fn faults_between_different_nodes_have_no_line_in_common() {
    let _turn = turn();
    let world = World::builder(64).xpu(DeviceOptions::xpu("a", 32), 1);
    let world = world.xpu(DeviceOptions::xpu("b", 32), 1).build();
    let range = world.mmap(8);
    let fault = |who: usize, page: u64| {
        let (processor, addr) = (&world.processors[who].processor, range.start.plus(page).start());
        let (resolved, lines) = traffic::record(|| world.space.fault(processor, addr, Write));
        assert_eq!(resolved, Ok(Resolved::Entered));
        lines
    };
    fault(1, 0);
    let a: HashSet<_> = fault(1, 3).into_iter().collect();
    fault(2, 1);
    let b = fault(2, 4);
    assert!(!a.is_empty() && b.iter().all(|line| !a.contains(line)), "there is a global lock");
}
