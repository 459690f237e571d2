//! x
use ncclscope_tests::perfetto::Trace;
#[test]
fn explore() {
    let trace = Trace::open(std::env::var("T").unwrap()).unwrap();
    for sql in std::env::var("Q").unwrap().split(';') {
        println!("-- {sql}\n{}", trace.text(sql));
    }
    for p in trace.check() {
        println!("PROBLEM {p}");
    }
}
