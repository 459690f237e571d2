//! The second pass: copies a packet, with stand-ins for its texts. Only fields that this build
//! knows are in the copy.

use prost::Message as _;

use super::kind::Kind;
use super::known::{attribute_of, thread_name};
use super::stand::StandIns;
use crate::trace::fields::EXTENSION;
use crate::trace::reader::proto::perfetto::protos::interned_gpu_render_stage_specification::RenderStageCategory;
use crate::trace::reader::proto::perfetto::protos::{
    GpuRenderStageEvent, InternedData, InternedGpuRenderStageSpecification, TrackDescriptor, TrackEvent,
};
use crate::trace::reader::{Nccl, Packet, TracePacket};
use crate::trace::words::Category;

/// The copy of a packet; `None` if nothing of it is known.
pub(super) fn scrubbed(packet: &Packet<'_>, stand: &mut StandIns) -> Result<Option<Vec<u8>>, prost::DecodeError> {
    let category = packet.event.as_ref().and_then(|event| event.category);
    let mut copy: TracePacket = packet.decode()?;
    // It was unpacked to get here.
    copy.compressed_packets = None;
    if let Some(interned) = &mut copy.interned_data {
        dictionary(interned, category, stand);
    }
    if let Some(event) = &mut copy.track_event {
        self::event(event, category, stand);
    }
    if let Some(track) = &mut copy.track_descriptor {
        self::track(track, stand);
    }
    if let Some(stage) = &mut copy.gpu_render_stage_event {
        self::stage(stage, stand);
    }
    for said in copy.trace_attributes.iter_mut().flat_map(|it| &mut it.attribute) {
        let (key, value) = attribute_of(said.key(), said.string_value(), stand);
        said.key = Some(key);
        said.string_value = said.string_value.is_some().then_some(value);
    }
    for gpu in copy.gpu_info.iter_mut().flat_map(|it| &mut it.gpus) {
        gpu.name = gpu.name.as_deref().map(|name| stand.model(name).into_owned());
        gpu.vendor = gpu.vendor.as_deref().map(|vendor| stand.text(vendor));
        if let Some(uuid) = &mut gpu.uuid {
            *uuid = uuid_bytes(uuid, stand);
        }
    }
    if let Some(extension) = &mut copy.extension_descriptor {
        // Our own arguments; another version's has texts that are not known here.
        extension.extension_set = Some(EXTENSION.to_vec());
    }
    let bytes = copy.encode_to_vec();
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}

/// The name of an event, by its category.
fn name(text: &str, category: Option<Category>, stand: &mut StandIns) -> String {
    match category {
        Some(Category::Kernel | Category::Gpu) => stand.kernel(text),
        Some(Category::Nvtx | Category::PyTorch) => stand.range(text),
        Some(Category::Cuda) if super::words::is_cuda_call(text) => text.to_owned(),
        _ => stand.text(text),
    }
}

fn dictionary(interned: &mut InternedData, category: Option<Category>, stand: &mut StandIns) {
    for it in &mut interned.event_categories {
        it.name = it.name.as_deref().map(|name| stand.text(name));
    }
    for it in &mut interned.event_names {
        it.name = it.name.as_deref().map(|text| name(text, category, stand));
    }
    for stage in &mut interned.gpu_specifications {
        let is_kernel = stage.category() == RenderStageCategory::Compute;
        let InternedGpuRenderStageSpecification { name, description, .. } = stage;
        // The others are queues, which are named like tracks.
        *name = name.as_deref().map(|name| if is_kernel { stand.kernel(name) } else { stand.track(name) });
        *description = description.as_deref().map(|text| match is_kernel && !text.is_empty() {
            true => stand.kernel(text),
            false => stand.text(text),
        });
    }
}

fn event(event: &mut TrackEvent, category: Option<Category>, stand: &mut StandIns) {
    event.name = event.name.as_deref().map(|text| name(text, category, stand));
    if let Some(args) = &mut event.nccl {
        arguments(args, stand);
    }
}

fn arguments(args: &mut Nccl, stand: &mut StandIns) {
    let pointers = [
        &mut args.send_buffer,
        &mut args.recv_buffer,
        &mut args.stream,
        &mut args.user_tag,
        &mut args.net_work_request,
    ];
    for pointer in pointers.into_iter().flatten() {
        *pointer = stand.pointer(*pointer);
    }
    args.net_queue_pair = args.net_queue_pair.map(|pair| (stand.pointer(pair as u64) & 0xff_ffff) as i32);
    let texts = [
        &mut args.variant,
        &mut args.sync_strategy,
        &mut args.doubt,
        &mut args.function_text,
        &mut args.datatype_text,
        &mut args.algorithm_text,
        &mut args.protocol_text,
        &mut args.note,
        &mut args.comm_hash,
    ];
    for text in texts.into_iter().flatten() {
        *text = stand.text(text);
    }
    let whole = |text: &mut Option<String>, stand: &mut StandIns, by: fn(&mut StandIns, &str) -> String| {
        *text = text.as_deref().map(|text| if text.is_empty() { String::new() } else { by(stand, text) });
    };
    whole(&mut args.comm_name, stand, StandIns::communicator);
    whole(&mut args.kernel, stand, StandIns::kernel);
    whole(&mut args.nvtx_range, stand, StandIns::range);
    whole(&mut args.uuid, stand, |stand, text| uuid_text(text, stand));
    whole(&mut args.nvtx_domain, stand, |stand, text| match stand.is_plain(text) {
        true => text.to_owned(),
        false => stand.stand(Kind::Domain, text),
    });
}

fn track(track: &mut TrackDescriptor, stand: &mut StandIns) {
    track.name = track.name.as_deref().map(|name| match &track.process {
        Some(_) => stand.process(name),
        None => stand.track(name),
    });
    track.description = track.description.as_deref().map(|text| stand.text(text));
    if let Some(process) = &mut track.process {
        process.process_name = process.process_name.as_deref().map(|name| stand.process(name));
        process.process_labels.iter_mut().for_each(|label| *label = stand.text(label));
    }
    if let Some(thread) = &mut track.thread {
        thread.thread_name = thread.thread_name.as_deref().map(|name| thread_name(name, stand));
    }
    if let Some(counter) = &mut track.counter {
        counter.unit_name = counter.unit_name.as_deref().map(|text| stand.text(text));
    }
}

fn stage(stage: &mut GpuRenderStageEvent, stand: &mut StandIns) {
    stage.name = stage.name.as_deref().map(|name| stand.kernel(name));
    for arg in stage.launch.iter_mut().flat_map(|it| &mut it.args) {
        arg.name = arg.name.as_deref().map(|name| stand.text(name));
        arg.string_value = arg.string_value.as_deref().map(|text| stand.kernel(text));
        arg.uint_value =
            arg.uint_value.map(|value| if value > u64::from(u32::MAX) { stand.pointer(value) } else { value });
    }
}

/// A GPU's UUID in hexadecimal: the stand-in's number in as many digits.
fn uuid_text(text: &str, stand: &mut StandIns) -> String {
    let number = number_of(&text.to_ascii_lowercase(), stand);
    format!("{number:032x}")
}

fn uuid_bytes(bytes: &[u8], stand: &mut StandIns) -> Vec<u8> {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    u128::from(number_of(&text, stand)).to_be_bytes().to_vec()
}

fn number_of(uuid: &str, stand: &mut StandIns) -> u64 {
    let uuid: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let stood = stand.stand(Kind::Uuid, &uuid);
    stood.rsplit_once('-').and_then(|it| it.1.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_named_like_processes_and_kernels_like_kernels() {
        let stage = |name: &str, description: &str, category| InternedGpuRenderStageSpecification {
            name: Some(name.to_owned()),
            description: Some(description.to_owned()),
            category,
            ..Default::default()
        };
        let compute = Some(RenderStageCategory::Compute as i32);
        let said = |keeps_names: bool| {
            let mut interned = InternedData {
                gpu_specifications: vec![
                    stage("rank 0 · node17 · GPU 0 · stream 13", "Kernels while they ran, from CUPTI.", None),
                    stage("secret_gemm", "secret_gemm", compute),
                    stage("kernel", "", compute),
                ],
                ..Default::default()
            };
            let mut stand = StandIns::new(keeps_names);
            stand.process("rank 0 · node17 · GPU 0 (H200)");
            dictionary(&mut interned, None, &mut stand);
            let of = |it: InternedGpuRenderStageSpecification| format!("{}: {}", it.name(), it.description());
            interned.gpu_specifications.into_iter().map(of).collect::<Vec<_>>()
        };
        let queue = "rank 0 · host-1 · GPU 0 · stream 13: Kernels while they ran, from CUPTI.";
        assert_eq!(said(false), [queue, "kernel-1: kernel-1", "kernel: "]);
        assert_eq!(said(true), [queue, "secret_gemm: secret_gemm", "kernel: "]);
    }
}
