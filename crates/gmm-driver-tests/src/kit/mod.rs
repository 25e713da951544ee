//! The conformance kit: the rules of the driver traits, each checked and named when it breaks.
//!
//! A driver's test implements [`Subject`] and says
//!
//! ```no_run
//! # struct Mine;
//! # impl gmm_driver_tests::kit::Subject for Mine {
//! #     fn name(&self) -> String { unimplemented!() }
//! #     fn bench(&self) -> Box<dyn gmm_driver_tests::kit::Bench> { unimplemented!() }
//! # }
//! gmm_driver_tests::conformance(&Mine);
//! ```
//!
//! Each rule runs on a fresh device, on a thread of its own, and has a deadline: a driver that
//! hangs has broken the rule. A rule whose precondition the device does not have (a capability,
//! enough frames) is skipped, and the report says why.

mod env;
mod far;
mod host_memory;
mod report;
mod rules;
mod run;
mod subject;

pub use far::FarFile;
pub use host_memory::PlainHostMemory;
pub use report::{Outcome, Report, RuleReport};
pub use run::{conformance, run, run_matching};
pub use subject::{Bench, FarFrame, HostMemory, Refused, Serve, Subject, TestContext};
