//! The CUDA driver as libnccl calls it: functions that it looks up by name through the runtime.
//!
//! The same promises are asked of callers as in [`super::runtime`]. Error numbers are the same
//! too.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::device;
use super::event::Event;
use super::memory::Kind;
use super::memory_operations::MemoryOperation;
use super::observe::call_of;
use super::runtime::{self, Out, body, exported};
use super::stream::Stream;
use super::virtual_memory::{FILE_DESCRIPTOR, GRANULARITY, Properties};
use super::work::{Action, Kernel, Origin};
use super::{Arguments, Error, machine};

type Handle = *mut c_void;

/// The function of a name. If it is not here, libnccl takes the driver for an old one that lacks
/// it.
pub(super) fn function(name: &str) -> Option<*const c_void> {
    match name {
        "cuGetErrorName" => Some(get_error_name as *const c_void),
        "cuGetErrorString" => Some(get_error_string as *const c_void),
        "cuLaunchKernel" => Some(launch_kernel as *const c_void),
        "cuLaunchKernelEx" => Some(launch_kernel_ex as *const c_void),
        _ => functions().find(|(known, _)| *known == name).map(|(_, function)| function),
    }
}

exported! {
    // Devices and contexts.

    fn cuInit(_flags: u32) {
        Ok(())
    }

    fn cuDeviceGet(out: Out<c_int>, ordinal: c_int) {
        out.put(device::get(ordinal)?.ordinal as c_int)
    }

    fn cuDeviceGetCount(out: Out<c_int>) {
        out.put(machine().config.devices as c_int)
    }

    fn cuDeviceGetAttribute(out: Out<c_int>, attribute: c_int, device: c_int) {
        out.put(device::attribute(machine(), attribute, device::get(device)?))
    }

    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: c_int) {
        out.put(device::get(device)?.uuid())
    }

    fn cuDevicePrimaryCtxRetain(out: Out<Handle>, device: c_int) {
        out.put(device::get(device)?.context().handle())
    }

    fn cuDevicePrimaryCtxRelease(device: c_int) {
        // Contexts live as long as the process.
        device::get(device).map(|_| ())
    }

    fn cuCtxGetCurrent(out: Out<Handle>) {
        out.put(device::current().context().handle())
    }

    fn cuCtxSetCurrent(context: Handle) {
        if context.is_null() {
            return Ok(());
        }
        device::set_current(device::of_context(context)?.ordinal as c_int)
    }

    fn cuCtxGetDevice(out: Out<c_int>) {
        out.put(device::current().ordinal as c_int)
    }

    fn cuCtxCreate(_out: *mut Handle, _flags: u32, _device: c_int) {
        // libnccl does this on request only (NCCL_CREATE_THREAD_CONTEXT), and works without.
        Err(Error::NotSupported)
    }

    fn cuCtxDestroy(_context: Handle) {
        Err(Error::InvalidContext)
    }

    // Memory.

    fn cuMemGetAddressRange(base: Out<usize>, bytes: Out<usize>, address: usize) {
        let range = machine().memory.find(address as *const c_void).ok_or(Error::SymbolNotFound)?;
        base.put_if_wanted(range.start);
        bytes.put_if_wanted(range.bytes);
        Ok(())
    }

    [unsafe] fn cuPointerGetAttribute(out: Out<u64>, attribute: c_int, address: usize) {
        let range = machine().memory.find(address as *const c_void).ok_or(Error::InvalidValue)?;
        let on_device = range.kind == Kind::Device;
        let physical = machine().memory.physical(address as *const c_void).is_some();
        // Some attributes are numbers of 4 bytes, the others of 8.
        let (value, is_long) = match attribute {
            pointer::MEMORY_TYPE => (if on_device { 2 } else { 1 }, false),
            pointer::DEVICE_ORDINAL => (range.device as usize, false),
            pointer::IS_LEGACY_IPC_CAPABLE => (range.sharable.into(), false),
            pointer::MAPPED => (1, false),
            pointer::CONTEXT => (device::get(range.device as c_int)?.context().handle() as usize, true),
            pointer::DEVICE_POINTER => (address, true),
            pointer::HOST_POINTER if !on_device => (address, true),
            pointer::BUFFER_ID | pointer::RANGE_START => (range.start, true),
            pointer::RANGE_SIZE => (range.bytes, true),
            pointer::ALLOWED_HANDLE_TYPES => (if physical { FILE_DESCRIPTOR as usize } else { 0 }, true),
            // The flags that follow are off; the other attributes have no meaning for this memory.
            pointer::FIRST_FLAG.. => (0, false),
            _ => return Err(Error::InvalidValue),
        };
        // SAFETY: CUDA's caller promises a place for a result of the attribute's type.
        if is_long { out.put(value as u64) } else { unsafe { out.cast() }.put(value as u32) }
    }

    fn cuPointerSetAttribute(_value: *const c_void, _attribute: c_int, address: usize) {
        machine().memory.find(address as *const c_void).map(|_| ()).ok_or(Error::InvalidValue)
    }

    fn cuMemGetAllocationGranularity(out: Out<usize>, _properties: *const Properties, _option: c_int) {
        // libnccl asks for it even when it does not use such memory.
        out.put(GRANULARITY)
    }

    fn cuMemCreate(out: Out<u64>, bytes: usize, properties: Option<&Properties>, _flags: u64) {
        out.put(machine().virtual_memory.create(bytes, properties.ok_or(Error::InvalidValue)?)?)
    }

    fn cuMemRelease(handle: u64) {
        machine().virtual_memory.release(handle)
    }

    fn cuMemAddressReserve(out: Out<*mut c_void>, bytes: usize, alignment: usize, _at: usize, _flags: u64) {
        out.put(machine().virtual_memory.reserve(bytes, alignment)?)
    }

    [unsafe] fn cuMemAddressFree(address: *mut c_void, bytes: usize) {
        machine().virtual_memory.unreserve(address, bytes)
    }

    [unsafe] fn cuMemMap(address: *mut c_void, bytes: usize, offset: usize, handle: u64, _flags: u64) {
        machine().virtual_memory.map(address, bytes, offset, handle)
    }

    [unsafe] fn cuMemUnmap(address: *mut c_void, bytes: usize) {
        machine().virtual_memory.unmap(address, bytes)
    }

    fn cuMemSetAccess(address: *mut c_void, _bytes: usize, _access: *const c_void, _count: usize) {
        machine().memory.find(address).map(|_| ()).ok_or(Error::InvalidValue)
    }

    fn cuMemRetainAllocationHandle(out: Out<u64>, address: *mut c_void) {
        out.put(machine().virtual_memory.retain(address)?)
    }

    fn cuMemExportToShareableHandle(out: Out<c_int>, handle: u64, kind: u32, _flags: u64) {
        out.put(machine().virtual_memory.export(handle, kind)?)
    }

    [unsafe] fn cuMemImportFromShareableHandle(out: Out<u64>, descriptor: *mut c_void, kind: u32) {
        // SAFETY: the descriptor is passed as a pointer, and CUDA's caller promises that it is
        // open.
        out.put(unsafe { machine().virtual_memory.import(descriptor as usize as c_int, kind)? })
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        out.put(machine().virtual_memory.properties(handle)?)
    }

    // Memory operations of streams.

    [unsafe] fn cuStreamBatchMemOp(
        stream: Handle,
        count: u32,
        operations: *const MemoryOperation,
        _flags: u32,
    ) |origin| {
        if operations.is_null() {
            return Err(Error::InvalidValue);
        }
        // SAFETY: CUDA's caller promises this many operations.
        let operations = unsafe { std::slice::from_raw_parts(operations, count as usize) };
        submit_operations(stream, operations.to_vec(), origin)
    }

    [unsafe] fn cuStreamWaitValue32(stream: Handle, address: usize, value: u32, flags: u32) |origin| {
        let operation = MemoryOperation::new(MemoryOperation::WAIT_32, address, value.into(), flags);
        submit_operations(stream, vec![operation], origin)
    }

    [unsafe] fn cuStreamWaitValue64(stream: Handle, address: usize, value: u64, flags: u32) |origin| {
        let operation = MemoryOperation::new(MemoryOperation::WAIT_64, address, value, flags);
        submit_operations(stream, vec![operation], origin)
    }

    [unsafe] fn cuStreamWriteValue32(stream: Handle, address: usize, value: u32, flags: u32) |origin| {
        let operation = MemoryOperation::new(MemoryOperation::WRITE_32, address, value.into(), flags);
        submit_operations(stream, vec![operation], origin)
    }

    [unsafe] fn cuStreamWriteValue64(stream: Handle, address: usize, value: u64, flags: u32) |origin| {
        let operation = MemoryOperation::new(MemoryOperation::WRITE_64, address, value, flags);
        submit_operations(stream, vec![operation], origin)
    }
}

extern "C" fn get_error_string(number: c_int, out: Out<*const c_char>) -> c_int {
    out.put(runtime::error_text(number).as_ptr()).map_or_else(Error::number, |()| 0)
}

extern "C" fn get_error_name(number: c_int, out: Out<*const c_char>) -> c_int {
    out.put(runtime::error_name(number).as_ptr()).map_or_else(Error::number, |()| 0)
}

// Kernels.

/// `CUlaunchAttribute`.
#[repr(C)]
pub(super) struct LaunchAttribute {
    id: u32,
    padding: u32,
    /// For the one attribute that matters here: the event.
    value: [Handle; 8],
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72);

/// `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`.
const LAUNCH_COMPLETION_EVENT: u32 = 12;

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_memory: u32,
    stream: Handle,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// `cuLaunchKernelEx_params`.
#[repr(C)]
struct LaunchExParameters {
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *const *const u8,
    extra: *const *const c_void,
}

/// `cuLaunchKernel_params`.
#[repr(C)]
pub(super) struct LaunchParameters {
    function: *const c_void,
    grid: [u32; 3],
    block: [u32; 3],
    shared_memory: u32,
    stream: Handle,
    arguments: *const *const u8,
    extra: *const *const c_void,
}

impl LaunchParameters {
    pub(super) fn new(kernel: &Kernel, stream: Handle, arguments: *const *const u8) -> LaunchParameters {
        LaunchParameters {
            function: kernel.function as *const c_void,
            grid: kernel.grid,
            block: kernel.block,
            shared_memory: kernel.shared_memory,
            stream,
            arguments,
            extra: std::ptr::null(),
        }
    }
}

/// The event that is to be recorded when the kernel begins.
pub(super) fn launch_event(attributes: &[LaunchAttribute]) -> Result<Option<Arc<Event>>, Error> {
    let attribute = attributes.iter().find(|attribute| attribute.id == LAUNCH_COMPLETION_EVENT);
    attribute.map(|attribute| machine().events.get(attribute.value[0])).transpose()
}

/// Copies the buffer of arguments that `extra` describes: pairs of a key and a value, up to a zero.
///
/// # Safety
///
/// `extra` does describe one.
pub(super) unsafe fn read_extra(extra: *const *const c_void) -> Result<Arguments, Error> {
    /// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`.
    const END: usize = 0;
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    let (mut buffer, mut bytes) = (std::ptr::null(), 0);
    for pair in 0.. {
        // SAFETY: the caller promises pairs up to a zero, which is not passed.
        let key = unsafe { *extra.add(2 * pair) } as usize;
        if key == END {
            break;
        }
        // SAFETY: a key other than the end has a value.
        let value = unsafe { *extra.add(2 * pair + 1) };
        match key {
            POINTER => buffer = value,
            // SAFETY: the value of this key is the address of a size.
            SIZE => bytes = unsafe { value.cast::<usize>().read() },
            _ => return Err(Error::InvalidValue),
        }
    }
    if buffer.is_null() {
        return Err(Error::InvalidValue);
    }
    // SAFETY: the caller promises a buffer of this size.
    Ok(Arguments::new(unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) }))
}

/// Queues or captures a kernel; `event` stands for its beginning.
pub(super) fn submit_kernel(
    stream: &Arc<Stream>,
    kernel: Kernel,
    event: Option<&Event>,
    origin: &Origin,
) -> Result<(), Error> {
    match stream.capture_action(Action::Kernel(kernel))? {
        Ok(point) => {
            if let Some(event) = event {
                point.record_start(event);
            }
        }
        Err(action) => {
            stream.queue_action(action, event.map(Event::record), origin)?;
        }
    }
    Ok(())
}

unsafe extern "C" fn launch_kernel_ex(
    config: *const LaunchConfig,
    function: *const c_void,
    arguments: *const *const u8,
    extra: *const *const c_void,
) -> c_int {
    let name = machine().name(function);
    let parameters = LaunchExParameters { config, function, arguments, extra };
    call_of(c"cuLaunchKernelEx", Some(&name), (&raw const parameters).cast(), |origin| {
        // SAFETY: CUDA's caller promises a configuration or null.
        let config = unsafe { config.as_ref() }.ok_or(Error::InvalidValue)?;
        let attributes = match config.attributes {
            none if none.is_null() => &[],
            // SAFETY: CUDA's caller promises this many attributes.
            some => unsafe { std::slice::from_raw_parts(some, config.attribute_count as usize) },
        };
        let event = launch_event(attributes)?;
        let kernel = Kernel {
            function: function as usize,
            grid: config.grid,
            block: config.block,
            shared_memory: config.shared_memory,
            // SAFETY: CUDA's caller promises the arguments of this kernel.
            body: unsafe { body(&name, arguments, extra)? },
            name: name.clone(),
        };
        submit_kernel(&device::stream(config.stream)?, kernel, event.as_deref(), origin)
    })
}

unsafe extern "C" fn launch_kernel(
    function: *const c_void,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_memory: u32,
    stream: Handle,
    arguments: *const *const u8,
    extra: *const *const c_void,
) -> c_int {
    let name = machine().name(function);
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let parameters = LaunchParameters { function, grid, block, shared_memory, stream, arguments, extra };
    call_of(c"cuLaunchKernel", Some(&name), (&raw const parameters).cast(), |origin| {
        // SAFETY: CUDA's caller promises the arguments of this kernel.
        let body = unsafe { body(&name, arguments, extra)? };
        let kernel = Kernel { function: function as usize, name: name.clone(), grid, block, shared_memory, body };
        submit_kernel(&device::stream(stream)?, kernel, None, origin)
    })
}

// Memory.

/// Attributes of `cuPointerGetAttribute`.
mod pointer {
    pub(super) const CONTEXT: c_int = 1;
    pub(super) const MEMORY_TYPE: c_int = 2;
    pub(super) const DEVICE_POINTER: c_int = 3;
    pub(super) const HOST_POINTER: c_int = 4;
    pub(super) const BUFFER_ID: c_int = 7;
    pub(super) const DEVICE_ORDINAL: c_int = 9;
    pub(super) const IS_LEGACY_IPC_CAPABLE: c_int = 10;
    pub(super) const RANGE_START: c_int = 11;
    pub(super) const RANGE_SIZE: c_int = 12;
    pub(super) const MAPPED: c_int = 13;
    pub(super) const ALLOWED_HANDLE_TYPES: c_int = 14;
    pub(super) const FIRST_FLAG: c_int = 15;

    use std::ffi::c_int;
}

fn submit_operations(stream: Handle, operations: Vec<MemoryOperation>, origin: &Origin) -> Result<(), Error> {
    operations.iter().try_for_each(MemoryOperation::check)?;
    device::stream(stream)?.submit(Action::Memory(operations), origin).map(|_| ())
}
