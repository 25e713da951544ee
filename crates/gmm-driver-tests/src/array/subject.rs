//! The array device as a subject of the conformance kit.

use std::sync::{Arc, Mutex, PoisonError};

use core::time::Duration;
use gmm_core::driver::{Capabilities, Device, DriverError, Extent, Mmu, RemoteHandle};
use gmm_core::{Batch, Frame, HostAddr, NodeId, Resolved, VirtAddr};

use super::{
    AccessError, ArrayContext, ArrayDevice, DeviceOptions, FRAME_WORDS, Failure, Machine, Trigger,
    Violation, byte_offset,
};
use crate::TestClock;
use crate::kit::{Bench, FarFrame, HostMemory, Refused, Serve, Subject, TestContext};

/// An array device with some options, for the kit.
#[derive(Clone)]
pub struct ArraySubject {
    options: DeviceOptions,
    deadline: Duration,
    machines: Arc<Mutex<Vec<Arc<Machine>>>>,
}

impl ArraySubject {
    /// A subject that makes devices with these options.
    pub fn new(options: DeviceOptions) -> Self {
        Self { options, deadline: Duration::from_secs(60), machines: Arc::default() }
    }

    /// With another deadline for each rule.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What the kit itself did wrong, as a user of the driver traits.
    pub fn violations(&self) -> Vec<Violation> {
        let machines = self.machines.lock().unwrap_or_else(PoisonError::into_inner);
        machines.iter().flat_map(|m| m.violations()).collect()
    }
}

impl Subject for ArraySubject {
    fn name(&self) -> String {
        let o = &self.options;
        let defect = o.defect.map_or(String::new(), |d| format!(", broken: {d:?}"));
        format!("array device {} ({:?}, {:?}{defect})", o.name, o.capabilities, o.completion)
    }

    fn bench(&self) -> Box<dyn Bench> {
        let machine = Machine::new(Arc::new(TestClock::new(Duration::from_micros(1))));
        self.machines.lock().unwrap_or_else(PoisonError::into_inner).push(machine.clone());
        let device = machine.device(self.options.clone());
        Box::new(ArrayBench { machine, device })
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }
}

struct ArrayBench {
    machine: Arc<Machine>,
    device: Arc<ArrayDevice>,
}

impl ArrayBench {
    fn is_host(&self) -> bool {
        self.device.capabilities().contains(Capabilities::MOVABLE_FRAMES)
    }
}

impl Bench for ArrayBench {
    fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    fn context(&self, node: usize) -> Box<dyn TestContext> {
        Box::new(Cores(self.device.context(node)))
    }

    fn host_memory(&self, nr_frames: usize) -> Box<dyn HostMemory> {
        let options = DeviceOptions::host(nr_frames as u32);
        let device = self.machine.device(options.without(Capabilities::MOVABLE_FRAMES));
        // Away from the nodes that the kit and a space number.
        let node = NodeId(9);
        device.set_first_node(node);
        let mut frames = Vec::new();
        while frames.len() < nr_frames {
            let mut out: Batch<Extent, 16> = Batch::new();
            if device.import(node, 16, &mut out).is_err() {
                break;
            }
            let numbers = out.iter().flat_map(|e| e.start.0..e.start.0 + e.nr_frames);
            frames.extend(numbers.map(|nr| Frame { node, nr: gmm_core::FrameNr(nr) }));
        }
        let addrs: Vec<_> = frames.iter().filter_map(|&f| device.host_addr(f)).collect();
        addrs.iter().for_each(|&a| self.machine.write_host(a, [0; FRAME_WORDS]));
        Box::new(ArrayHostMemory { machine: self.machine.clone(), addrs })
    }

    fn offsets(&self) -> Vec<u64> {
        (0..FRAME_WORDS).map(|word| byte_offset(word * 8)).collect()
    }

    fn read_handle(&self, handle: RemoteHandle, offset: u64) -> Option<u64> {
        self.machine.handle_words(handle).map(|words| words[offset as usize / 8 % FRAME_WORDS])
    }

    fn far_frame(&self) -> Option<Box<dyn FarFrame>> {
        let device = self.machine.device(DeviceOptions::xpu("far", 2));
        // Away from the nodes that the kit and a space number.
        let node = NodeId(8);
        device.set_first_node(node);
        device.import(node, 2, &mut Batch::new()).ok()?;
        let frame = Frame { node, nr: gmm_core::FrameNr(1) };
        let handle = device.remote_handle(frame)?;
        self.machine.set_handle_words(handle, [0; FRAME_WORDS]);
        Some(Box::new(ArrayFarFrame { machine: self.machine.clone(), frame, handle }))
    }

    fn host(&self) -> Option<(Arc<dyn Device>, Box<dyn TestContext>)> {
        let host = match self.is_host() {
            true => self.device.clone(),
            false => self.machine.device(DeviceOptions::host(16)),
        };
        let cpu = Cores(host.context(0));
        Some((host, Box::new(cpu)))
    }
}

struct ArrayFarFrame {
    machine: Arc<Machine>,
    frame: Frame,
    handle: RemoteHandle,
}

impl FarFrame for ArrayFarFrame {
    fn frame(&self) -> Frame {
        self.frame
    }

    fn handle(&self) -> RemoteHandle {
        self.handle
    }

    fn read(&self, offset: u64) -> u64 {
        let words = self.machine.handle_words(self.handle).unwrap_or_default();
        words[offset as usize / 8 % FRAME_WORDS]
    }

    fn write(&self, offset: u64, value: u64) {
        let mut words = self.machine.handle_words(self.handle).unwrap_or_default();
        words[offset as usize / 8 % FRAME_WORDS] = value;
        self.machine.set_handle_words(self.handle, words);
    }
}

struct ArrayHostMemory {
    machine: Arc<Machine>,
    addrs: Vec<HostAddr>,
}

impl HostMemory for ArrayHostMemory {
    fn addr(&self, frame: usize) -> HostAddr {
        self.addrs[frame]
    }

    fn read(&self, frame: usize, offset: u64) -> u64 {
        let words = self.machine.read_host(self.addrs[frame]).unwrap_or_default();
        words[offset as usize / 8 % FRAME_WORDS]
    }

    fn write(&self, frame: usize, offset: u64, value: u64) {
        let mut words = self.machine.read_host(self.addrs[frame]).unwrap_or_default();
        words[offset as usize / 8 % FRAME_WORDS] = value;
        self.machine.write_host(self.addrs[frame], words);
    }
}

/// A context as the kit sees it.
struct Cores(Arc<ArrayContext>);

fn refused(_: AccessError) -> Refused {
    Refused
}

impl TestContext for Cores {
    fn mmu(&self) -> Arc<dyn Mmu> {
        self.0.clone()
    }

    fn load(&self, addr: VirtAddr) -> Result<u64, Refused> {
        self.0.load(addr).map_err(refused)
    }

    fn store(&self, addr: VirtAddr, value: u64) -> Result<(), Refused> {
        self.0.store(addr, value).map_err(refused)
    }

    fn increment(&self, addr: VirtAddr) -> Option<Result<(), Refused>> {
        Some(self.0.add(addr, 1).map(|_| ()).map_err(refused))
    }

    fn serve(&self, serve: Option<Serve>) {
        self.0.serve(serve.map(|serve| {
            let server: super::FaultServer = Arc::new(move |addr, access| {
                let done = serve(addr, access).then_some(Resolved::Entered);
                done.ok_or(gmm_core::Error::NotMapped { addr })
            });
            server
        }));
    }

    fn kill(&self) -> bool {
        // The CPU of a process does not die on its own.
        let mortal = !self.0.capabilities.contains(Capabilities::MOVABLE_FRAMES);
        if mortal {
            self.0.kill();
        }
        mortal
    }

    fn stop_next_batch_after(&self, done: usize) -> bool {
        let failure = Failure::Error(DriverError::Busy);
        // The next driver calls are the elements of that batch.
        let trigger = Trigger { call: None, first: done as u64, times: 1, failure };
        self.0.machine.inject(Some(trigger));
        true
    }
}
