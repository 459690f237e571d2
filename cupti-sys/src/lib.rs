//! CUPTI as it is: bindings and run-time loading, no opinions.
//!
//! Empty for now: the recorder and the trace writer come first, and a trace says that kernels are
//! missing because this part is not there yet.
