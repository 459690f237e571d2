use super::compare::{c_function, layouts};
use super::headers::{Headers, has_member, without_comments};
use super::table::constant;

#[test]
fn fields_become_constants() {
    for (field, name) in [
        ("start", "START"),
        ("channelID", "CHANNEL_ID"),
        ("sourceGraphNodeId", "SOURCE_GRAPH_NODE_ID"),
        ("localMemoryTotal_v2", "LOCAL_MEMORY_TOTAL_V2"),
        ("objectId.pt.processId", "OBJECT_ID_PT_PROCESS_ID"),
    ] {
        assert_eq!(constant(field), name);
    }
}

#[test]
fn headers_are_read_without_their_comments() {
    let whole = "typedef struct PACKED {\n /** start; */ int end; // gone\n union { char a; } *both[2];\n} Thing;\n\
                 struct Tag_st { int x; };";
    let headers = Headers { bare: without_comments(whole), ..Headers::default() };
    let (name, body) = headers.body("Thing").unwrap();
    assert_eq!(name, "Thing");
    assert!(has_member(body, "end") && has_member(body, "both.a") && !has_member(body, "start"));
    assert_eq!(headers.body("Tag_st").unwrap().0, "struct Tag_st");
}

#[test]
fn kinds_are_read_from_their_comments() {
    let whole = "CUPTI_ACTIVITY_KIND_INVALID = 0,\n/** A copy. Record \\ref CUpti_ActivityMemcpy6. */\n\
                 CUPTI_ACTIVITY_KIND_MEMCPY = 1,\n/** Nothing. */ CUPTI_ACTIVITY_KIND_COUNT,\n} CUpti_ActivityKind;";
    let headers = Headers { whole: whole.to_owned(), ..Headers::default() };
    let Ok(kinds) = headers.kinds() else { panic!("no kinds") };
    assert_eq!(kinds, [(1, "MEMCPY".to_owned(), "CUpti_ActivityMemcpy6".to_owned())]);
}

#[test]
fn functions_are_declared_as_in_c() {
    let item = "/// `cuptiDo`\npub type cuptiDo = unsafe extern \"C\" fn(\n    kind: CUpti_Kind,\n    \
                text: *mut *const ::core::ffi::c_char,\n    size: usize,\n) -> CUptiResult;\n";
    let (name, declaration) = c_function(item).unwrap();
    assert_eq!(name, "cuptiDo");
    assert_eq!(declaration, "CUptiResult CUPTIAPI cuptiDo(CUpti_Kind, char const * *, size_t);\n");
    let item = "pub type CUpti_Func = ::core::option::Option<\n    unsafe extern \"C\" fn(buffer: *mut *mut u8),\n>;\n";
    assert_eq!(c_function(item).unwrap().1, "typedef void (CUPTIAPI *CUpti_Func)(uint8_t * *);\n");
    let item = "pub type CUpti_Func = ::core::option::Option<unsafe extern \"C\" fn() -> u64>;";
    assert_eq!(c_function(item).unwrap().1, "typedef uint64_t (CUPTIAPI *CUpti_Func)(void);\n");
    assert!(c_function("pub type CUpti_ActivityKind = ::core::ffi::c_uint;").is_none());
}

#[test]
fn assertions_are_read() {
    let item = "const _: () = {\n[\"Size of A\"][size_of::<A>() - 72usize];\n\
                [\"Offset of field: A::type_\"]\n[offset_of!(A, type_) - 8usize];\n};\n";
    let pairs = [("A".to_owned(), "72".to_owned()), ("A::type".to_owned(), "8".to_owned())];
    assert_eq!(layouts(item), pairs);
}
