//! The worker of the host XPU as a program of its own, for processes whose main program does not
//! have the host XPU in it (an interpreter that loads it, for example).

fn main() {
    gmm_hostxpu::worker_main()
}
