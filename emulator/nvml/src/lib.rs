//! NVML for emulated GPUs.
