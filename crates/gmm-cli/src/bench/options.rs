//! Options that suites share, and how sizes and other words are read.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use gmm::hostxpu::{HostXpuConfig, MIN_LINK_BANDWIDTH};
use serde::Serialize;

/// How results are given. Every suite takes it.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Output {
    /// One JSON object a line
    #[arg(long)]
    pub(super) json: bool,
    /// Also write the results to this folder, one CSV file a suite
    #[arg(long, value_name = "DIR")]
    pub(super) csv: Option<PathBuf>,
    /// Also write a page with a plot for each figure of the paper that was measured
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}

/// How often things are measured.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Repeats {
    /// How often each measurement is repeated, at least 5 (plus one round to warm up)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(5..=1000))]
    pub(super) repeats: u32,
}

/// Where kernels are.
#[derive(Clone, Debug, Args)]
pub(super) struct Kernels {
    /// The library of sample kernels
    #[arg(long, default_value = "libgmm_kernels.so")]
    pub(super) kernels: PathBuf,
}

/// Says of an error of the kernel library what to do about it.
pub(super) fn about_kernels(error: anyhow::Error) -> anyhow::Error {
    use gmm::hostxpu::Error::{KernelNotFound, LibraryLoad, LibraryNotFound};
    const BUILD: &str = "cargo build --release -p gmm-kernels";
    let Some(gmm::Error::Xpu(xpu)) = error.downcast_ref() else { return error };
    match xpu {
        LibraryNotFound { name, .. } if Path::new(name).exists() => {
            anyhow!("--kernels {name} is no kernel library; `{BUILD}` builds one")
        }
        LibraryNotFound { .. } => {
            anyhow!("{error}; `{BUILD}` builds one, --kernels says where it is")
        }
        LibraryLoad { .. } => anyhow!("{error}: is it a kernel library? `{BUILD}` builds one"),
        KernelNotFound { kernel, path, .. } => anyhow!(
            "{} has no kernel {kernel}: it is older than this gmm, or another library; `{BUILD}` builds a \
             new one",
            path.display()
        ),
        _ => error,
    }
}

/// The modelled link between host memory and the XPU. It can make copies slower, not faster.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Link {
    /// Model a link: pcie3x16, pcie4x16, or so many bytes a second, such as 2GiB [default: none, copies
    /// take as long as they take]
    #[arg(long, value_name = "LINK", value_parser = parse_link)]
    link: Option<LinkSpeed>,
    /// Have both directions share the link
    #[arg(long, requires = "link")]
    half_duplex: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct LinkSpeed {
    name: String,
    bytes_per_s: u64,
}

impl Link {
    /// Gives an XPU this link.
    pub(super) fn configure(&self, config: HostXpuConfig) -> HostXpuConfig {
        match &self.link {
            Some(speed) => config.link_bandwidth(speed.bytes_per_s).half_duplex(self.half_duplex),
            None => config,
        }
    }

    /// Adds the link to a record's parameter.
    pub(super) fn name(&self, parameter: String) -> String {
        match &self.link {
            Some(LinkSpeed { name, .. }) if self.half_duplex => {
                format!("{parameter} link={name} half-duplex")
            }
            Some(LinkSpeed { name, .. }) => format!("{parameter} link={name}"),
            None => parameter,
        }
    }
}

/// PCI Express moves 8 GT/s (3.0) or 16 GT/s (4.0) on each of 16 lanes, with 128 of 130 bits for data.
fn parse_link(text: &str) -> Result<LinkSpeed, String> {
    let lanes = |transfers_per_s: u64| transfers_per_s * 16 / 8 * 128 / 130;
    let bytes_per_s = match text {
        "pcie3x16" => lanes(8_000_000_000),
        "pcie4x16" => lanes(16_000_000_000),
        size => crate::demo::size::parse(size)
            .map_err(|error| format!("neither pcie3x16 nor pcie4x16, and {error}"))?,
    };
    if bytes_per_s < MIN_LINK_BANDWIDTH {
        return Err(format!("a link moves at least {MIN_LINK_BANDWIDTH} bytes a second"));
    }
    Ok(LinkSpeed { name: text.to_owned(), bytes_per_s })
}

/// In which order pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    /// By address.
    Sequential,
    /// Each once, in an order that is the same in each run.
    Random,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

pub(super) fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (1.0..=64.0).contains(factor));
    factor.ok_or_else(|| "a number from 1 to 64".into())
}

pub(super) fn parse_policy(name: &str) -> Result<gmm_core::EvictionPolicy, String> {
    name.parse().map_err(|error: gmm_core::UnknownPolicy| error.to_string())
}

/// Gives the first XPU's memory that policy.
#[expect(unsafe_code, reason = "policies are the core's")]
pub(super) fn set_policy(gmm: &gmm::Gmm, policy: gmm_core::EvictionPolicy) -> anyhow::Result<()> {
    // SAFETY: nothing is unmapped or discarded; no signal handler touches unified memory.
    let space = unsafe { gmm.space() };
    Ok(space.set_policy(gmm::NodeId(1), |capacity| policy.make(capacity))?)
}

pub(super) fn parse_chunk(text: &str) -> Result<u64, String> {
    let bytes = crate::demo::size::parse(text)?;
    if bytes < 4096 { Err("a chunk has at least 4096 bytes".into()) } else { Ok(bytes) }
}

/// How many processors this process may use.
pub(super) fn nr_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_kernel_library_is_said_to_be_none_and_how_to_build_one() {
        let about = |error| about_kernels(gmm::Error::Xpu(error).into()).to_string();
        use gmm::hostxpu::Error;
        for name in ["/dev/null", "/no/such/library.so"] {
            let text =
                about(Error::LibraryNotFound { name: name.into(), tried: vec![name.into()] });
            assert_eq!(text.contains("is no kernel library"), name == "/dev/null", "{text}");
            assert!(text.contains(name) && text.contains("cargo build"), "{text}");
        }
        let (kernel, path, message) = ("sweep".into(), "old.so".into(), "undefined".into());
        let text = about(Error::KernelNotFound { kernel, path, message });
        assert!(text.contains("older than this gmm") && text.contains("cargo build"), "{text}");
        assert_eq!(about_kernels(anyhow!("else")).to_string(), "else");
    }

    #[test]
    fn links_are_named_or_given_in_bytes() {
        let speed = |text| parse_link(text).map(|link| link.bytes_per_s);
        assert_eq!(speed("pcie3x16"), Ok(15_753_846_153));
        assert_eq!(speed("pcie4x16"), Ok(31_507_692_307));
        assert_eq!(speed("2GiB"), Ok(2 << 30));
        assert!(speed("pcie9").unwrap_err().contains("pcie9"));
        assert!(speed("1B").is_err());
        let link = Link { link: parse_link("2GiB").ok(), half_duplex: true };
        assert_eq!(link.name("random".to_owned()), "random link=2GiB half-duplex");
        assert_eq!(Link::default().name("random".to_owned()), "random");
    }
}
