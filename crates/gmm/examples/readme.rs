//! The program of the README.
use gmm::{Gmm, HostXpu, MIB};

fn main() -> gmm::Result<()> {
    let gmm = Gmm::builder().xpu(HostXpu::with_memory(64 * MIB)).build()?;
    let mut data = gmm.mmap::<f32>(64 * MIB as usize)?; // 256 MiB: four times what the XPU has
    data.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32); // the CPU faults pages in

    let xpu = gmm.xpu(1)?; // node 1
    let square = xpu.load("libgmm_kernels.so")?.kernel("square")?;
    // SAFETY: nobody else uses `data` until the launch is done.
    unsafe { xpu.stream()?.launch(&square, 64, (data.as_mut_ptr(), data.len()))?.wait()? };

    println!("{}", data[1000]); // the CPU takes one page back
    println!("{}", gmm.report());
    Ok(())
}
