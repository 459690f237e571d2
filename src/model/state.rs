//! The states of `recordEventState`, by NCCL's number and with NCCL's name.

macro_rules! states {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(#[doc = concat!("NCCL's number for `", stringify!($name), "`.")] pub const $name: u16 = $number;)*

        /// NCCL's name for a state; `None` for one this build does not know.
        #[must_use]
        pub fn name(state: u16) -> Option<&'static str> {
            match state { $($number => Some(stringify!($name)),)* _ => None }
        }
    };
}

states! {
    // ProxyOp, up to NCCL 2.26
    PROXY_OP_SEND_POSTED = 0,
    PROXY_OP_SEND_REM_FIFO_WAIT = 1,
    PROXY_OP_SEND_TRANSMITTED = 2,
    PROXY_OP_SEND_DONE = 3,
    PROXY_OP_RECV_POSTED = 4,
    PROXY_OP_RECV_RECEIVED = 5,
    PROXY_OP_RECV_TRANSMITTED = 6,
    PROXY_OP_RECV_DONE = 7,
    // ProxyStep
    PROXY_STEP_SEND_GPU_WAIT = 8,
    PROXY_STEP_SEND_WAIT = 9,
    PROXY_STEP_RECV_WAIT = 10,
    PROXY_STEP_RECV_FLUSH_WAIT = 11,
    PROXY_STEP_RECV_GPU_WAIT = 12,
    // ProxyCtrl
    PROXY_CTRL_IDLE = 13,
    PROXY_CTRL_ACTIVE = 14,
    PROXY_CTRL_SLEEP = 15,
    PROXY_CTRL_WAKEUP = 16,
    PROXY_CTRL_APPEND = 17,
    PROXY_CTRL_APPEND_END = 18,
    // NCCL 2.27 and newer
    PROXY_OP_IN_PROGRESS = 19,
    PROXY_STEP_SEND_PEER_WAIT = 20,
    NET_PLUGIN_UPDATE = 21,
    KERNEL_CH_STOP = 22,
    // NCCL 2.28 and newer
    GROUP_START_API_STOP = 23,
    GROUP_END_API_START = 24,
    // declared by NCCL 2.29, but never sent so far
    CE_COLL_START = 25,
    CE_COLL_COMPLETE = 26,
    CE_SYNC_START = 27,
    CE_SYNC_COMPLETE = 28,
    CE_BATCH_START = 29,
    CE_BATCH_COMPLETE = 30,
    // NCCL 2.31 and newer
    KERNEL_PHASE_STOP = 31,
}
