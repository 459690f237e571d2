//! See the library.

fn main() -> std::process::ExitCode {
    ncclscope_gpu::main()
}
