//! Sets the library's link flags and turns `proto/` into field numbers, the embedded descriptor and
//! the reader's types; nothing else.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libncclscope.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=proto");

    let out = PathBuf::from(env::var("OUT_DIR")?);
    let schema = protox::compile(["perfetto.proto"], ["proto"])?;
    write_field_numbers(&schema, &out)?;
    write_extension(&schema, &out)?;
    if env::var_os("CARGO_FEATURE_CLI").is_some() {
        prost_build::Config::new().compile_fds(schema)?;
        prost_build::Config::new().compile_fds(protox::compile(["otlp.proto"], ["proto"])?)?;
    }
    Ok(())
}

/// One module a message, one constant a field or enum value: what the hand-written encoder uses.
fn write_field_numbers(schema: &FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    let mut code = String::new();
    for file in &schema.file {
        for message in &file.message_type {
            write_message(message, &mut code)?;
        }
        for values in &file.enum_type {
            write_enum(values, &mut code)?;
        }
    }
    fs::write(out.join("fields.rs"), code)?;
    Ok(())
}

fn write_message(message: &DescriptorProto, code: &mut String) -> std::fmt::Result {
    writeln!(code, "pub mod {} {{", snake(message.name()))?;
    for field in &message.field {
        writeln!(code, "pub const {}: u32 = {};", field.name().to_uppercase(), field.number())?;
    }
    for nested in &message.nested_type {
        write_message(nested, code)?;
    }
    for values in &message.enum_type {
        write_enum(values, code)?;
    }
    writeln!(code, "}}")
}

fn write_enum(values: &EnumDescriptorProto, code: &mut String) -> std::fmt::Result {
    writeln!(code, "#[allow(non_upper_case_globals)] pub mod r#{} {{", snake(values.name()))?;
    for value in &values.value {
        writeln!(code, "pub const {}: u64 = {};", value.name(), value.number())?;
    }
    writeln!(code, "}}")
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// The descriptor that travels in every trace: our messages, and the extension that hangs them on
/// TrackEvent.
fn write_extension(schema: &FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    let ours = schema.file.iter().find(|file| file.package() == "ncclscope").ok_or("no package ncclscope")?;
    let number = schema
        .file
        .iter()
        .flat_map(|file| &file.message_type)
        .filter(|message| message.name() == "TrackEvent")
        .flat_map(|message| &message.field)
        .find(|field| field.name() == "nccl")
        .ok_or("TrackEvent has no field nccl")?
        .number;
    let extension = FieldDescriptorProto {
        name: Some("nccl".into()),
        number,
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Message.into()),
        type_name: Some(".ncclscope.Nccl".into()),
        extendee: Some(".perfetto.protos.TrackEvent".into()),
        ..Default::default()
    };
    let holder =
        DescriptorProto { name: Some("NcclscopeTrackEvent".into()), extension: vec![extension], ..Default::default() };
    let mut file = FileDescriptorProto { source_code_info: None, ..ours.clone() };
    file.message_type.push(holder);
    fs::write(out.join("extension.bin"), FileDescriptorSet { file: vec![file] }.encode_to_vec())?;
    Ok(())
}
